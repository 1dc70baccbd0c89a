"""Log events about failures of other queue managers and of clients."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        1601,
        "peer_unreachable",
        "No connection to another queue manager can be opened.",
        "The line contains the message of the operating system; common causes have "
        "errors of their own.",
        "Nothing is lost, and the connection is retried. See `qmd outgoing show`; retry now "
        "with `qmd outgoing kick`.",
        "",
        "MQ_ERROR_REMOTE_MACHINE_NOT_AVAILABLE",
    ),
    Entry(
        1602,
        "peer_not_allowed",
        "A connection from a computer that is not allowed was closed.",
        "Its address is in none of the networks of `allow` in the section [peers].",
        "Add its network there, if it should connect.",
        "",
        "MQ_ERROR_ACCESS_DENIED",
    ),
    Entry(
        1603,
        "too_many_connections",
        "A connection was closed because there are too many.",
        "The limit for connections is reached, in total or for one address.",
        "See `qmd session list`; raise the limits in the section [peers] if all are legitimate.",
        "",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1604,
        "too_many_handshakes",
        "The oldest connection with an unfinished handshake was closed to make room.",
        "A port scanner, the probe of a load balancer, or an attack opens connections and sends "
        "nothing.",
        "Check the address in the lines; exclude it with `allow` in the section [peers].",
    ),
    Entry(
        1605,
        "session_refused",
        "A session with another queue manager was refused.",
        "The limit for sessions is reached, in total or for one peer.",
        "See `qmd session list`; raise the limits in the section [peers].",
        "",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1606,
        "session_closed_for_lack_of_room",
        "A session was closed because no further message can be accepted.",
        "A quota of this queue manager is reached, or its disk is full; the line says which. "
        "The sender keeps its messages and retries.",
        "Make room: receive or purge messages, or raise the quota.",
        "",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1607,
        "too_many_streams",
        "A transactional message was not accepted because there are too many sequences.",
        "The limit for different senders and queues with sequences is reached.",
        "See `qmd sequence list`: a peer that creates ever new sequences is broken or hostile.",
    ),
    Entry(
        1608,
        "acknowledgment_not_understood",
        "An order or final acknowledgment from a peer cannot be read.",
        "The peer is broken, or is not a queue manager.",
        "Nothing is lost: the messages stay until a valid acknowledgment comes. Check which "
        "program runs at that address.",
    ),
    Entry(
        1609,
        "acknowledgment_not_sent",
        "An acknowledgment message that an application requested was not sent.",
        "Its administration queue does not exist, is transactional, or is a journal or dead-letter"
        " queue.",
        "Create a queue that is not transactional and name it with --admin-queue.",
    ),
    Entry(
        1610,
        "order_ack_for_nothing",
        "A peer acknowledges messages of a sequence that this queue manager does not have.",
        "An old acknowledgment came late, or this queue manager has a new data folder.",
        "Nothing, if it happens once. If it happens often, check whether two queue "
        "managers use one name.",
    ),
    Entry(
        1611,
        "impossible_order_ack",
        "A peer acknowledges messages that were never sent.",
        "The peer is broken or hostile, or this data folder was restored from an old copy.",
        "No message is released by it. After a backup was restored, follow `qmd outgoing list`.",
    ),
    Entry(
        1612,
        "no_administration_queue",
        "The administration queue that a message names is not valid.",
        "The packet of the sender has an invalid queue name.",
        "Correct the sender.",
        "",
        "MQ_ERROR_ILLEGAL_FORMATNAME",
    ),
    Entry(
        1613,
        "socket_fault",
        "The operating system reported an error of a socket.",
        "Usually a limit of this host: too many open files, no memory for buffers.",
        "Read the reason in the line; raise LimitNOFILE of the service if it concerns open files.",
        "",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1614,
        "message_refused",
        "A message from another queue manager was rejected.",
        "The queue that it names does not exist here, accepts another kind of message, or is "
        "full. The reason in the line says which.",
        "Its sender is notified, and keeps it in a dead-letter queue. Create the queue, or "
        "correct the sender.",
    ),
    Entry(
        1615,
        "too_many_clients",
        "A client of the control socket was refused because there are too many.",
        "All clients_max places are taken, and the user in the line has no fewer than others.",
        "Let programs share a connection, or close it when they have finished; or raise "
        "clients_max in the section [control].",
        "",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1616,
        "question_not_answered",
        "Another queue manager asked for the history of a message, and got no answer.",
        "Its address is not in `answer` in the section [events], or it exceeded the limit of "
        "questions per second.",
        "Nothing is lost. To answer it, add its address to `answer` in the section [events].",
    ),
    Entry(
        1617,
        "question_not_understood",
        "A question about a message, or the answer to a question of this computer, cannot be read.",
        "It comes from a later release, or from a program that is not a queue manager.",
        "Nothing is lost: it is ignored. Check which program runs at that address.",
    ),
    Entry(
        1618,
        "peer_name_unknown",
        "The name of another computer cannot be resolved to an address.",
        "It is misspelt, or is in no name server and not in /etc/hosts.",
        "Try it with `getent hosts NAME`; correct the name, or use DIRECT=TCP:address\\queue.",
        "",
        "MQ_ERROR_RESOLVE_ADDRESS",
    ),
    Entry(
        1619,
        "peer_not_listening",
        "Another computer refuses connections at the port.",
        "Its queue manager is not running, listens at another address or port, or a firewall "
        "rejects connections.",
        "Start it there, and check at which address it listens (section [listen]; in Windows, "
        "the service MSMQ). Nothing is lost meanwhile.",
        "",
        "MQ_ERROR_REMOTE_MACHINE_NOT_AVAILABLE",
    ),
    Entry(
        1620,
        "peer_silent",
        "Another computer does not respond.",
        "It is off, its address is wrong, or a firewall drops packets to TCP port 1801.",
        "Ping it, and open the port in the firewalls on the way. Nothing is lost meanwhile.",
        "",
        "MQ_ERROR_REMOTE_MACHINE_NOT_AVAILABLE",
    ),
    Entry(
        1621,
        "peer_no_route",
        "There is no route to the network of the other computer.",
        "A cable, an interface or a route of this computer is missing, or a router on the way "
        "has no route.",
        "See `ip route get ADDRESS`. Nothing is lost meanwhile.",
        "",
        "MQ_ERROR_REMOTE_MACHINE_NOT_AVAILABLE",
    ),
    Entry(
        1622,
        "final_ack_for_nothing",
        "A peer sent a final acknowledgment for a message that it cannot acknowledge.",
        "It concerns no message of this queue manager, or a destination that belongs to another "
        "queue manager.",
        "It was ignored. If it continues, check which queue manager is at that address.",
    ),
    Entry(
        1623,
        "confirmed_too_late",
        "A message was received, although its dead letter is here.",
        "The confirmation came after its interval had expired, or after delivery had been given "
        "up for another reason.",
        "Do not send the dead letter again. If it happens often, see [delivery]"
        " xact_delay_receive_nack, or give messages a longer time-to-be-received.",
    ),
    Entry(
        1624,
        "no_route",
        "The directory has no route to another computer.",
        "Its site and the site of this computer have no links between them, or no "
        "routing server or site gate exists there.",
        "Configure a site link and gates, or a route in the section [routing]. Messages wait "
        "meanwhile, and the directory is asked again.",
        "",
        "",
    ),
    Entry(
        1625,
        "route_not_known",
        "The directory was asked for the route to another computer, and did not give it.",
        "It is unavailable, or has no such computer; the reason says which.",
        "Check `qmd directory status`. Messages wait meanwhile, and the directory is asked again.",
    ),
    Entry(
        1626,
        "no_room_for_others",
        "A message for another computer was not accepted: too many relayed messages wait here.",
        "Messages relayed to a computer that is unavailable stay here until it returns.",
        "Raise relay_bytes_max in the section [routing]. The sender keeps the message and retries.",
    ),
    Entry(
        1627,
        "order_ack_of_two_sources",
        "An order acknowledgment cannot be relayed back: it may belong to either of two sources.",
        "Two computers have sequences with the same number, and their destination, which does "
        "not run qmd and was addressed by a direct name over this relay, does not identify the "
        "source.",
        "Let one of the two send directly, or by a name with a GUID. Nothing is lost or "
        "duplicated; the sources keep sending their messages again until then.",
    ),
    Entry(
        1628,
        "two_of_one_identity",
        "Two machines have the GUID of one queue manager.",
        "One was cloned from an image with its data folder, or runs on an old backup of it.",
        "Give the clone a new data folder (`qmd init`), which has its own identity; then forget "
        "the GUID here: qmd session forget GUID. Until then the machine that connected last is "
        "served, and the other gets no session and keeps its messages.",
    ),
    Entry(
        1629,
        "too_many_names_of_a_queue",
        "A transactional message was not accepted: its source uses too many names for the queue.",
        "Each name of a queue (address, spelling, GUID) has its own sequence, and this source "
        "has used a hundred for one queue.",
        "Configure it to use one name. See `qmd sequence list`: a peer that creates ever new "
        "names is broken or hostile.",
    ),
    Entry(
        1630,
        "sequence_in_doubt",
        "A peer acknowledges transactional messages that are unknown in this data folder.",
        "This computer was restored from a backup, or two machines have its identity. Messages "
        "that wait for that destination may have arrived there before.",
        "Restart the sequence: qmd outgoing restart DESTINATION. Messages that may have been "
        "delivered become dead letters with that reason; with --send-again they are sent again.",
    ),
    Entry(
        1631,
        "restart_of_others",
        "The sequence of a relayed outgoing queue cannot be restarted here.",
        "Its messages come from other computers, and belong to their sequences.",
        "Run qmd outgoing restart on the computer from which they come.",
    ),
    Entry(
        1632,
        "session_made_room",
        "A session was ended, because another host needed its place.",
        "All sessions_max places were taken. The address in the line had the most sessions, or its"
        " session had sent nothing useful so far. No message is lost by it.",
        "See `qmd session list`; raise sessions_max in the section [peers] if all are legitimate, "
        "or exclude the address with `allow`.",
    ),
    Entry(
        1633,
        "too_many_pings",
        "Pings of an address are not answered.",
        "More arrive than a queue manager sends, or all addresses together send too many. The "
        "sender of a ping may be false.",
        "Exclude the address with `allow` in the section [peers], or set ping = false in [listen].",
    ),
    Entry(
        1634,
        "two_origins_of_one_identity",
        "Two programs at different addresses, or with different keys, state one GUID.",
        "One of them only claims it; or the queue manager has moved to another address, or has "
        "lost its key (identity.key in its data folder). Each is kept apart from the other: "
        "sequences and duplicates of one do not concern the other, and messages for the GUID go "
        "only to the one to which it is bound.",
        "See both: qmd peer list GUID. Bind the GUID to the genuine one: qmd peer pin GUID FACT; "
        "for a host that has moved: qmd peer pin GUID FACT --join. Take the address of a false "
        "one out of [peers] allow.",
    ),
    Entry(
        1635,
        "peer_not_recorded",
        "The identity of a peer is not recorded: the limit is reached.",
        "One address has stated more than 1000 GUIDs, or more than 50,000 peers are known. Its "
        "messages are accepted, but the GUID is not bound to it.",
        "If the address is that of many genuine computers: qmd peer pin GUID FACT for each. "
        "Otherwise take it out of [peers] allow.",
    ),
    Entry(
        1636,
        "few_open_files",
        "The process may open fewer files than its connections need (in the log).",
        "The limit of open files, RLIMIT_NOFILE, is lower than sessions_max, handshakes_max and "
        "clients_max together, with a reserve.",
        "Raise the limit (LimitNOFILE of the service, `ulimit -n`), or lower these settings. Until "
        "then fewer connections are allowed, as the line says.",
        "",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1637,
        "streams_forgotten",
        "The table of incoming sequences is full; idle ones were forgotten (in the log).",
        "One address has begun more sequences than all others, with many made-up or many genuine"
        " sources. Messages of a forgotten sequence that come again may be accepted twice.",
        "Take a hostile address out of [peers] allow. Pin a genuine queue manager (`qmd peer pin`):"
        " its sequences are kept.",
    ),
    Entry(
        1638,
        "sequence_held",
        "A transactional message was not accepted: its sequence may be that of another host (log).",
        "It has the sequence id of a stream of its source from another address, and nothing proves"
        " which of the two hosts is the source: a session with the other one is open, or many wrong"
        " ids came in the name of the source.",
        "Its sender keeps the message and sends it again. If the other address is false, take it"
        " out of [peers] allow and run `qmd session forget GUID`; if the source has moved, end the"
        " session with its former address.",
    ),
)
