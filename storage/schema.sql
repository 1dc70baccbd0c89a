-- What the queue manager keeps, all of it.  A new database gets this file; an older one comes here
-- by storage/migrations.  Times are seconds (_s) or milliseconds (_ms) since 1970, UTC; but times of
-- life (expires_at_s everywhere, at_s of message_id_history and outcome) are by the queue manager's
-- own clock, which began as the wall clock, and is not set: qmd/runtime/clock.py.
--
-- Message rows have small columns first and the packet last: what stands behind a long packet can
-- only be read by walking through its overflow pages.

-- The queue manager itself: one row.
CREATE TABLE identity (
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    queue_manager BLOB NOT NULL CHECK (length(queue_manager) = 16),
    created_at_s  INTEGER NOT NULL
);

-- Numbers that must never be given twice are reserved here in blocks: the first value still free.
CREATE TABLE counter (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

-- The queues of this queue manager.  Ids below 16 are system queues.
CREATE TABLE queue (
    id                  INTEGER PRIMARY KEY CHECK (id BETWEEN 1 AND 32767),
    name                TEXT NOT NULL,           -- as it was given: private$\Orders
    key                 TEXT NOT NULL UNIQUE,    -- casefolded: one queue by any spelling
    label               TEXT NOT NULL,
    transactional       INTEGER NOT NULL,
    journal             INTEGER NOT NULL,        -- keep a copy of what was received
    quota_bytes         INTEGER,                 -- NULL: no limit
    journal_quota_bytes INTEGER,
    system              INTEGER NOT NULL,
    created_at_s        INTEGER NOT NULL,
    modified_at_s       INTEGER NOT NULL,
    parent_id           INTEGER,                 -- of a subqueue or journal: orders;retry
    directory_guid      BLOB                     -- of a public queue: its object in the directory
);

-- [MS-MQDMPR] 3.1.1.2: whether a queue is transactional is settled when it is created.
CREATE TRIGGER queue_is_fixed BEFORE UPDATE OF id, name, key, transactional, system ON queue
BEGIN
    SELECT RAISE(ABORT, 'name and kind of a queue are fixed for life');
END;

-- Messages in our queues.  key: storage/tables/keys.py.  Where there is a part_id, here and in the other
-- tables, the packet goes on in that row of shared_part, with so many bytes.
CREATE TABLE message (
    key             INTEGER PRIMARY KEY,
    arrived_at_ms   INTEGER NOT NULL,
    expires_at_s    INTEGER,                     -- the last second of its life; NULL: none
    reason          TEXT,                        -- why it came to a dead-letter queue
    abort_count     INTEGER NOT NULL DEFAULT 0,
    move_count      INTEGER NOT NULL DEFAULT 0,
    last_move_at_ms INTEGER,
    packet          BLOB NOT NULL,               -- as on the wire, without SessionHeader
    checksum        INTEGER,                     -- of the packet; NULL: from before schema 2
    part_id         INTEGER,
    part_bytes      INTEGER NOT NULL DEFAULT 0
);

-- The reaper looks for the earliest expiry.  Measured: 0.6 µs an insert, 0.9 µs with its delete,
-- nothing for messages that do not expire; exact, where scanning would read every packet.
CREATE INDEX message_expiry ON message (expires_at_s) WHERE expires_at_s IS NOT NULL;

-- Whether a part is still needed.  Nothing for the rows without one.
CREATE INDEX message_part ON message (part_id) WHERE part_id IS NOT NULL;

-- One row for each destination elsewhere, with the state of our transactional sequence to it.
-- Those of idle ones go when ids are wanted.  The receiver refuses a sequence that began earlier
-- than one it knows: the counter sequence_timestamp has the latest of those that are gone.
CREATE TABLE outgoing_queue (
    id           INTEGER PRIMARY KEY CHECK (id BETWEEN 1 AND 32767),
    destination  TEXT NOT NULL,                  -- canonical format name
    key          TEXT NOT NULL UNIQUE,           -- casefolded
    address      TEXT NOT NULL,                  -- host:port, or the next queue manager's GUID
    paused       INTEGER NOT NULL DEFAULT 0,
    sequence_id  BLOB NOT NULL,                  -- unsigned 64 bits, big-endian: SQLite's are signed
    base         INTEGER NOT NULL DEFAULT 0,     -- sequence number = arrival - base
    next_number  INTEGER NOT NULL DEFAULT 1,
    created_at_s INTEGER NOT NULL,
    redirect     TEXT,                           -- host:port where they go now; NULL: as named
    peer         BLOB,                           -- whom transactional ones were last handed to
    renumbered_to INTEGER NOT NULL DEFAULT 0,    -- up to this key packets bear an older sequence
    former       BLOB NOT NULL DEFAULT x'',      -- time stamps of its older sequences, 4 bytes each
    unproven_from INTEGER NOT NULL DEFAULT 0     -- base + the number at a start: sequence.py
);

-- Messages for elsewhere.  key: storage/tables/keys.py, with the id of the outgoing queue.
CREATE TABLE outgoing (
    key          INTEGER PRIMARY KEY,
    expires_at_s INTEGER,
    packet       BLOB NOT NULL,
    checksum     INTEGER,
    -- The last second of waiting for the final ack, by the queue manager's own clock; NULL: it is
    -- not waited for, 0: for ever.  The interval begins with the sending, not with the order ack.
    confirm_by_s INTEGER,
    -- 1: its application wants no dead letter, even if it is never delivered.
    discard      INTEGER NOT NULL DEFAULT 0,
    part_id      INTEGER,
    part_bytes   INTEGER NOT NULL DEFAULT 0
);

CREATE INDEX outgoing_expiry ON outgoing (expires_at_s) WHERE expires_at_s IS NOT NULL;

CREATE INDEX outgoing_part ON outgoing (part_id) WHERE part_id IS NOT NULL;

-- What each remote queue manager has sent in order to each of our queues, by each name of it.
-- [MS-MQQB] 3.1.1.5
-- A queue's rows outlive it, under its name: their queue_id is below 0 then.
CREATE TABLE incoming_sequence (
    id          INTEGER PRIMARY KEY,
    source      BLOB NOT NULL CHECK (length(source) = 16),
    queue_id    INTEGER NOT NULL,
    sequence_id BLOB NOT NULL,                   -- unsigned 64 bits, big-endian
    number      INTEGER NOT NULL,                -- the highest accepted
    last_seen_s INTEGER NOT NULL,
    former      TEXT,                            -- the casefolded name of a queue that is no more
    name        BLOB NOT NULL DEFAULT x'',       -- by which the source knows the queue: sequences.py
    rejected    INTEGER NOT NULL DEFAULT 0,      -- messages since one was last accepted
    contradictions INTEGER NOT NULL DEFAULT 0,   -- messages at positions of others
    last_message INTEGER NOT NULL DEFAULT 0,     -- the number of the one at `number`; 0: not known
    UNIQUE (queue_id, source, name)              -- in this order: also answers "is the id in use"
);

CREATE INDEX incoming_sequence_former ON incoming_sequence (former) WHERE former IS NOT NULL;

-- The numbers of the last plain messages of each source, against duplicates.  [MS-MQQB] 3.1.1.3
-- A row has those that came about the same time; what is forgotten is forgotten by rows: history.py.
CREATE TABLE message_id_history (
    position INTEGER PRIMARY KEY,                -- they only grow
    source   BLOB NOT NULL,
    number   INTEGER NOT NULL,                   -- one of them
    at_s     INTEGER NOT NULL,                   -- when the last of them came
    host     TEXT NOT NULL DEFAULT '',           -- who has brought them: its address
    peer     BLOB,                               -- and its GUID; NULL: that of the source
    runs     TEXT NOT NULL DEFAULT ''            -- first and last number of each run; empty: one
);

-- What became of a client's request, by the token it chose: asked again, it gets the same answer.
CREATE TABLE outcome (
    id     INTEGER PRIMARY KEY,                  -- in the order of recording: the oldest go first
    token  BLOB NOT NULL UNIQUE,
    result BLOB NOT NULL,
    at_s   INTEGER NOT NULL
);

-- Messages that are not what was stored, as their checksums show.  Nothing else touches them.
CREATE TABLE damaged (
    id     INTEGER PRIMARY KEY,
    at_s   INTEGER NOT NULL,                     -- when it was noticed
    place  TEXT NOT NULL,                        -- the table where it was: message or outgoing
    key    INTEGER NOT NULL,
    packet BLOB NOT NULL
);

-- Order-acknowledged messages whose source wants to hear of their receipt.  [MS-MQQB] 3.1.5.6, .7
CREATE TABLE awaiting (
    number      INTEGER PRIMARY KEY,             -- of the message; its source are we
    queue_id    INTEGER NOT NULL,                -- of the outgoing queue
    sequence_id BLOB NOT NULL,                   -- unsigned 64 bits, big-endian
    position    INTEGER NOT NULL,                -- in that sequence
    since_s     INTEGER NOT NULL,
    expires_at_s INTEGER,                        -- the last second of waiting; NULL: for ever
    packet      BLOB NOT NULL,
    checksum    INTEGER NOT NULL,
    discard     INTEGER NOT NULL DEFAULT 0,      -- 1: its application wants no dead letter
    part_id     INTEGER,
    part_bytes  INTEGER NOT NULL DEFAULT 0
);

CREATE INDEX awaiting_expiry ON awaiting (expires_at_s) WHERE expires_at_s IS NOT NULL;

CREATE INDEX awaiting_part ON awaiting (part_id) WHERE part_id IS NOT NULL;

-- Messages for elsewhere that became dead letters here: a final ack may say that they were received
-- after all.
CREATE TABLE unconfirmed (
    number   INTEGER PRIMARY KEY,                -- of the message; its source are we
    queue_id INTEGER NOT NULL,                   -- of the outgoing queue
    at_s     INTEGER NOT NULL
);

-- What happens to messages, told in the same commit; storage/tables/events.py.
CREATE TABLE event_block (
    id          INTEGER PRIMARY KEY,             -- only grows: the newest block is never deleted
    first_at_ms INTEGER NOT NULL,
    last_at_ms  INTEGER NOT NULL,
    events      INTEGER NOT NULL,                -- how many, one for each message
    data        BLOB NOT NULL,                   -- MessagePack
    -- What all blocks took that there ever were, up to and with this one.
    end_bytes   INTEGER NOT NULL DEFAULT 0
);

-- Which messages a block may speak of; and, with an empty source, which arrivals (keys.py).
CREATE TABLE event_range (
    source BLOB NOT NULL,
    first  INTEGER NOT NULL,
    last   INTEGER NOT NULL,
    block  INTEGER NOT NULL,
    PRIMARY KEY (source, first, last, block)
) WITHOUT ROWID;

-- Whose dead letters their application keeps itself; storage/tables/own_dead_letters.py.
CREATE TABLE own_dead_letter (
    number   INTEGER PRIMARY KEY,                -- of the message; its source are we
    queue_id INTEGER NOT NULL,                   -- of ours, where it is to be when it has died
    place    TEXT NOT NULL,                      -- the table where the message is
    key      INTEGER NOT NULL                    -- its key there
);

-- Databases that take part in transactions: what is prepared there waits for our decision.
CREATE TABLE branch (
    transaction_id BLOB NOT NULL,
    resource       TEXT NOT NULL,                -- what the application calls the database
    at_s           INTEGER NOT NULL,
    PRIMARY KEY (transaction_id, resource)
) WITHOUT ROWID;

-- Pipelines: who reads which queue in batches, what is reserved for them, and what waits to be sent
-- as one; storage/tables/reservations.py, storage/tables/stages.py.
CREATE TABLE reader (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    fence       INTEGER NOT NULL,                -- of its latest run; never given twice
    opened_at_s INTEGER NOT NULL                 -- by the wall clock
);

CREATE TABLE reader_queue (
    id                INTEGER PRIMARY KEY CHECK (id < 262144),
    reader_id         INTEGER NOT NULL,
    queue_id          INTEGER NOT NULL,
    queue             BLOB NOT NULL CHECK (length(queue) = 16),  -- its GUID: ids are given again
    shared            INTEGER NOT NULL,          -- what it consumes stays in the queue
    position          INTEGER NOT NULL,          -- consumed up to it
    next_number       INTEGER NOT NULL,          -- the position that is given next
    arrival           INTEGER NOT NULL,          -- what arrived up to it is not for this reader
    reserved_at_s     INTEGER NOT NULL,
    consumed_messages INTEGER NOT NULL,
    consumed_bytes    INTEGER NOT NULL,
    UNIQUE (reader_id, queue)
);

CREATE TABLE reservation (
    id  INTEGER PRIMARY KEY,                     -- reader_queue.id << 44 | position
    key INTEGER NOT NULL                         -- of a row of `message`
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
    data      BLOB NOT NULL,                     -- MessagePack: new messages, as they were given
    UNIQUE (query, epoch, part, attempt, first_row)
);

CREATE TABLE publication (
    id       INTEGER PRIMARY KEY,
    query    TEXT NOT NULL,
    epoch    INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    at_ms    INTEGER NOT NULL,
    queues   TEXT NOT NULL DEFAULT '',           -- that it sent to: keys, one a line; or "*": many
    owner    TEXT NOT NULL DEFAULT '',           -- the token that published; '': one for everything
    UNIQUE (query, epoch)
);

-- Over whom the messages of a queue manager came that is not beside us; storage/tables/ways_back.py.
CREATE TABLE way_back (
    source BLOB PRIMARY KEY CHECK (length(source) = 16),
    via    BLOB NOT NULL CHECK (length(via) = 16),
    host   TEXT NOT NULL,                        -- where that one was
    seen_s INTEGER NOT NULL
) WITHOUT ROWID;

-- Which start of a queue manager was met last, against two of one identity; peer_instances.py.
CREATE TABLE peer_instance (
    queue_manager BLOB PRIMARY KEY CHECK (length(queue_manager) = 16),
    starts        INTEGER NOT NULL,              -- how often it had been started
    nonce         BLOB NOT NULL,                 -- of that start
    host          TEXT NOT NULL,                 -- where it was
    seen_s        INTEGER NOT NULL
) WITHOUT ROWID;

-- What the copies of a message to many queues have in common: the end of their packets, from the
-- label and the body on.  storage/tables/shared_parts.py
CREATE TABLE shared_part (
    id       INTEGER PRIMARY KEY,
    packet   BLOB NOT NULL,
    checksum INTEGER NOT NULL
);

-- Acknowledgments to public queues that the directory has yet to find; storage/tables/unaddressed.py.
CREATE TABLE unaddressed (
    id       INTEGER PRIMARY KEY,
    queue    BLOB NOT NULL CHECK (length(queue) = 16),  -- of PUBLIC=
    at_s     INTEGER NOT NULL,                   -- by the wall clock
    packet   BLOB NOT NULL,
    checksum INTEGER NOT NULL
);

-- Messages that have ended in outgoing queues, of whose end we still have to tell; storage/tables/owed.py.
CREATE TABLE owed (
    id            INTEGER PRIMARY KEY,
    message_class INTEGER NOT NULL,
    for_others    INTEGER NOT NULL,              -- 1: it was on its way over this computer
    packet        BLOB NOT NULL,
    checksum      INTEGER NOT NULL
);

-- What the directory has yet to hear of public queues of ours; storage/tables/directory_changes.py.
CREATE TABLE directory_change (
    queue   BLOB PRIMARY KEY CHECK (length(queue) = 16),  -- its object
    path    TEXT NOT NULL,
    deleted INTEGER NOT NULL,                    -- 1: it is no more; 0: its properties are others
    at_s    INTEGER NOT NULL                     -- by the wall clock
) WITHOUT ROWID;
