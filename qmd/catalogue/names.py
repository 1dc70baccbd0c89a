"""Errors of queues' names."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        1101,
        "name_not_understood",
        "The text is no name of a queue.",
        "It fits none of the spellings: orders, orders@host, host\\private$\\orders,"
        " DIRECT=OS:host\\private$\\orders and so on. The error says at which character and why.",
        "See what a spelling means: `qmd name explain TEXT`. A shell needs quotes around a name"
        " with a backslash or a dollar sign.",
        "bad_name",
        "MQ_ERROR_ILLEGAL_FORMATNAME",
    ),
    Entry(
        1102,
        "name_needs_directory",
        "The name says where its queue is only to those who have a directory service.",
        "It is a public name (PUBLIC=...) or a distribution list (DL=...), and this queue manager"
        ' has no directory: kind is "none" in the section [directory] of its configuration.',
        "Use a direct name: DIRECT=OS:host\\private$\\orders. Or give it a directory.",
        "bad_name",
        "MQ_ERROR_NO_DS",
    ),
    Entry(
        1103,
        "name_not_single",
        "The name does not stand for a single queue that a message could be addressed to.",
        "It names a machine, or a kind of queue that is no destination.",
        "Use a direct name: DIRECT=OS:host\\private$\\orders.",
        "bad_name",
        "MQ_ERROR_UNSUPPORTED_FORMATNAME_OPERATION",
    ),
    Entry(
        1104,
        "name_not_reachable",
        "There is no way to the queue of that name from here.",
        "qmd sends to direct names over TCP and OS, to private queues (PRIVATE=...) of queue"
        " managers that it has a way to, and to what the directory knows; not over HTTP or IPX, not"
        " by multicast, and not to a foreign computer without a connector server.",
        "Use DIRECT=TCP:address\\queue or DIRECT=OS:host\\queue; for a foreign computer see"
        " docs/routing.md.",
        "bad_name",
        "MQ_ERROR_UNSUPPORTED_FORMATNAME_OPERATION",
    ),
    Entry(
        1105,
        "name_elsewhere",
        "A queue can be created on its own computer only.",
        "The name has the host of another computer, or one that this queue manager does not go by"
        " (name and aliases in the section [queue_manager]).",
        "Leave the host out (private$\\orders), or create the queue over there.",
        "bad_name",
        "MQ_ERROR_ILLEGAL_QUEUE_PATHNAME",
    ),
    Entry(
        1106,
        "name_not_creatable",
        "A queue of that name cannot be created.",
        "It names a system queue, a journal or a subqueue, or a public queue, which needs a"
        " directory.",
        "Use the name of a private queue: private$\\orders.",
        "bad_name",
        "MQ_ERROR_ILLEGAL_QUEUE_PATHNAME",
    ),
)
