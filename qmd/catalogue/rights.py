"""Errors of rights and principals."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        9001,
        "right_missing",
        "The client lacks a right that the request needs.",
        "No entry of access control gives the right to its user, one of its groups or its token;"
        " or an entry denies it.",
        "The error names the right, the object and the command that grants it (`qmd acl grant`);"
        " `qmd acl test` shows which entry decides.",
        "access_denied",
        "MQ_ERROR_ACCESS_DENIED",
    ),
    Entry(
        9002,
        "bad_principal",
        "The text is not the name of a principal.",
        "It has no kind, such as user: or group:, or its name has the wrong form.",
        "See docs/access.md for the kinds of principals.",
        "bad_request",
    ),
    Entry(
        9003,
        "unknown_principal",
        "There is no user or group with this name on the computer.",
        "The name is misspelled, the account was deleted, or the name service does not answer.",
        "Check it with `getent passwd` or `getent group`; an id is always possible: user:1000.",
        "bad_request",
    ),
    Entry(
        9004,
        "bad_right",
        "The text is not the name of a right.",
        "The right is misspelled, or it is a right on the host and a queue is named, or the"
        " reverse.",
        "The error lists the rights that are possible.",
        "bad_request",
    ),
    Entry(
        9005,
        "too_many_entries",
        "An object has the largest number of entries.",
        "Each decision reads the entries of its object, so their number is limited.",
        "Grant rights to groups instead of users.",
        "over_quota",
    ),
    Entry(
        9006,
        "too_many_owned",
        "A user has the largest number of queues.",
        "queues_max in the section [access] limits the queues of a user that is no administrator.",
        "Delete queues, or raise the limit.",
        "over_quota",
    ),
    Entry(
        9007,
        "entries_of_another_queue",
        "The object has no entries of its own.",
        "A subqueue and a journal have the entries and the owner of their queue.",
        "Name the queue that it belongs to.",
        "bad_request",
    ),
    Entry(
        9008,
        "no_such_entry",
        "No entry of the object gives or denies these rights to the principal.",
        "They were revoked before, or come from another object or a default.",
        "`qmd acl show` lists the entries; `qmd acl test` shows which one decides.",
        "not_found",
    ),
    Entry(
        9009,
        "owner_not_allowed",
        "The principal cannot own a queue.",
        "Only a user, a token, a service or a user of a door can be an owner.",
        "Name one of them; rights of groups are entries.",
        "bad_request",
    ),
    Entry(
        9010,
        "access_refused",
        "A request of a client was refused, because it lacks a right (in the log).",
        "A program runs as another user than intended, or a user tries what it may not do.",
        "The line has the client, the right and the object; `qmd acl grant` grants it.",
    ),
    Entry(
        9011,
        "administrator_not_understood",
        "An administrator of the configuration is not the name of a user or group (in the log).",
        "administrators in the section [access] has another form than user:NAME or group:NAME.",
        "Correct the setting, and start the daemon again.",
    ),
    Entry(
        9012,
        "acting_not_allowed",
        "The connection cannot act for a user of a door.",
        "It acts for one already, or is a connection of the port for remote control.",
        "Open a new connection to the control socket for each user.",
        "access_denied",
    ),
    Entry(
        9013,
        "principal_of_no_door",
        "A door cannot act for a principal of this kind.",
        "A door proves names of SASL, certificates and addresses; it cannot become a user of this"
        " computer.",
        "Grant the rights to the principal that the door proves, such as sasl:NAME.",
        "access_denied",
    ),
)
