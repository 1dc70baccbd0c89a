"""Errors of quotas, limits and space."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        1401,
        "queue_full",
        "The queue has reached its quota.",
        "Its messages use as many bytes as its quota allows: no application receives them, or "
        "not as fast as they arrive.",
        "Receive or purge messages, or give the queue a larger quota. See `qmd queue show`.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1402,
        "computer_full",
        "The quota of the whole queue manager is reached.",
        "All queues together, including outgoing ones and dead letters, use as many bytes as "
        "`computer` in the section [quotas] allows.",
        "See `qmd status`, `qmd queue list --system` and `qmd outgoing list` for the largest "
        "queues; receive or purge their messages, or raise the quota.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1403,
        "express_full",
        "The memory for express messages is full.",
        "Express messages are stored in memory, and have reached the limit `express` in the "
        "section [quotas].",
        "Receive some messages, or send with --recoverable.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1404,
        "sequence_full",
        "The transactional sequence to this destination has used all of its numbers.",
        "Very many messages were sent without all of them ever being acknowledged: a new "
        "sequence can only begin after that.",
        "Wait until the destination has acknowledged the messages under way: `qmd outgoing show`.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1405,
        "busy",
        "Too many messages wait for the disk; no further message can get a number now.",
        "The disk is slower than the senders.",
        "Try again in a moment.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1406,
        "disk_full",
        "The disk of the data folder has no space for new messages.",
        "Less space is free than is needed to empty queues later (disk_reserve in the section "
        "[quotas]).",
        "Free space on the disk, or receive or purge messages. Stored messages are safe, and "
        "the queue manager resumes automatically when there is space.",
        "",
        "MQ_ERROR_MESSAGE_STORAGE_FAILED",
    ),
    Entry(
        1407,
        "quota_nearly_reached",
        "A queue, or the whole queue manager, is nearly full (in the log, at 70, 85 and 95 %).",
        "No application receives its messages, or not as fast as they arrive.",
        "Receive or purge messages, or raise the quota with the command that the line names.",
    ),
    Entry(
        1408,
        "transactions_full",
        "The messages of uncommitted transactions have reached their memory limit.",
        "Many or large transactions are under way, of this connection or of all connections.",
        "Commit or abort some, or raise transactions in the section [memory].",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1409,
        "slow_packet_ended",
        "A peer sent a large packet too slowly while other peers waited for its memory (in the "
        "log).",
        "The peer hangs, or attacks. Partly received packets share a memory budget.",
        "Nothing: its session was ended, and it sends the packet again. If peers are slow but "
        "genuine, raise packets in the section [memory].",
    ),
    Entry(
        1410,
        "slow_request_ended",
        "A client sent a large request too slowly while other clients waited for its memory (in "
        "the log).",
        "The client hangs, or attacks. Partly received requests share a memory budget.",
        "Check the client that the line names, or raise requests in the section [memory].",
    ),
    Entry(
        1411,
        "client_does_not_read",
        "A client did not read its answers, and was disconnected (in the log).",
        "It requests much and does not read, and the budget for answers was used up.",
        "Check the client that the line names, or raise requests in the section [memory].",
    ),
    Entry(
        1412,
        "no_memory_for_packet",
        "There was no memory for the packet of a peer, and its session was ended (in the log).",
        "The memory of the computer, or of the control group of the daemon, is used up.",
        "Add memory, or lower the sizes in the section [memory]. Nothing is lost: the peer "
        "sends the packet again.",
    ),
    Entry(
        1413,
        "no_memory_for_request",
        "There was no memory for a request, and its client was disconnected (in the log).",
        "The memory of the computer, or of the control group of the daemon, is used up.",
        "Add memory, or lower the sizes in the section [memory].",
    ),
    Entry(
        1414,
        "inventory_too_large",
        "More messages are stored than an inventory can name.",
        "The inventory of all queues is one answer, with four bytes for each message.",
        "Receive or purge messages. `qmd ship` ships the events also without an inventory; an "
        "audit then cannot find messages that vanished from their queues.",
    ),
    Entry(
        1415,
        "too_many_outcomes",
        "A client has as many stored results as it may.",
        "The result of each request with a token, and of each transaction, is kept for a while, so"
        " that a client that lost the answer can ask for it.",
        "Wait until older results are forgotten; send more messages in one request; or raise "
        "outcomes_max in the section [transactions].",
        "over_quota",
    ),
    Entry(
        1416,
        "too_many_settled",
        "A transaction moves or rejects as many received messages as it may.",
        "The commit of a transaction is one step, for which other clients wait.",
        "Commit it after at most 4,096 such messages, and go on in another one. Messages that a "
        "transaction receives or sends do not count.",
        "over_quota",
    ),
)
