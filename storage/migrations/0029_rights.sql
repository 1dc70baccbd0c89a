-- The rights of principals on queues and on the host, and the owners of queues.
CREATE TABLE access_entry (
    object    TEXT NOT NULL,                     -- 'host', '*', or the key of a queue
    effect    TEXT NOT NULL,                     -- 'allow', 'deny', or 'own': the owner of a queue
    principal TEXT NOT NULL,                     -- such as user:ann
    number    INTEGER,                           -- id that a named user or group had; else NULL
    rights    TEXT NOT NULL,                     -- comma-separated; of an owner ''
    PRIMARY KEY (object, effect, principal)
) WITHOUT ROWID;

-- Before rights existed, all users of the control socket shared everything.  They go on sharing the
-- queues that exist, and the operation of the host, until an administrator revokes that.
INSERT INTO access_entry (object, effect, principal, rights)
    SELECT key, 'allow', 'local', 'send,receive,peek,receive-journal,purge,delete,get-properties,'
        || 'set-properties,get-permissions,change-permissions,take-ownership'
    FROM queue WHERE parent_id IS NULL AND id <> 4;
INSERT INTO access_entry (object, effect, principal, rights)
    VALUES ('host', 'allow', 'local',
        'create-queue,see-status,read-events,manage-outgoing,manage-directory,manage-peers');
