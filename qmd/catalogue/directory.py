"""Errors of the directory."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        7001,
        "directory_failed",
        "The directory answered with an error that qmd has no more precise word for.",
        "The error says what the server said.",
        "See `qmd directory status` and the server's own log.",
        "directory",
        "MQ_ERROR_DS_ERROR",
    ),
    Entry(
        7002,
        "not_in_directory",
        "The directory has no such queue, list, alias or computer.",
        "The GUID or path was mistyped, or its entry was deleted or has not come to the server that"
        " was asked. That an entry is not there is remembered for a while (negative_age in the"
        " section [directory]).",
        "`qmd directory lookup NAME --fresh` asks anew. A direct name needs no directory.",
        "no_such_queue",
        "MQ_ERROR_QUEUE_NOT_FOUND",
    ),
    Entry(
        7003,
        "directory_away",
        "The directory does not answer, and what it said earlier is too old.",
        "Its server is down, cannot be reached, or answers too late; or its file was never whole."
        " Nothing was sent, not even to those destinations that need no directory.",
        "See `qmd directory status`. Direct names work meanwhile: DIRECT=OS:host\\orders.",
        "directory",
        "MQ_ERROR_NO_DS",
    ),
    Entry(
        7004,
        "directory_entry_unusable",
        "An entry of the directory is there, but is not what it has to be.",
        "A member of a list that is no queue, alias or list, an alias without a format name, or a"
        " queue without its computer. The error names the entry.",
        "Mend the entry in the directory.",
        "directory",
        "MQ_ERROR_NOT_A_CORRECT_OBJECT_CLASS",
    ),
    Entry(
        7005,
        "directory_read_only",
        "The directory cannot be changed from here.",
        "The file of [directory] may not be written by the daemon's user, or there is no directory"
        " at all.",
        "Edit it by hand, or give the daemon's user the right to write it and its folder.",
        "directory",
        "MQ_ERROR_WRITE_NOT_ALLOWED",
    ),
    Entry(
        7006,
        "directory_denied",
        "The directory does not let the daemon's account do this.",
        "The account that the daemon uses there may read, and not change this entry.",
        "Give the account the right, or have an administrator make the entry.",
        "directory",
        "MQ_ERROR_ACCESS_DENIED",
    ),
    Entry(
        7007,
        "already_in_directory",
        "The directory has an entry of that name already.",
        "Names are unique without case: a queue on its computer, a list in the whole directory.",
        "Choose another name, or delete the entry that is there.",
        "directory",
        "MQ_ERROR_QUEUE_EXISTS",
    ),
    Entry(
        7008,
        "too_many_targets",
        "The name stands for more queues than one message can be sent to.",
        "Distribution lists were expanded, and 10,000 queues and lists are the most: a packet"
        " lists all of them.",
        "Send to parts of the list, or to lists that are shorter.",
        "bad_name",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        7009,
        "directory_file_unreadable",
        "The file of the directory cannot be read.",
        "It is not there, or the daemon's user may not read it, or it is far too long.",
        "See file in the section [directory] of the configuration, and the rights of the file.",
        "configuration",
    ),
    Entry(
        7010,
        "directory_file_broken",
        "The file of the directory is not as it has to be.",
        "It is no TOML, or has an unknown key, a name twice, or names what is not in it. The error"
        " says file and line. What the daemon had read before stays in force.",
        "Mend the line; `qmd directory check FILE` says whether it is whole. The daemon reads it by"
        " itself.",
        "configuration",
    ),
    Entry(
        7011,
        "directory_not_asked",
        "The directory has to be asked about a name first, and the request could not wait for it.",
        "What the directory said about the name became too old in the middle of the request.",
        "Try again: it is being asked.",
        "directory",
    ),
    Entry(
        7012,
        "directory_entry_left",
        "A public queue was deleted, and its entry is still in the directory. In the log.",
        "The queue was created while the configuration named a directory, and it names none now.",
        "Delete the entry there by hand, or others go on sending to it.",
        "directory",
    ),
    Entry(
        7013,
        "name_needs_no_directory",
        "The name is of no entry that a directory has.",
        "It is a private or direct name, or a queue of the queue manager itself.",
        "`qmd name explain NAME` says what it stands for.",
        "bad_name",
    ),
    Entry(
        7014,
        "list_is_empty",
        "The destination stands for no queue at all.",
        "It is a distribution list without members, or of lists without members.",
        "Add a member: `qmd dl add NAME QUEUE`.",
        "bad_name",
    ),
    Entry(
        7030,
        "directory_identity_differs",
        "The directory knows the queue manager of this computer by another id than its own.",
        "The directory gives the id, and this queue manager made up one when it began, without the"
        " directory. Others would look for its public queues under an id to which it does not"
        " answer.",
        "Begin a new data folder with kind active-directory configured: its queue manager takes the"
        " directory's id. Or use private queues and direct names.",
        "directory",
    ),
    Entry(
        7031,
        "ldap_missing",
        "Active Directory needs Python packages that are not installed.",
        "The configuration says kind active-directory, and the extra `directory` is missing.",
        "Install it: pip install '.[directory]'; for an installed service see"
        " docs/active-directory.md.",
        "configuration",
    ),
    Entry(
        7032,
        "directory_entry_differs",
        "A public queue was changed, and its entry in the directory was not. In the log.",
        "The account that is used there may not change it, the directory cannot be written, or it"
        " takes no such value.",
        "Change the entry there by hand, or mend what the log says and change the queue again:"
        " `qmd queue set`.",
        "directory",
    ),
)
