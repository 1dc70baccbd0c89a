"""What the log tells of the data folder while the daemon serves."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        1701,
        "messages_damaged",
        "Messages are not what was stored, and were set aside.",
        "The disk or the memory changed bytes of the database: their checksum says so. All others"
        " are served.",
        "Stop the daemon, examine the folder with `qmd check`, save what is left with"
        " `qmd check --repair FILE`; and do not trust that disk any more.",
        "",
        "MQ_ERROR_MESSAGE_STORAGE_FAILED",
    ),
    Entry(
        1702,
        "journal_full",
        "A copy for the journal was not kept.",
        "The journal takes up as many bytes as `journal` in the section [quotas] allows.",
        "Receive or purge the journal: `qmd receive journal --all`.",
        "",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1703,
        "disk_short",
        "The disk has no room for the reserve.",
        "Less is free than disk_reserve in the section [quotas], twice. New messages are refused.",
        "Make room on the disk; the queue manager goes on by itself.",
        "",
        "MQ_ERROR_MESSAGE_STORAGE_FAILED",
    ),
    Entry(
        1704,
        "storage_not_closed",
        "The database was not closed in time when the daemon stopped.",
        "The disk is slow, or much was under way.",
        "Nothing is lost: the next start does what is left.",
    ),
    Entry(
        1705,
        "downtime_not_counted",
        "The time for which the queue manager was down was not counted against messages.",
        "The computer was started anew, and by its clock the downtime cannot be, or is longer than"
        " downtime_max in the section [delivery].",
        "See that the clock is right. Times of messages go on where they stood.",
    ),
    Entry(
        1706,
        "clock_stepped",
        "The computer's clock was set.",
        "A person or a time service has corrected it by more than a little.",
        "Nothing: times of messages are counted by a clock that such corrections do not move.",
    ),
    Entry(
        1707,
        "disk_has_room",
        "The disk has room again, and new messages are taken (in the log).",
        "Room was made, on the disk or by receiving. The line says for how long it was full.",
        "Nothing; a larger disk, or fewer messages on it, keep it from coming again.",
    ),
    Entry(
        1708,
        "housekeeping_failed",
        "Something that the queue manager does for itself could not be done (in the log).",
        "The disk is full, memory is short, or another program has the database locked: the line"
        " says which.",
        "Nothing depends on it, and it is tried again. Remove the cause; see `qmd status`.",
    ),
)
