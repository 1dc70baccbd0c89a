"""Log events about the data folder while the daemon serves."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        1701,
        "messages_damaged",
        "Stored messages are damaged, and were set aside.",
        "The disk or the memory changed bytes of the database, as a checksum shows. All other "
        "messages are served.",
        "Stop the daemon, examine the folder with `qmd check`, save the remaining messages with "
        "`qmd check --repair FILE`, and replace the disk.",
        "",
        "MQ_ERROR_MESSAGE_STORAGE_FAILED",
    ),
    Entry(
        1702,
        "journal_full",
        "A copy for the journal was not kept.",
        "The journal has reached the size that `journal` in the section [quotas] allows.",
        "Receive or purge the journal: `qmd receive journal --all`.",
        "",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1703,
        "disk_short",
        "The disk has no space for the reserve.",
        "Less space is free than twice disk_reserve in the section [quotas]. New "
        "messages are refused.",
        "Free space on the disk; the queue manager resumes automatically.",
        "",
        "MQ_ERROR_MESSAGE_STORAGE_FAILED",
    ),
    Entry(
        1704,
        "storage_not_closed",
        "The database was not closed in time when the daemon stopped.",
        "The disk is slow, or much work was under way.",
        "Nothing is lost: the next start completes the work.",
    ),
    Entry(
        1705,
        "downtime_not_counted",
        "The downtime of the queue manager was not counted against the lifetimes of messages.",
        "The computer was rebooted, and its clock gives an impossible downtime, or one longer "
        "than downtime_max in the section [delivery].",
        "Check that the clock is correct. The lifetimes of messages continue without the downtime.",
    ),
    Entry(
        1706,
        "clock_stepped",
        "The clock of the computer was set.",
        "An operator or a time service corrected it by more than a little.",
        "Nothing: the lifetimes of messages use a clock that such corrections do not change.",
    ),
    Entry(
        1707,
        "disk_has_room",
        "The disk has space again, and new messages are accepted (in the log).",
        "Space was freed, on the disk or by receiving. The line says for how long it was full.",
        "Nothing; a larger disk, or fewer messages on it, prevents a recurrence.",
    ),
    Entry(
        1708,
        "housekeeping_failed",
        "A maintenance task of the queue manager failed (in the log).",
        "The disk is full, memory is short, or another program has locked the database: the "
        "line says which.",
        "No message depends on it, and it is retried. Remove the cause; see `qmd status`.",
    ),
    Entry(
        1709,
        "queue_deletion_delayed",
        "The deletion of a queue waits, because its messages could not be read (in the log).",
        "A read of the disk failed: the line says why. Nobody finds the queue any more.",
        "Nothing: the read is retried every half second. If that goes on, check the disk. After a "
        "restart the queue is there again, and can be deleted.",
    ),
    Entry(
        1710,
        "rows_vanished",
        "Rows of messages are missing in the database, or others are there (in the log).",
        "Another program has changed the database of the queue manager, while the daemon ran or "
        "before: the line says which queue, and which messages as far as the event log shows it.",
        "Only the daemon may write to its database. Find out which program did. The messages that "
        "are named are lost here: send them again, or restore a backup. The daemon continues with "
        "the present rows.",
    ),
    Entry(
        1711,
        "own_dead_letters_not_loaded",
        "The names of dead-letter queues of waiting messages could not be read (in the log).",
        "The disk or the database does not answer a read.",
        "The daemon tries again each second; until then it finds the queue of each message by its "
        "row. If the line repeats, look at the disk of the data folder, and run qmd doctor.",
    ),
)
