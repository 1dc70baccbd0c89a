"""Errors of requests to the daemon in general."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        1001,
        "request_not_understood",
        "The daemon cannot read the request.",
        "Client and daemon are of different releases, or a foreign program sent bytes that are "
        "not a request of the control protocol.",
        "Use client and daemon of the same release. `qmd/control_protocol/messages.py` defines "
        "the requests.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1002,
        "frame_too_large",
        "A frame on the control socket announces more bytes than are accepted, and the connection"
        " is closed.",
        "One request contains too many or too large messages; or the bytes are not a frame.",
        "Split it into several requests.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1003,
        "versions_differ",
        "Client and daemon use different versions of the control protocol.",
        "Only one of the two was upgraded, or restarted after the upgrade.",
        "Install the same release on both sides, and restart the daemon.",
        "bad_request",
    ),
    Entry(
        1004,
        "bad_limit",
        "The number of messages is not valid.",
        "The limit of the request is 0 or less.",
        "Request 1 or more.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1005,
        "bad_wait",
        "The waiting time is not valid.",
        "The time of the request is not a number, or exceeds 30 years.",
        "Give seconds; -1 means unlimited.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1006,
        "bad_lookup_id",
        "The lookup id is not valid.",
        "The number is negative or has too many bits; peek, receive and the log show lookup ids.",
        "Use the lookup id from `qmd peek --json`.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1007,
        "stopping",
        "The queue manager is stopping, and accepts no more requests.",
        "It received the order to stop (SIGTERM, `systemctl stop`).",
        "Try again when it runs again. The client library does so automatically.",
        "",
        "MQ_ERROR_SERVICE_NOT_AVAILABLE",
    ),
    Entry(
        1008,
        "not_a_message_id",
        "The text is neither the id of a message nor a lookup id.",
        "An id is the GUID of the queue manager that sent the message, a backslash and a "
        "number; a lookup id is a number. A shell removes the backslash from text without "
        "quotes.",
        "Put the id into single quotes. `qmd send` prints it; `qmd peek` shows lookup ids.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1009,
        "lookup_id_ambiguous",
        "Several messages have this lookup id.",
        "They are in several outgoing queues, or were in several queues.",
        "Name the queue (--queue), or use the id of the message.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1010,
        "bad_cursor",
        "The text is not a cursor in the history of messages.",
        "A cursor is two numbers with a dot between them, such as 1042.0, as in an earlier "
        "answer or an event.",
        "Continue with the `next` that `qmd events export` printed, or with a time.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1011,
        "bad_event_kind",
        "The kind of event does not exist.",
        "The word is not in the list in docs/events.md.",
        "Use one of the words that the error names.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1012,
        "bad_address",
        "The text is not an address of a computer.",
        "It is neither a name nor an IP address, or its port is not valid.",
        "Give host or host:port, for example 10.0.0.5 or [fd00::5]:1802.",
    ),
    Entry(
        1013,
        "no_such_identity",
        "The text is not a GUID of a queue manager.",
        "It is misspelt.",
        "Copy it from two_of_one_identity of qmd status.",
    ),
    Entry(
        1014,
        "no_memory",
        "The queue manager has no memory left for the request. Nothing of it was done.",
        "This client or others request too much at once for the memory of the computer.",
        "Try again in a moment, with fewer messages at once; see memory in `qmd status`.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
)
