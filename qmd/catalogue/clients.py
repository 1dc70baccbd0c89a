"""Errors between an application and the daemon."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        4001,
        "no_control_socket",
        "There is no control socket.",
        "The daemon does not run, or its configuration names another socket.",
        "Start the daemon (`qmd serve`, `systemctl start qmd`), or name its configuration"
        " (--config, QMD_CONFIG).",
        "not_connected",
        "MQ_ERROR_SERVICE_NOT_AVAILABLE",
    ),
    Entry(
        4002,
        "control_socket_forbidden",
        "This user may not use the control socket.",
        "The socket's mode and group (section [control]) do not have this user.",
        "Join the group that owns it, and log in again; or ask whoever runs the daemon.",
        "not_connected",
        "MQ_ERROR_ACCESS_DENIED",
    ),
    Entry(
        4003,
        "daemon_not_answering",
        "Nobody answers at the control socket.",
        "The daemon was killed and left its socket, or is too busy to take connections.",
        "See whether the daemon runs (`qmd serve`, `systemctl status qmd`).",
        "not_connected",
        "MQ_ERROR_SERVICE_NOT_AVAILABLE",
    ),
    Entry(
        4004,
        "connection_lost",
        "The connection with the daemon was lost.",
        "The daemon stopped or was killed. The client connects again by itself, for as long as"
        " reconnect_s says.",
        "See whether the daemon runs, and what its log says.",
        "not_connected",
        "MQ_ERROR_STALE_HANDLE",
    ),
    Entry(
        4005,
        "client_closed",
        "The client was closed.",
        "The program uses a client after its `async with` block, or after close().",
        "Connect again.",
        "not_connected",
        "MQ_ERROR_INVALID_HANDLE",
    ),
    Entry(
        4006,
        "other_queue_manager",
        "Another queue manager answers at the control socket now.",
        "The daemon was started with another data folder while this client lived. What was under"
        " way belongs to the old one.",
        "Connect anew, when that is meant.",
        "not_connected",
        "MQ_ERROR_STALE_HANDLE",
    ),
    Entry(
        4007,
        "reply_not_understood",
        "What answered at the control socket is no daemon of this release.",
        "Client and daemon are of different releases, or another program has the socket.",
        "Install the same release on both sides.",
        "not_connected",
    ),
    Entry(
        4008,
        "outcome_unknown",
        "The connection broke while a change was under way: it was done, or it was not.",
        "The daemon was stopped or killed in that moment, and did not come back in time.",
        "Where the error says so, it can safely be repeated; else ask for its outcome with its"
        " token, or look into the queue, before repeating it.",
    ),
    Entry(
        4009,
        "not_handed_over",
        "Received messages were not read before the connection was closed.",
        "A program has left `receive_each` early, or was cancelled while it received.",
        "They are in the `messages` of this error; read to the end, or use smaller batches.",
    ),
    Entry(
        4010,
        "not_opened_for_that",
        "The queue was opened for another use.",
        "What was opened to send is not received from, and the other way round.",
        "Open it with the access that is needed.",
        "access_denied",
        "MQ_ERROR_ACCESS_DENIED",
    ),
    Entry(
        4011,
        "database_in_doubt",
        "A database could not be told how a transaction ended.",
        "It was prepared there, and refuses to commit or to roll back now; its own words say why.",
        "Mend what it says and try again; or do it there, and `qmd transaction resolve` it.",
    ),
)
