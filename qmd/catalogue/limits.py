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
    Entry(
        1408,
        "transactions_full",
        "The messages of transactions that are not committed take as much memory as they may.",
        "Many or large transactions are under way, of this connection or of all.",
        "Commit or abort some, or set transactions in the section [memory] higher.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1409,
        "slow_packet_ended",
        "A peer was sending a large packet too slowly while others waited for its memory (in the"
        " log).",
        "The peer hangs, or means ill. What peers send in part has a budget.",
        "Nothing; its session is ended, and it sends again. Where peers are honest and slow, set"
        " packets in the section [memory] higher.",
    ),
    Entry(
        1410,
        "slow_request_ended",
        "A client was sending a large request too slowly while others waited for its memory (in"
        " the log).",
        "The client hangs, or means ill. What clients send in part has a budget.",
        "Look at the client that the line names, or set requests in the section [memory] higher.",
    ),
    Entry(
        1411,
        "client_does_not_read",
        "A client did not read its answers, and was disconnected (in the log).",
        "It asks for much and hangs, and with others of its kind reached the budget of answers.",
        "Look at the client that the line names, or set requests in the section [memory] higher.",
    ),
    Entry(
        1412,
        "no_memory_for_packet",
        "There was no memory for the packet of a peer, and its session was ended (in the log).",
        "The memory of the computer, or of the daemon's control group, is used up.",
        "Give it more, or set the sizes in the section [memory] lower. Nothing is lost: the peer"
        " sends again.",
    ),
    Entry(
        1413,
        "no_memory_for_request",
        "There was no memory for what a client sent, and it was disconnected (in the log).",
        "The memory of the computer, or of the daemon's control group, is used up.",
        "Give it more, or set the sizes in the section [memory] lower.",
    ),
)
