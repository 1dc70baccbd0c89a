"""Errors of queues."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        1201,
        "no_such_queue",
        "This queue manager has no such queue.",
        "It was never created, was deleted, or is spelt differently.",
        "See `qmd queue list`; create it with `qmd queue create`.",
        "",
        "MQ_ERROR_QUEUE_NOT_FOUND",
    ),
    Entry(
        1202,
        "queue_elsewhere",
        "The queue belongs to another computer, and can only be read and managed there.",
        "The name has the host of another computer, or one that is not a name of this queue "
        "manager (name and aliases in the section [queue_manager]).",
        "Run the command on that computer. For messages on their way to it, see `qmd "
        "outgoing list`.",
        "no_such_queue",
        "MQ_ERROR_UNSUPPORTED_FORMATNAME_OPERATION",
    ),
    Entry(
        1203,
        "no_such_outgoing_queue",
        "There is no outgoing queue to that destination.",
        "Nothing was sent there yet: the first message creates an outgoing queue.",
        "See `qmd outgoing list`.",
        "no_such_queue",
        "MQ_ERROR_QUEUE_NOT_FOUND",
    ),
    Entry(
        1204,
        "queue_exists",
        "A queue of that name already exists.",
        "Names are compared without regard to upper and lower case.",
        "Choose another name, or delete the queue first.",
        "",
        "MQ_ERROR_QUEUE_EXISTS",
    ),
    Entry(
        1205,
        "queue_read_only",
        "Journals, dead-letter queues and subqueues can be read, but not sent to.",
        "Only the queue manager itself puts messages into such a queue.",
        "Send to a queue of an application; `qmd move` moves messages to a subqueue.",
        "read_only",
        "MQ_ERROR_ACCESS_DENIED",
    ),
    Entry(
        1206,
        "system_queue_elsewhere",
        "A journal or dead-letter queue of another computer cannot be sent to.",
        "The destination's name ends in ;journal, ;deadletter or ;deadxact.",
        "Read it on its own computer; send to a queue of an application.",
        "read_only",
        "MQ_ERROR_UNSUPPORTED_FORMATNAME_OPERATION",
    ),
    Entry(
        1207,
        "system_queue_kept",
        "A queue that belongs to the queue manager cannot be deleted.",
        "It is a journal, a dead-letter queue or the queue of order acknowledgments.",
        "Purge it instead: `qmd queue purge`.",
        "read_only",
        "MQ_ERROR_ACCESS_DENIED",
    ),
    Entry(
        1208,
        "bad_quota",
        "The quota is not valid.",
        "It is negative, or exceeds 63 bits.",
        "Give a size such as 500MB.",
        "bad_request",
        "MQ_ERROR_ILLEGAL_PROPERTY_VALUE",
    ),
    Entry(
        1209,
        "queue_label_too_long",
        "The label of a queue is too long.",
        "It has more characters than MSMQ allows (124 in Windows, 249 here).",
        "Shorten it.",
        "bad_request",
        "MQ_ERROR_LABEL_TOO_LONG",
    ),
    Entry(
        1210,
        "too_many_queues",
        "No more queues can be created.",
        "All queue ids are in use.",
        "Delete queues that are not needed.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1211,
        "too_many_destinations",
        "No more outgoing queues can be created.",
        "Messages wait for so many different queues of other computers that all ids are in use; "
        "for acknowledgments, which untrusted connections can request, half of the ids. Ids of "
        "destinations without waiting messages are reused automatically, unless they are paused "
        "or redirected.",
        "See `qmd outgoing list`: look for unintended destinations.",
        "over_quota",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        1212,
        "system_queue_unchanged",
        "Only the quota of the journal can be changed for a queue that belongs to the "
        "queue manager.",
        "Dead letters must be kept, so that no message is lost without a record.",
        "Purge it to make room: `qmd queue purge`.",
        "read_only",
        "MQ_ERROR_ACCESS_DENIED",
    ),
    Entry(
        1213,
        "subqueue_unchanged",
        "A subqueue or the journal of a queue has no properties of its own.",
        "Its kind and its quotas are those of its parent queue.",
        "Change that queue: `qmd queue set orders --journal-quota 1GB`.",
        "read_only",
        "MQ_ERROR_ACCESS_DENIED",
    ),
    Entry(
        1214,
        "dead_letters_expected",
        "The queue is named for the dead letters of messages under way, and cannot be deleted.",
        "Each of them may still fail to be delivered, and is then stored in this queue.",
        "Wait until they are delivered or dead (`qmd outgoing list`), or purge the queue.",
        "read_only",
    ),
    Entry(
        1215,
        "no_destination",
        "The message does not contain its original destination.",
        "It has a name that only a directory knows, or several destinations.",
        "Name the destination: `qmd resend QUEUE LOOKUP-ID --to orders@hostb`.",
        "bad_request",
        "MQ_ERROR_ILLEGAL_FORMATNAME",
    ),
    Entry(
        1216,
        "several_destinations",
        "It is ambiguous to which of several destinations a message was sent.",
        "Their names differ in their ports only, and messages do not contain ports.",
        "Name the destination: `qmd dead-letter requeue --all --to orders@hostb:1802`.",
        "bad_request",
        "MQ_ERROR_ILLEGAL_FORMATNAME",
    ),
    Entry(
        1217,
        "redirect_not_direct",
        "An outgoing queue without an address of its own cannot be redirected.",
        "Its name is a GUID, or it contains relayed messages.",
        "Redirect queues with DIRECT= names; for others see [routing] and the directory.",
    ),
    Entry(
        1218,
        "redirect_two_sequences",
        "A redirect would send two sequences to one queue.",
        "Transactional messages were sent to the queue by the old name and by the new one, and "
        "the receiver may abandon the older sequence in favour of the newer one: it is not "
        "known to run qmd, or the two names are the same in packets, which do not contain ports.",
        "Use one name. Check which messages have arrived, purge the old queue, and resend the "
        "dead letters that are still needed to the new name.",
    ),
    Entry(
        1219,
        "too_many_acknowledgments",
        "Another host asks for acknowledgments to too many queues.",
        "Each queue elsewhere takes an outgoing queue here, and those that one host, or all other "
        "hosts, may cause are limited. The message itself was handled; only this acknowledgment "
        "was not made.",
        "See `qmd status` for the host. If it is genuine, raise queues_per_host or queues in the "
        "section [consequences].",
    ),
    Entry(
        1220,
        "bad_privacy",
        "There is no such level of privacy of a queue.",
        "The word is not one of those that queues have.",
        "It is none, optional or body.",
        "bad_request",
        "MQ_ERROR_ILLEGAL_PROPERTY_VALUE",
    ),
)
