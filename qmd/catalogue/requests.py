"""Errors of requests to the daemon, whatever they are about."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        1001,
        "request_not_understood",
        "The daemon cannot read the request.",
        "Client and daemon are of different releases, or a program of somebody else's sent bytes"
        " that are no request of the control protocol.",
        "Use client and daemon of the same release. What a request looks like stands in"
        " `qmd/control_protocol/messages.py`.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1002,
        "frame_too_large",
        "A frame on the control socket announces more bytes than are accepted, and the connection"
        " is closed.",
        "One request carries too many or too large messages; or what was sent is no frame at all.",
        "Make several requests of it.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1003,
        "versions_differ",
        "Client and daemon speak different versions of the control protocol.",
        "One of the two was upgraded, and the other was not, or was not restarted since.",
        "Install the same release on both sides, and restart the daemon.",
        "bad_request",
    ),
    Entry(
        1004,
        "bad_limit",
        "So many messages cannot be asked for.",
        "The limit of the request is 0 or less.",
        "Ask for 1 or more.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1005,
        "bad_wait",
        "Nobody can wait for so long.",
        "The time of the request is no number, or beyond 30 years.",
        "Give seconds; -1 is without an end.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1006,
        "bad_lookup_id",
        "No message can have this lookup id.",
        "The number is negative or has too many bits; lookup ids are those that peek, receive and"
        " the log show.",
        "Take the lookup id from `qmd peek --json`.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1007,
        "stopping",
        "The queue manager is stopping, and takes nothing in any more.",
        "It was told to stop (SIGTERM, `systemctl stop`).",
        "Try again when it runs again. The client library does so by itself.",
        "",
        "MQ_ERROR_SERVICE_NOT_AVAILABLE",
    ),
    Entry(
        1008,
        "not_a_message_id",
        "This is neither the id of a message nor a lookup id.",
        "An id is the GUID of the queue manager that a message is from, a backslash and a number;"
        " a lookup id is a number. A shell eats the backslash of what stands in no quotes.",
        "Put the id into single quotes. `qmd send` prints it; lookup ids stand in `qmd peek`.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1009,
        "lookup_id_ambiguous",
        "Several messages have this lookup id.",
        "They are in several outgoing queues, or were in several queues.",
        "Say which queue is meant (--queue), or ask by the message's id.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1010,
        "bad_cursor",
        "This is no cursor in the history of messages.",
        "A cursor is two numbers with a dot between them, such as 1042.0, as an earlier answer or"
        " an event had it.",
        "Go on with the `next` that `qmd events export` printed, or with a time.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1011,
        "bad_event_kind",
        "There is no such kind of event.",
        "The word is none of those that docs/events.md lists.",
        "Use one of the words that the error names.",
        "bad_request",
        "MQ_ERROR_INVALID_PARAMETER",
    ),
    Entry(
        1012,
        "bad_address",
        "That is no address of a computer.",
        "It is neither a name nor an IP address, or its port is none.",
        "Give host or host:port, for example 10.0.0.5 or [fd00::5]:1802.",
    ),
    Entry(
        1013,
        "no_such_identity",
        "That is no GUID of a queue manager.",
        "It is misspelt.",
        "Copy it from two_of_one_identity of qmd status.",
    ),
    Entry(
        1014,
        "no_memory",
        "The queue manager has no memory left for the request. Nothing of it was done.",
        "Too much is asked for at once, by this client or others, for the memory of the computer.",
        "Try again in a moment, with fewer messages at once; see memory in `qmd status`.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
)
