"""Errors of quotas, limits and room."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        1401,
        "queue_full",
        "The queue is over its quota.",
        "Its messages take up as many bytes as its quota allows: nobody receives, or not as fast"
        " as others send.",
        "Receive or purge messages, or give the queue a larger quota. See `qmd queue show`.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1402,
        "computer_full",
        "The quota of the whole queue manager is reached.",
        "All queues together, outgoing ones and dead letters too, take up as many bytes as"
        " `computer` in the section [quotas] allows.",
        "See `qmd status`, `qmd queue list --system` and `qmd outgoing list` for what takes the"
        " room; receive or purge it, or allow more.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1403,
        "express_full",
        "The memory for express messages is full.",
        "Express messages live in memory, and take up as much of it as `express` in the section"
        " [quotas] allows.",
        "Receive some, or send with --recoverable.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1404,
        "sequence_full",
        "The transactional sequence to this destination has given all of its numbers.",
        "So many messages were sent without all of them ever being acknowledged: a new sequence"
        " can begin only then.",
        "Wait until the destination has acknowledged what is under way: `qmd outgoing show`.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1405,
        "busy",
        "More messages wait for the disk than can be given a number now.",
        "The disk is slower than those who send.",
        "Try again in a moment.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1406,
        "disk_full",
        "The disk of the data folder is full, so far as new messages are concerned.",
        "Less is free than must stay so that queues can still be emptied (disk_reserve in the"
        " section [quotas]).",
        "Make room on the disk, or receive or purge messages. What was stored is safe, and the"
        " queue manager goes on by itself when there is room.",
        "",
        "MQ_ERROR_MESSAGE_STORAGE_FAILED",
    ),
    Entry(
        1407,
        "quota_nearly_reached",
        "A queue, or the whole queue manager, is nearly full (in the log, at 70, 85 and 95 %).",
        "Nobody receives, or not as fast as others send.",
        "Receive or purge messages, or allow more: the line says with which command.",
    ),
)
