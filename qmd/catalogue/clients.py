"""Errors between an application and the daemon."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        4001,
        "no_control_socket",
        "There is no control socket.",
        "The daemon is not running, or its configuration names another socket.",
        "Start the daemon (`qmd serve`, `systemctl start qmd`), or name its configuration"
        " (--config, QMD_CONFIG).",
        "not_connected",
        "MQ_ERROR_SERVICE_NOT_AVAILABLE",
    ),
    Entry(
        4002,
        "control_socket_forbidden",
        "This user may not use the control socket.",
        "The mode and group of the socket (section [control]) exclude this user.",
        "Join the group that owns it, and log in again; or ask the administrator of the daemon.",
        "not_connected",
        "MQ_ERROR_ACCESS_DENIED",
    ),
    Entry(
        4003,
        "daemon_not_answering",
        "The daemon does not answer at the control socket.",
        "The daemon was killed and left its socket, or is too busy to accept connections.",
        "Check whether the daemon runs (`qmd serve`, `systemctl status qmd`).",
        "not_connected",
        "MQ_ERROR_SERVICE_NOT_AVAILABLE",
    ),
    Entry(
        4004,
        "connection_lost",
        "The connection to the daemon was lost.",
        "The daemon stopped or was killed. The client reconnects automatically, for up to "
        "reconnect_s seconds.",
        "Check whether the daemon runs, and read its log.",
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
        "The daemon was started with another data folder while this client was connected. "
        "Requests that were under way belong to the old one.",
        "Connect again, if the change is intended.",
        "not_connected",
        "MQ_ERROR_STALE_HANDLE",
    ),
    Entry(
        4007,
        "reply_not_understood",
        "The program that answered at the control socket is not a daemon of this release.",
        "Client and daemon are of different releases, or another program owns the socket.",
        "Install the same release on both sides.",
        "not_connected",
    ),
    Entry(
        4008,
        "outcome_unknown",
        "The connection broke while a change was under way: the change may or may not "
        "have been done.",
        "The daemon was stopped or killed at that moment, and did not return in time.",
        "If the error says that it is safe, repeat the request; otherwise ask for its outcome "
        "with its token, or inspect the queue, before repeating it.",
    ),
    Entry(
        4009,
        "not_handed_over",
        "Received messages were not read before the connection was closed.",
        "A program left `receive_each` early, or was cancelled while it received.",
        "The messages are in the `messages` of this error; read to the end, or use "
        "smaller batches.",
    ),
    Entry(
        4010,
        "not_opened_for_that",
        "The queue was opened for another use.",
        "A queue that was opened to send cannot be used to receive, and the reverse.",
        "Open it with the required access.",
        "access_denied",
        "MQ_ERROR_ACCESS_DENIED",
    ),
    Entry(
        4011,
        "database_in_doubt",
        "A database could not end its part of a transaction.",
        "Its part was prepared, and it now refuses to commit or to roll back; its own "
        "message in the error says why.",
        "Correct that and try again; or end the part in the database by hand, and run "
        "`qmd transaction resolve`.",
    ),
    Entry(
        4012,
        "remote_unreachable",
        "The queue manager on another host cannot be reached.",
        "The host or port is wrong, the daemon is not running, its [remote] section is not "
        "enabled, or a firewall blocks the connection.",
        "Check `qmd status` on that host, and the section [remote] of its configuration.",
    ),
    Entry(
        4013,
        "remote_certificate_refused",
        "The certificate of the queue manager on another host is not trusted.",
        "Its authority is not known here, it has expired, or it was issued for another name.",
        "Name the authority (--ca-file), and use the host name that the certificate has.",
    ),
    Entry(
        4014,
        "remote_tls_failed",
        "The TLS handshake with the other host failed.",
        "Another program listens at that port, or the host requires a client certificate.",
        "Check the port, and client_ca in the section [remote] there.",
    ),
    Entry(
        4015,
        "remote_certificate_unreadable",
        "A file with a certificate or key cannot be read.",
        "It does not exist, belongs to another user, or is not a PEM file.",
        "Check the files that the error names.",
    ),
    Entry(
        4016,
        "bad_remote_address",
        "The text is not an address of a queue manager.",
        "It is neither the path of a socket nor tls://host:port, or it would send a "
        "token unencrypted.",
        "Give tls://host:port.",
    ),
    Entry(
        4017,
        "no_remote_token",
        "No token was given for the queue manager on another host.",
        "A remote client needs a token.",
        "Create one there (`qmd remote token create`), and name its file (--token-file).",
    ),
    Entry(
        4018,
        "remote_token_unreadable",
        "The file with the token cannot be read.",
        "It does not exist, or belongs to another user.",
        "Check its path and its permissions.",
    ),
    Entry(
        4019,
        "login_first",
        "A remote client sent a request before its login.",
        "The client is older than the remote control protocol, or is not a client of qmd.",
        "Use the client library, or `qmd --host`.",
        "access_denied",
    ),
    Entry(
        4020,
        "token_refused",
        "The queue manager does not know this token.",
        "It was revoked, belongs to another host, or was truncated when it was copied.",
        "Check `qmd remote token list` on that host, or create another one.",
        "access_denied",
    ),
    Entry(
        4021,
        "scope_missing",
        "The token does not permit requests of that kind.",
        "It was created for other scopes: read, write or admin.",
        "Use another token, or create one: `qmd remote token create`.",
        "access_denied",
    ),
    Entry(
        4022,
        "queue_not_granted",
        "The token does not permit access to that queue.",
        "It was created for other queues.",
        "Use another token, or create one: `qmd remote token create --queue`.",
        "access_denied",
    ),
    Entry(
        4023,
        "too_many_requests",
        "A remote connection made more requests than are allowed.",
        "A program requests messages one by one, or in a loop.",
        "Request more messages at once; or raise requests_per_second in the section [remote].",
        "over_quota",
    ),
    Entry(
        4024,
        "too_many_remote_clients",
        "More remote clients are connected than are allowed (in the log).",
        "Pipelines open more connections than connections_max allows, or there is an attack.",
        "Check the address in the line; raise the limit in the section [remote].",
    ),
    Entry(
        4025,
        "remote_login_too_slow",
        "A remote connection did not log in in time (in the log).",
        "It is not a client of qmd, or the network is very slow.",
        "Check the address in the line; login_timeout in the section [remote] is the limit.",
    ),
    Entry(
        4026,
        "remote_token_refused",
        "A remote client used a token that is not known (in the log).",
        "The token was revoked, belongs to another host, or was guessed.",
        "Check the address in the line, and `qmd remote token list`.",
    ),
    Entry(
        4027,
        "token_file_broken",
        "The file with the tokens cannot be read: all remote clients are refused (in the log).",
        "It was edited by hand, or the daemon does not own it.",
        "Read the line of the log; create the file again with `qmd remote token create`.",
    ),
    Entry(
        4028,
        "argument_unsendable",
        "A text or a number cannot be sent to the daemon.",
        "The text is not Unicode, such as the name of a file or a label in another encoding; or "
        "the number has more than 64 bits.",
        "Give text as UTF-8, and bytes that are not text as a body: --file, --body-base64.",
        "bad_request",
    ),
    Entry(
        4029,
        "transaction_over",
        "The transaction has ended, or has not begun.",
        "It was committed or aborted before; or a `with qm.transaction()` is missing; or a task "
        "that was started inside its block continues after it.",
        "Begin a new transaction; wrap work that is not part of one in `with no_transaction()`.",
        "",
        "MQ_ERROR_TRANSACTION_SEQUENCE",
    ),
    Entry(
        4030,
        "not_part_of_a_transaction",
        "A verb that takes effect at once cannot be part of the transaction in which it is called.",
        "Inside `with qm.transaction()` a program takes, moves, purges, resends or imports "
        "messages, sends with a token, a deduplication id or a sender, waits for an answer, or "
        "uses pipeline operations: an abort could not undo that.",
        "Send and receive inside the block, do the rest after it, or keep it out of the "
        "transaction: `with no_transaction():`.",
        "bad_request",
        "MQ_ERROR_TRANSACTION_USAGE",
    ),
    Entry(
        4031,
        "transaction_of_another",
        "The transaction was begun by another client.",
        "A transaction belongs to the client that began it: a token of the remote control "
        "protocol, or the applications of the computer itself.",
        "Use the token that began it, or run `qmd transaction show` on the computer itself.",
        "access_denied",
    ),
    Entry(
        4032,
        "epoch_of_another",
        "An epoch of a pipeline's query was published by another client, to other queues.",
        "Two pipelines use the same name for a query, or another client with a token has used it.",
        "Give each pipeline a different name for its query; nothing was published, and "
        "nothing is lost.",
        "access_denied",
    ),
    Entry(
        4033,
        "client_forked",
        "A client cannot be used in a process that was forked from the one that connected it.",
        "The program connected, and then called `os.fork` or started a process of "
        "`multiprocessing` by forking (as web servers do that load a program before they start "
        "workers). The connection and its transactions belong to the first process.",
        "Connect after the fork, in the process that uses the client; or start processes by"
        ' "spawn" or "forkserver".',
    ),
    Entry(
        4034,
        "too_many_waiting",
        "A user or a token has more requests without an answer than are allowed.",
        "Programs send requests without a wait for their answers, or many of them wait for "
        "messages at once.",
        "Wait for answers before you send more requests; use fewer receives that wait.",
        "over_quota",
    ),
    Entry(
        4035,
        "token_uses_not_written",
        "The last uses of the tokens could not be written (in the log).",
        "The disk is full, or the file token-uses in the data folder is not the daemon's.",
        "`qmd remote token list` shows older times until it succeeds; nothing else depends on it.",
    ),
)
