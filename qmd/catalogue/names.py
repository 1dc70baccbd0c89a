"""Errors of queue names."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        1101,
        "name_not_understood",
        "The text is not a name of a queue.",
        "It matches no spelling: orders, orders@host, host\\private$\\orders, "
        "DIRECT=OS:host\\private$\\orders and so on. The error gives the character and the "
        "reason.",
        "Run `qmd name explain TEXT` to see how a name is understood. In a shell, put a name "
        "with a backslash or a dollar sign in quotes.",
        "bad_name",
        "MQ_ERROR_ILLEGAL_FORMATNAME",
    ),
    Entry(
        1102,
        "name_needs_directory",
        "The name can only be resolved with a directory service.",
        "It is a public name (PUBLIC=...) or a distribution list (DL=...), and this queue manager"
        ' has no directory: kind is "none" in the section [directory] of its configuration.',
        "Use a direct name: DIRECT=OS:host\\private$\\orders. Or configure a directory.",
        "bad_name",
        "MQ_ERROR_NO_DS",
    ),
    Entry(
        1103,
        "name_not_single",
        "The name does not refer to a single queue to which a message can be addressed.",
        "It names a machine, or a kind of queue that cannot be a destination.",
        "Use a direct name: DIRECT=OS:host\\private$\\orders.",
        "bad_name",
        "MQ_ERROR_UNSUPPORTED_FORMATNAME_OPERATION",
    ),
    Entry(
        1104,
        "name_not_reachable",
        "The queue of that name cannot be reached from here.",
        "qmd sends to direct names over TCP, OS and HTTP, to private queues (PRIVATE=...) of "
        "queue managers to which it has a route, and to queues that the directory knows; not over "
        "IPX, not by multicast (MULTICAST=), and not to a foreign computer without a connector "
        "server.",
        "Use DIRECT=TCP:address\\queue or DIRECT=OS:host\\queue; for a foreign computer see"
        " docs/routing.md.",
        "bad_name",
        "MQ_ERROR_UNSUPPORTED_FORMATNAME_OPERATION",
    ),
    Entry(
        1105,
        "name_elsewhere",
        "A queue can only be created on its own computer.",
        "The name has the host of another computer, or one that is not a name of this queue "
        "manager (name and aliases in the section [queue_manager]).",
        "Omit the host (private$\\orders), or create the queue on that computer.",
        "bad_name",
        "MQ_ERROR_ILLEGAL_QUEUE_PATHNAME",
    ),
    Entry(
        1106,
        "name_not_creatable",
        "A queue of that name cannot be created.",
        "It names a system queue, a journal or a subqueue, or a public queue without a directory;"
        " or it begins as the name of a list, an alias or a topic.",
        "Use the name of a private queue: private$\\orders.",
        "bad_name",
        "MQ_ERROR_ILLEGAL_QUEUE_PATHNAME",
    ),
    Entry(
        1107,
        "no_such_topic",
        "There is no topic of that name here.",
        "It was never created, or was deleted, or belongs to another queue manager.",
        "See `qmd topic list`, or create it: `qmd topic create NAME`.",
        "no_such_queue",
        "MQ_ERROR_QUEUE_NOT_FOUND",
    ),
    Entry(
        1108,
        "no_subscription",
        "No subscription of the topic takes the message.",
        "The topic has no subscriptions, or the message matches none of their selectors; and the"
        " topic has no queue for such messages.",
        "Subscribe a queue, or name one: `qmd topic create NAME --unmatched QUEUE`.",
        "no_such_queue",
        "MQ_ERROR_QUEUE_NOT_FOUND",
    ),
    Entry(
        1109,
        "no_such_subscription",
        "The topic has no subscription of that name.",
        "It was removed before, or has another name.",
        "See `qmd topic show NAME`.",
        "no_such_queue",
        "MQ_ERROR_QUEUE_NOT_FOUND",
    ),
    Entry(
        1110,
        "bad_topic_name",
        "The name cannot be that of a topic or subscription.",
        "It is empty, has more than 100 characters, or has a comma, a semicolon, a backslash or a"
        " character that cannot be printed.",
        "Choose a name such as news or orders.east.",
        "bad_name",
        "MQ_ERROR_ILLEGAL_QUEUE_PATHNAME",
    ),
    Entry(
        1111,
        "topic_in_topic",
        "A topic cannot subscribe to a topic.",
        "The destination of a subscription is a queue, a list of queues or a distribution list.",
        "Subscribe the queues of that topic.",
        "bad_name",
        "MQ_ERROR_ILLEGAL_QUEUE_PATHNAME",
    ),
    Entry(
        1112,
        "too_many_topics",
        "There are too many topics, or too many subscriptions of one.",
        "10,000 topics are allowed, and 1,000 subscriptions of each.",
        "Delete some that are not used, or divide the topic.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
)
