-- The complete schema of the queue manager.  A new database gets this file; an older one is
-- upgraded by storage/migrations.  Times are seconds (_s) or milliseconds (_ms) since 1970 UTC; but
-- lifetimes (expires_at_s everywhere, at_s of message_id_history, outcome and link_delivery) are by
-- the queue manager's own clock, which started as the wall clock and is never set: qmd/runtime/clock.py.
--
-- Message rows have small columns first and the packet last: columns after a long packet can only
-- be read through its overflow pages.

-- The queue manager itself: one row.
CREATE TABLE identity (
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    queue_manager BLOB NOT NULL CHECK (length(queue_manager) = 16),
    created_at_s  INTEGER NOT NULL,
    key_digest    BLOB                           -- of its key: engine/key_file.py; NULL: none yet
);

-- Numbers that must never be assigned twice, reserved in blocks.  value: the first free number.
CREATE TABLE counter (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

-- The queues of this queue manager.  Ids below 16 are system queues.
CREATE TABLE queue (
    id                  INTEGER PRIMARY KEY CHECK (id BETWEEN 1 AND 32767),
    name                TEXT NOT NULL,           -- as written by the user: private$\Orders
    key                 TEXT NOT NULL UNIQUE,    -- casefolded: equal for all spellings
    label               TEXT NOT NULL,
    transactional       INTEGER NOT NULL,
    journal             INTEGER NOT NULL,        -- keep copies of received messages
    quota_bytes         INTEGER,                 -- NULL: no limit
    journal_quota_bytes INTEGER,
    system              INTEGER NOT NULL,
    created_at_s        INTEGER NOT NULL,
    modified_at_s       INTEGER NOT NULL,
    parent_id           INTEGER,                 -- of a subqueue or journal: its queue
    directory_guid      BLOB,                    -- of a public queue: its object in the directory
    authenticate        INTEGER NOT NULL DEFAULT 0,  -- takes signed messages only
    privacy             INTEGER NOT NULL DEFAULT 1,  -- 0 none, 1 optional, 2 encrypted bodies only
    grouped             INTEGER NOT NULL DEFAULT 0   -- a group's messages go to one reader at a time
);

-- [MS-MQDMPR] 3.1.1.2: a queue's transactional property is fixed when it is created.
CREATE TRIGGER queue_is_fixed BEFORE UPDATE OF id, name, key, transactional, system ON queue
BEGIN
    SELECT RAISE(ABORT, 'name and kind of a queue are fixed for life');
END;

-- Messages in our queues.  key: storage/tables/keys.py.  If part_id is set, here and in the other
-- tables, the packet continues in that row of shared_part, which has part_bytes bytes.
CREATE TABLE message (
    key             INTEGER PRIMARY KEY,
    arrived_at_ms   INTEGER NOT NULL,
    expires_at_s    INTEGER,                     -- the last second of its life; NULL: no limit
    reason          TEXT,                        -- why it is in a dead-letter queue
    abort_count     INTEGER NOT NULL DEFAULT 0,
    move_count      INTEGER NOT NULL DEFAULT 0,
    last_move_at_ms INTEGER,
    packet          BLOB NOT NULL,               -- in wire format, without SessionHeader
    checksum        INTEGER,                     -- of the packet; NULL: older than schema 2
    part_id         INTEGER,
    part_bytes      INTEGER NOT NULL DEFAULT 0,
    seal            BLOB                         -- of an encrypted packet: storage/vault.py
);

-- Finds expired messages, the earliest first.  Measured cost: 0.6 µs per insert, 0.9 µs with its
-- delete, none for messages that do not expire.  A scan would read every packet instead.
CREATE INDEX message_expiry ON message (expires_at_s) WHERE expires_at_s IS NOT NULL;

-- Shows whether a part is still in use.  Rows without a part are not in the index.
CREATE INDEX message_part ON message (part_id) WHERE part_id IS NOT NULL;

-- One row for each remote destination, with the state of our transactional sequence to it.
-- Rows of idle destinations are deleted when ids run out.  The receiver rejects a sequence older
-- than one that it knows: the counter sequence_timestamp holds the latest of the deleted sequences.
CREATE TABLE outgoing_queue (
    id           INTEGER PRIMARY KEY CHECK (id BETWEEN 1 AND 32767),
    destination  TEXT NOT NULL,                  -- canonical format name
    key          TEXT NOT NULL UNIQUE,           -- casefolded
    address      TEXT NOT NULL,                  -- host:port, or the next queue manager's GUID
    paused       INTEGER NOT NULL DEFAULT 0,
    sequence_id  BLOB NOT NULL,                  -- unsigned, big-endian: SQLite's are signed
    base         INTEGER NOT NULL DEFAULT 0,     -- sequence number = arrival - base
    next_number  INTEGER NOT NULL DEFAULT 1,
    created_at_s INTEGER NOT NULL,
    redirect     TEXT,                           -- host:port that replaces address, or NULL
    peer         BLOB,                           -- receiver of the last transactional messages
    renumbered_to INTEGER NOT NULL DEFAULT 0,    -- packets up to this key bear an older sequence
    former       BLOB NOT NULL DEFAULT x'',      -- timestamps of its older sequences, 4 bytes each
    unproven_from INTEGER NOT NULL DEFAULT 0,    -- base + first number after a start: sequence.py
    asked_by     TEXT NOT NULL DEFAULT ''        -- the host that asks for its acknowledgments
);

-- Messages for remote destinations.  key: storage/tables/keys.py, with the outgoing queue's id.
CREATE TABLE outgoing (
    key          INTEGER PRIMARY KEY,
    expires_at_s INTEGER,
    packet       BLOB NOT NULL,
    checksum     INTEGER,
    -- The last second of waiting for the final ack, by the queue manager's own clock; NULL: no
    -- wait, 0: no limit.  The interval begins when the message is sent, not with the order ack.
    confirm_by_s INTEGER,
    -- 1: the application wants no dead letter, even if the message is never delivered.
    discard      INTEGER NOT NULL DEFAULT 0,
    part_id      INTEGER,
    part_bytes   INTEGER NOT NULL DEFAULT 0,
    seal         BLOB
);

CREATE INDEX outgoing_expiry ON outgoing (expires_at_s) WHERE expires_at_s IS NOT NULL;

CREATE INDEX outgoing_part ON outgoing (part_id) WHERE part_id IS NOT NULL;

-- Incoming sequences: one for each origin of a remote queue manager, queue of ours and name of that
-- queue.  [MS-MQQB] 3.1.1.5
-- The rows of a deleted queue are kept under its name (former), with a queue_id below 0.
CREATE TABLE incoming_sequence (
    id          INTEGER PRIMARY KEY,
    source      BLOB NOT NULL CHECK (length(source) = 16),
    queue_id    INTEGER NOT NULL,
    sequence_id BLOB NOT NULL,                   -- unsigned 64 bits, big-endian
    number      INTEGER NOT NULL,                -- the highest accepted
    last_seen_s INTEGER NOT NULL,
    former      TEXT,                            -- the casefolded name of a deleted queue
    name        BLOB NOT NULL DEFAULT x'',       -- the source's name of the queue: sequences.py
    rejected    INTEGER NOT NULL DEFAULT 0,      -- messages since the last accepted one
    contradictions INTEGER NOT NULL DEFAULT 0,   -- messages at another's position
    last_message INTEGER NOT NULL DEFAULT 0,     -- message number of the last accepted; 0: unknown
    origin      TEXT NOT NULL DEFAULT '',        -- of the source: origins.py; empty: not known
    host        TEXT NOT NULL DEFAULT '',        -- the address that its first message came from
    first_number  INTEGER NOT NULL DEFAULT 0,    -- of the first accepted message; 0: not known
    first_message INTEGER NOT NULL DEFAULT 0,    -- its message number
    first_digest  INTEGER NOT NULL DEFAULT 0,    -- of its content: sequence_order.py
    UNIQUE (queue_id, source, name, origin)      -- queue_id first: also finds whether an id is used
);

CREATE INDEX incoming_sequence_former ON incoming_sequence (former) WHERE former IS NOT NULL;

-- The numbers of the last non-transactional messages of each source, to reject duplicates.
-- [MS-MQQB] 3.1.1.3
-- A row has numbers that arrived at about the same time, and is deleted as a whole:
-- message_id_history.py.
CREATE TABLE message_id_history (
    position INTEGER PRIMARY KEY,                -- only grows
    source   BLOB NOT NULL,
    number   INTEGER NOT NULL,                   -- one of them
    at_s     INTEGER NOT NULL,                   -- when the last of them arrived
    host     TEXT NOT NULL DEFAULT '',           -- address of the peer that delivered them
    peer     BLOB,                               -- GUID of that peer; NULL: that of the source
    runs     TEXT NOT NULL DEFAULT '',           -- first and last number of each run; '': one
    origin   TEXT NOT NULL DEFAULT ''            -- of the source: origins.py; empty: not known
);

-- Results of clients' requests, by the client's token: a repeated request gets the same result.
-- Most are in blocks of events instead: outcomes.py.
CREATE TABLE outcome (
    id     INTEGER PRIMARY KEY,                  -- in the order of recording
    token  BLOB NOT NULL UNIQUE,
    result BLOB NOT NULL,
    at_s   INTEGER NOT NULL,
    shared INTEGER NOT NULL DEFAULT 0            -- 1: of all local users, from before rights existed
);

-- Messages that differ from their stored content, by their checksums; kept for an operator.
CREATE TABLE damaged (
    id     INTEGER PRIMARY KEY,
    at_s   INTEGER NOT NULL,                     -- when it was detected
    place  TEXT NOT NULL,                        -- the table that held it, such as message
    key    INTEGER NOT NULL,
    packet BLOB NOT NULL,
    seal   BLOB
);

-- Order-acknowledged messages that wait for their final ack.  [MS-MQQB] 3.1.5.6, .7
CREATE TABLE awaiting (
    number      INTEGER PRIMARY KEY,             -- of the message; we are its source
    queue_id    INTEGER NOT NULL,                -- of the outgoing queue
    sequence_id BLOB NOT NULL,                   -- unsigned 64 bits, big-endian
    position    INTEGER NOT NULL,                -- in that sequence
    since_s     INTEGER NOT NULL,
    expires_at_s INTEGER,                        -- the last second of waiting; NULL: no limit
    packet      BLOB NOT NULL,
    checksum    INTEGER NOT NULL,
    discard     INTEGER NOT NULL DEFAULT 0,      -- 1: no dead letter wanted
    part_id     INTEGER,
    part_bytes  INTEGER NOT NULL DEFAULT 0,
    seal        BLOB
);

CREATE INDEX awaiting_expiry ON awaiting (expires_at_s) WHERE expires_at_s IS NOT NULL;

CREATE INDEX awaiting_part ON awaiting (part_id) WHERE part_id IS NOT NULL;

-- The sequences of messages that wait, or have waited, for their final ack: awaiting.py.
CREATE TABLE awaiting_sequence (
    queue_id    INTEGER NOT NULL,                -- of the outgoing queue
    sequence_id BLOB NOT NULL,                   -- unsigned 64 bits, big-endian
    PRIMARY KEY (queue_id, sequence_id)
) WITHOUT ROWID;

-- Outgoing messages that became dead letters here: a late final ack may still report their receipt.
CREATE TABLE unconfirmed (
    number   INTEGER PRIMARY KEY,                -- of the message; we are its source
    queue_id INTEGER NOT NULL,                   -- of the outgoing queue
    at_s     INTEGER NOT NULL
);

-- The history of messages, written in the commit of the change; storage/tables/events.py.
CREATE TABLE event_block (
    id          INTEGER PRIMARY KEY,             -- only grows: the newest block is never deleted
    first_at_ms INTEGER NOT NULL,
    last_at_ms  INTEGER NOT NULL,
    events      INTEGER NOT NULL,                -- number of events, counted per message
    data        BLOB NOT NULL,                   -- MessagePack
    -- Total size of all blocks ever written, up to and including this one.
    end_bytes   INTEGER NOT NULL DEFAULT 0,
    tally       BLOB,                            -- rows after the commit; storage/tables/tally.py
    ranges      BLOB,                            -- for event_range: event_index.py; NULL: none
    outcomes    BLOB                             -- of the same commit: outcomes.py; NULL: none
);

-- The messages that a block may refer to; and, with an empty source, the arrivals (keys.py).  The
-- latest blocks are not listed yet: event_index.py.
CREATE TABLE event_range (
    source BLOB NOT NULL,
    first  INTEGER NOT NULL,
    last   INTEGER NOT NULL,
    block  INTEGER NOT NULL,
    PRIMARY KEY (source, first, last, block)
) WITHOUT ROWID;

-- Messages with a dead-letter queue of their application; storage/tables/own_dead_letters.py.
CREATE TABLE own_dead_letter (
    number   INTEGER PRIMARY KEY,                -- of the message; we are its source
    queue_id INTEGER NOT NULL,                   -- of that dead-letter queue
    place    TEXT NOT NULL,                      -- the table that holds the message
    key      INTEGER NOT NULL                    -- its key there
);

-- Databases that take part in transactions: prepared transactions wait for our decision.
CREATE TABLE branch (
    transaction_id BLOB NOT NULL,
    resource       TEXT NOT NULL,                -- the application's name of the database
    at_s           INTEGER NOT NULL,
    PRIMARY KEY (transaction_id, resource)
) WITHOUT ROWID;

-- Pipelines: readers of queues, their reservations, and rows staged to be sent together;
-- storage/tables/reservations.py, storage/tables/stages.py.
CREATE TABLE reader (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    fence       INTEGER NOT NULL,                -- of its latest run; never assigned twice
    opened_at_s INTEGER NOT NULL                 -- by the wall clock
);

CREATE TABLE reader_queue (
    id                INTEGER PRIMARY KEY CHECK (id < 262144),
    reader_id         INTEGER NOT NULL,
    queue_id          INTEGER NOT NULL,
    queue             BLOB NOT NULL CHECK (length(queue) = 16),  -- its GUID: ids are reused
    shared            INTEGER NOT NULL,          -- consumed messages stay in the queue
    position          INTEGER NOT NULL,          -- the last consumed position
    next_number       INTEGER NOT NULL,          -- the next position to assign
    arrival           INTEGER NOT NULL,          -- only later arrivals are for this reader
    reserved_at_s     INTEGER NOT NULL,
    consumed_messages INTEGER NOT NULL,
    consumed_bytes    INTEGER NOT NULL,
    UNIQUE (reader_id, queue)
);

-- A run of messages with successive positions and successive keys; the columns name its last one.
CREATE TABLE reservation (
    id       INTEGER PRIMARY KEY,                -- reader_queue.id << 44 | position
    key      INTEGER NOT NULL,                   -- of a row of `message`
    messages INTEGER NOT NULL DEFAULT 1
);

CREATE TABLE stage (
    id        INTEGER PRIMARY KEY,
    query     TEXT NOT NULL,
    epoch     INTEGER NOT NULL,
    part      INTEGER NOT NULL,
    attempt   TEXT NOT NULL,
    first_row INTEGER NOT NULL,
    row_count INTEGER NOT NULL,
    at_s      INTEGER NOT NULL,                  -- by the wall clock
    data      BLOB NOT NULL,                     -- MessagePack: new messages, as received
    seal      BLOB,
    UNIQUE (query, epoch, part, attempt, first_row)
);

CREATE TABLE publication (
    id       INTEGER PRIMARY KEY,
    query    TEXT NOT NULL,
    epoch    INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    at_ms    INTEGER NOT NULL,
    queues   TEXT NOT NULL DEFAULT '',           -- destinations: keys, one per line; "*": many
    owner    TEXT NOT NULL DEFAULT '',           -- the publisher's token; '': one for everything
    UNIQUE (query, epoch)
);

-- The last hop over which messages of a distant queue manager came; storage/tables/ways_back.py.
CREATE TABLE way_back (
    source BLOB PRIMARY KEY CHECK (length(source) = 16),
    via    BLOB NOT NULL CHECK (length(via) = 16),
    host   TEXT NOT NULL,                        -- address of that hop
    seen_s INTEGER NOT NULL
) WITHOUT ROWID;

-- The origins of other queue managers, and the last known run of each; peer_origins.py.
CREATE TABLE peer_origin (
    queue_manager BLOB NOT NULL CHECK (length(queue_manager) = 16),
    fact          TEXT NOT NULL,                 -- a proven key or authority, or an address
    origin        TEXT NOT NULL,                 -- to which the fact belongs
    bound         INTEGER NOT NULL,              -- how: qmd/peers/origins.py
    is_qmd        INTEGER NOT NULL,
    host          TEXT NOT NULL,                 -- its last address
    public_key    BLOB NOT NULL,                 -- x'': not known
    starts        INTEGER NOT NULL,              -- number of its starts; 0: not known
    nonce         BLOB NOT NULL,                 -- of that start
    first_seen_s  INTEGER NOT NULL,
    last_seen_s   INTEGER NOT NULL,
    PRIMARY KEY (queue_manager, fact)
) WITHOUT ROWID;

-- The queue managers and addresses that were met over TLS: storage/tables/tls_peers.py.
CREATE TABLE tls_peer (
    peer          TEXT PRIMARY KEY,              -- GUID as text, or host:port
    port          INTEGER NOT NULL,              -- its port for TLS; 0: not known
    key           TEXT NOT NULL,                 -- name of its identity key; empty: not bound
    issued_s      INTEGER NOT NULL,              -- time of its latest endorsed key
    newer_since_s INTEGER NOT NULL,              -- when that was first seen
    met_s         INTEGER NOT NULL
) WITHOUT ROWID;

-- The common end of the packets of one message's copies to many queues, from the label and the body
-- on; also the end of a large packet, in pieces.  storage/tables/shared_parts.py
CREATE TABLE shared_part (
    id       INTEGER PRIMARY KEY,
    packet   BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    seal     BLOB,
    follows  INTEGER                             -- the piece before it; NULL: it is the first
);

CREATE INDEX shared_part_follows ON shared_part (follows) WHERE follows IS NOT NULL;

-- Pieces that are stored before the row that will refer to them.  A start deletes those that are
-- left: their message was not accepted.
CREATE TABLE part_ahead (
    id INTEGER PRIMARY KEY
);

-- Acknowledgments to public queues that the directory has not yet resolved; unaddressed.py.
CREATE TABLE unaddressed (
    id       INTEGER PRIMARY KEY,
    queue    BLOB NOT NULL CHECK (length(queue) = 16),  -- of PUBLIC=
    at_s     INTEGER NOT NULL,                   -- by the wall clock
    packet   BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    seal     BLOB
);

-- Messages that are to be delivered at a later time; storage/tables/delayed.py.  Due times and
-- pages are read from the indexes: a million rows cost no memory.
CREATE TABLE delayed (
    number     INTEGER PRIMARY KEY,              -- of the message, or its first copy; we are its source
    clock      INTEGER NOT NULL,                 -- of due_ms: 0 the wall clock, 1 our own
    due_ms     INTEGER NOT NULL,
    queue      TEXT NOT NULL,                    -- its destination: a queue here, or format names
    bytes      INTEGER NOT NULL,                 -- that count towards quotas
    owner      TEXT NOT NULL,                    -- the client that sent it; '': one with all rights
    sent_at_ms INTEGER NOT NULL,                 -- by the wall clock
    data       BLOB NOT NULL,                    -- MessagePack: the new message, and its numbers
    checksum   INTEGER NOT NULL,
    seal       BLOB
);

CREATE INDEX delayed_due ON delayed (clock, due_ms, number, queue);

CREATE INDEX delayed_queue ON delayed (queue, number, bytes);

-- Number and bytes of the delayed messages for each destination.
CREATE TABLE delayed_total (
    queue    TEXT PRIMARY KEY,
    messages INTEGER NOT NULL,
    bytes    INTEGER NOT NULL
) WITHOUT ROWID;

-- What happens to messages of a queue that applications fail to process; storage/tables/retries.py.
CREATE TABLE retry_policy (
    queue_id     INTEGER PRIMARY KEY,
    attempts     INTEGER NOT NULL,               -- 0: no limit
    immediate    INTEGER NOT NULL,               -- that follow at once, before each wait
    delay_ms     INTEGER NOT NULL,               -- the first wait
    factor       REAL NOT NULL,                  -- of each wait to the next
    delay_max_ms INTEGER NOT NULL,
    jitter       REAL NOT NULL,
    ends         TEXT NOT NULL                   -- qmd/core/retry_policy.py
);

-- Messages that wait in a subqueue `;retry` for another attempt.
CREATE TABLE retry (
    key    INTEGER PRIMARY KEY,                  -- of the row of message
    due_ms INTEGER NOT NULL                      -- by the queue manager's own clock
);

CREATE INDEX retry_due ON retry (due_ms);

-- Messages that ended in outgoing queues, with acknowledgments still to be sent; owed.py.
CREATE TABLE owed (
    id            INTEGER PRIMARY KEY,
    message_class INTEGER NOT NULL,
    for_others    INTEGER NOT NULL,              -- 1: it was being routed through this computer
    packet        BLOB NOT NULL,
    checksum      INTEGER NOT NULL,
    seal          BLOB
);

-- Dead letters that messages of other hosts have caused; refused_letters.py.
CREATE TABLE refused_letter (
    key   INTEGER PRIMARY KEY,                   -- of the row of message
    host  TEXT NOT NULL,                         -- that sent it
    bytes INTEGER NOT NULL,                      -- of its packet
    at_s  INTEGER NOT NULL                       -- by the queue manager's own clock
);

-- Changes of our public queues that the directory does not have yet; directory_changes.py.
CREATE TABLE directory_change (
    queue   BLOB PRIMARY KEY CHECK (length(queue) = 16),  -- its object
    path    TEXT NOT NULL,
    deleted INTEGER NOT NULL,                    -- 1: deleted; 0: its properties have changed
    at_s    INTEGER NOT NULL                     -- by the wall clock
) WITHOUT ROWID;

-- Hosts whose sessions have places when there are few; qmd/peers/known_hosts.py.
CREATE TABLE known_host (
    host   TEXT PRIMARY KEY,                     -- its address, or the /64 of its IPv6 address
    seen_s INTEGER NOT NULL                      -- by the wall clock
) WITHOUT ROWID;

-- Keys that encrypt packets: those that rows may need.  storage/tables/sealing.py
CREATE TABLE sealing_key (
    id      INTEGER PRIMARY KEY,
    key_id  BLOB NOT NULL UNIQUE CHECK (length(key_id) = 8),
    since_s INTEGER NOT NULL
);

-- The rights of principals on queues and on the host, and the owners of queues; access.py.
CREATE TABLE access_entry (
    object    TEXT NOT NULL,                     -- 'host', '*', or the key of a queue
    effect    TEXT NOT NULL,                     -- 'allow', 'deny', or 'own': the owner of a queue
    principal TEXT NOT NULL,                     -- such as user:ann
    number    INTEGER,                           -- id that a named user or group had; else NULL
    rights    TEXT NOT NULL,                     -- comma-separated; of an owner ''
    PRIMARY KEY (object, effect, principal)
) WITHOUT ROWID;

-- Names of which messages go to several queues, by selectors: storage/tables/topics.py.
CREATE TABLE topic (
    key       TEXT PRIMARY KEY,                  -- the casefolded name
    name      TEXT NOT NULL,
    unmatched TEXT NOT NULL                      -- for messages of no subscription; '': refused
) WITHOUT ROWID;

CREATE TABLE subscription (
    topic       TEXT NOT NULL,                   -- the key of the topic
    key         TEXT NOT NULL,                   -- the casefolded name
    name        TEXT NOT NULL,
    destination TEXT NOT NULL,                   -- in any spelling
    selector    TEXT NOT NULL,                   -- '': all messages
    PRIMARY KEY (topic, key)
) WITHOUT ROWID;

-- The requests of operators and their results: storage/tables/audit.py.  The digest of an entry
-- covers the digest before it, so that no entry can be changed or left out without a trace.
CREATE TABLE audit_entry (
    number INTEGER PRIMARY KEY,
    entry  TEXT NOT NULL,                        -- a JSON object
    digest BLOB NOT NULL CHECK (length(digest) = 32)
);

-- The last entry that was dropped, at which the chain begins; one row, or none.
CREATE TABLE audit_anchor (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    number INTEGER NOT NULL,
    digest BLOB NOT NULL CHECK (length(digest) = 32)
);

-- How many rows of messages each queue must have: storage/tables/tally.py.  Later blocks of events
-- have newer figures.
CREATE TABLE tally (
    place     INTEGER PRIMARY KEY,               -- table and queue
    row_count INTEGER NOT NULL,
    digest    INTEGER NOT NULL,                  -- the sum of the keys, modulo 2**32
    block     INTEGER NOT NULL,                  -- the newest event block then
    bytes     INTEGER NOT NULL DEFAULT 0,        -- of their packets
    transactional INTEGER NOT NULL DEFAULT 0     -- rows of `outgoing` in the queue's sequence
);

-- The blocks of events with outcomes, in groups, while these are kept; storage/tables/outcomes.py.
CREATE TABLE outcome_index (
    last_block INTEGER PRIMARY KEY,              -- of the group
    at_s       INTEGER NOT NULL,                 -- of its latest outcome
    tokens     BLOB NOT NULL                     -- digests of 8 bytes
);

-- Deliveries of senders over AMQP that were committed: storage/tables/link_deliveries.py.
CREATE TABLE link_delivery (
    id         INTEGER PRIMARY KEY,              -- in the order of recording
    owner      BLOB NOT NULL,                    -- the client, of which the rows are limited
    link       BLOB NOT NULL,                    -- digest of the client, the container and the name
    position   INTEGER NOT NULL,                 -- of the first of them on their link
    deliveries BLOB NOT NULL,                    -- MessagePack: a digest and the tag of each
    at_s       INTEGER NOT NULL,
    UNIQUE (link, position)
);

CREATE INDEX link_delivery_owner ON link_delivery (owner, id);
