"""What the log tells of other queue managers, and of clients, that something kept from working."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        1601,
        "peer_unreachable",
        "No connection with another queue manager can be opened.",
        "The system's own words in the line say why; common causes have errors of their own.",
        "Nothing is lost meanwhile, and it is tried again and again. See `qmd outgoing show`, and"
        " try now with `qmd outgoing kick`.",
        "",
        "MQ_ERROR_REMOTE_MACHINE_NOT_AVAILABLE",
    ),
    Entry(
        1602,
        "peer_not_allowed",
        "A connection from a computer that may not connect was closed.",
        "Its address is in none of the networks of `allow` in the section [peers].",
        "Add its network there, if it shall connect.",
        "",
        "MQ_ERROR_ACCESS_DENIED",
    ),
    Entry(
        1603,
        "too_many_connections",
        "A connection was closed because there are too many.",
        "The limit of connections is reached, or that of one address.",
        "See `qmd session list`; raise the limits in the section [peers] if they are all meant.",
        "",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1604,
        "too_many_handshakes",
        "The oldest connection that has not finished its handshake had to give way.",
        "Somebody opens connections and says nothing: a port scanner, a load balancer's probe, or"
        " an attack.",
        "See which address the lines name; keep it out with `allow` in the section [peers].",
    ),
    Entry(
        1605,
        "session_refused",
        "A session with another queue manager was refused.",
        "The limit of sessions is reached, or that of one peer.",
        "See `qmd session list`; raise the limits in the section [peers].",
        "",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1606,
        "session_closed_for_lack_of_room",
        "A session was closed because no further message can be taken in.",
        "A quota of this queue manager is reached, or its disk is full; the line says which. The"
        " sender keeps its messages, and tries again.",
        "Make room: receive or purge messages, or allow more.",
        "",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1607,
        "too_many_streams",
        "A transactional message was not taken because there are too many streams.",
        "So many different senders and queues have sequences here that no further one is"
        " remembered.",
        "See `qmd sequence list`: a peer that invents new sequences is broken or hostile.",
    ),
    Entry(
        1608,
        "acknowledgment_not_understood",
        "An order or final acknowledgment from a peer cannot be read.",
        "The peer is broken, or no queue manager.",
        "Nothing is lost: the messages stay until a proper acknowledgment comes. Look at what"
        " runs at that address.",
    ),
    Entry(
        1609,
        "acknowledgment_not_sent",
        "An acknowledgment message that an application asked for was not sent.",
        "Its administration queue does not exist, is transactional, or is a journal or dead-letter"
        " queue.",
        "Create a queue that is not transactional and name it with --admin-queue.",
    ),
    Entry(
        1610,
        "order_ack_for_nothing",
        "A peer acknowledges messages of a sequence that this queue manager does not have.",
        "An old acknowledgment came late, or this queue manager has a new data folder.",
        "Nothing, when it happens once. Often: see whether two queue managers use one name.",
    ),
    Entry(
        1611,
        "impossible_order_ack",
        "A peer acknowledges messages that were never sent.",
        "The peer is broken or hostile, or this data folder is an old copy that was put back.",
        "Nothing is released by it. After a backup was restored, see `qmd outgoing list`, which"
        " says what to do.",
    ),
    Entry(
        1612,
        "no_administration_queue",
        "The administration queue that a message names cannot be read.",
        "The sender's packet names a queue in a way that leads nowhere.",
        "Correct the sender.",
        "",
        "MQ_ERROR_ILLEGAL_FORMATNAME",
    ),
    Entry(
        1613,
        "socket_fault",
        "The operating system reports a fault of a socket.",
        "Mostly a limit of this host: too many open files, no memory for buffers.",
        "See the reason in the line; raise LimitNOFILE of the service if it is about open files.",
        "",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1614,
        "message_refused",
        "A message from another queue manager was refused for good.",
        "The queue that it names does not exist here, takes another kind of message, or is full."
        " The reason in the line says which.",
        "Its sender is told, and keeps it in a dead-letter queue. Create the queue, or correct the"
        " sender.",
    ),
    Entry(
        1615,
        "too_many_clients",
        "A client of the control socket was turned away because there are too many.",
        "1024 programs have a connection open.",
        "Have programs share a connection, or close it when they are done.",
        "",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1616,
        "question_not_answered",
        "Another queue manager asked what is known of a message, and got no answer.",
        "Its address is not among `answer` in the section [events], or more questions came than"
        " are answered in a second.",
        "Nothing is lost. To answer it, add its address to `answer` in the section [events].",
    ),
    Entry(
        1617,
        "question_not_understood",
        "A question about a message, or the answer to one of ours, cannot be read.",
        "It comes from a later release, or from something that is no queue manager.",
        "Nothing is lost: it is passed over. Look at what runs at that address.",
    ),
    Entry(
        1618,
        "peer_name_unknown",
        "The name of another computer cannot be turned into an address.",
        "It is misspelt, or no name server and no line of /etc/hosts knows it.",
        "Try it with `getent hosts NAME`; correct the name, or use DIRECT=TCP:address\\queue.",
        "",
        "MQ_ERROR_RESOLVE_ADDRESS",
    ),
    Entry(
        1619,
        "peer_not_listening",
        "Another computer answers, and nobody listens at the port.",
        "Its queue manager does not run, listens at another address or port, or a firewall"
        " rejects connections.",
        "Start it there, and see at which address it listens (section [listen]; in Windows, the"
        " service MSMQ). Nothing is lost meanwhile.",
        "",
        "MQ_ERROR_REMOTE_MACHINE_NOT_AVAILABLE",
    ),
    Entry(
        1620,
        "peer_silent",
        "Another computer does not answer at all.",
        "It is off, its address is wrong, or a firewall swallows what is sent to TCP port 1801.",
        "Ping it, and open the port in the firewalls on the way. Nothing is lost meanwhile.",
        "",
        "MQ_ERROR_REMOTE_MACHINE_NOT_AVAILABLE",
    ),
    Entry(
        1621,
        "peer_no_route",
        "There is no way to the other computer's network.",
        "A cable, an interface or a route of this computer is missing, or a router on the way"
        " knows none.",
        "See `ip route get ADDRESS`. Nothing is lost meanwhile.",
        "",
        "MQ_ERROR_REMOTE_MACHINE_NOT_AVAILABLE",
    ),
    Entry(
        1622,
        "final_ack_for_nothing",
        "A peer sent a final acknowledgment that is not for it to send.",
        "It is about no message of this queue manager's, or about a destination that another queue"
        " manager answers for.",
        "It was ignored. If it goes on, look which queue manager is at that address.",
    ),
    Entry(
        1623,
        "confirmed_too_late",
        "A message was received after all, and its dead letter is here.",
        "The confirmation came when the interval for it was over, or after the message had been"
        " given up for another reason.",
        "Do not send the dead letter again. If it happens often, see [delivery]"
        " xact_delay_receive_nack, or give messages a longer time-to-be-received.",
    ),
    Entry(
        1624,
        "no_route",
        "The directory knows no way to another computer.",
        "Its site and ours have no links between them, or no routing server or site gate is there.",
        "Give the sites a link and gates, or write a route into the section [routing]. Messages"
        " wait meanwhile, and the directory is asked again.",
        "",
        "",
    ),
    Entry(
        1625,
        "route_not_known",
        "The directory was asked for the way to another computer, and did not say it.",
        "It is away, or has no such computer; the reason says which.",
        "See `qmd directory status`. Messages wait meanwhile, and it is asked again.",
    ),
    Entry(
        1626,
        "no_room_for_others",
        "A message for another computer was not taken: too much waits here for others.",
        "What was passed on to a computer that is away stays here until it comes back.",
        "Raise relay_bytes_max in the section [routing]. The sender keeps the message and tries"
        " again.",
    ),
    Entry(
        1627,
        "order_ack_of_two_sources",
        "An order acknowledgment cannot be passed back: it may be for either of two sources.",
        "Two computers have sequences of one number, and their destination, which runs no qmd and"
        " was addressed by a direct name over this relay, does not say whose it acknowledges.",
        "Let one of the two be sent to directly, or by a name with a GUID. Nothing is lost or"
        " doubled; the sources send again and are not released.",
    ),
    Entry(
        1628,
        "two_of_one_identity",
        "Two machines bear the GUID of one queue manager.",
        "One was cloned from an image with its data folder, or runs on an old backup of it.",
        "Give the clone a new data folder (`qmd init`), which has an identity of its own; then"
        " forget the GUID here: qmd session forget GUID. Until then the one that was met last is"
        " served, and the other gets no session; its messages stay where they are.",
    ),
    Entry(
        1629,
        "too_many_names_of_a_queue",
        "A transactional message was not taken: its source knows the queue by too many names.",
        "Each name of a queue (address, spelling, GUID) is a stream of its own, and this source has"
        " used a hundred for one queue.",
        "Let it use one name. See `qmd sequence list`: a peer that invents names is broken or"
        " hostile.",
    ),
    Entry(
        1630,
        "sequence_in_doubt",
        "A peer acknowledges transactional messages that this data folder knows nothing of.",
        "This computer was restored from a backup, or two machines have its identity. What waits"
        " for that destination may have arrived there before.",
        "Begin the sequence anew: qmd outgoing restart DESTINATION. What may have been delivered"
        " becomes dead letters that say so; with --send-again it is sent again.",
    ),
    Entry(
        1631,
        "restart_of_others",
        "The sequence of an outgoing queue for others cannot be begun anew.",
        "Its messages come from other computers, and bear sequences of theirs.",
        "Run qmd outgoing restart on the computer that they come from.",
    ),
)
