"""Errors of the directory."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        7001,
        "directory_failed",
        "The directory answered with an error for which qmd has no specific code.",
        "The error contains the message of the server.",
        "Check `qmd directory status` and the log of the server.",
        "directory",
        "MQ_ERROR_DS_ERROR",
    ),
    Entry(
        7002,
        "not_in_directory",
        "The directory has no such queue, list, alias or computer.",
        "The GUID or path was mistyped, or its entry was deleted or has not been replicated to "
        "the server that was asked. A missing entry is remembered for a while (negative_age in "
        "the section [directory]).",
        "Run `qmd directory lookup NAME --fresh` to ask again. A direct name needs no directory.",
        "no_such_queue",
        "MQ_ERROR_QUEUE_NOT_FOUND",
    ),
    Entry(
        7003,
        "directory_away",
        "The directory does not answer, and its cached answer is too old.",
        "Its server is down, cannot be reached, or answers too late; or its file was never "
        "valid. Nothing was sent, not even to destinations that need no directory.",
        "Check `qmd directory status`. Direct names work meanwhile: DIRECT=OS:host\\orders.",
        "directory",
        "MQ_ERROR_NO_DS",
    ),
    Entry(
        7004,
        "directory_entry_unusable",
        "An entry of the directory exists, but is not usable.",
        "A member of a list is not a queue, alias or list, an alias has no format name, or a "
        "queue has no computer. The error names the entry.",
        "Correct the entry in the directory.",
        "directory",
        "MQ_ERROR_NOT_A_CORRECT_OBJECT_CLASS",
    ),
    Entry(
        7005,
        "directory_read_only",
        "The directory cannot be changed by this queue manager.",
        "The user of the daemon has no permission to write the file of [directory], or no "
        "directory is configured.",
        "Edit it by hand, or permit the user of the daemon to write the file and its folder.",
        "directory",
        "MQ_ERROR_WRITE_NOT_ALLOWED",
    ),
    Entry(
        7006,
        "directory_denied",
        "The directory does not permit this to the account of the daemon.",
        "The account that the daemon uses there may read this entry but not change it.",
        "Give the account the permission, or let an administrator create the entry.",
        "directory",
        "MQ_ERROR_ACCESS_DENIED",
    ),
    Entry(
        7007,
        "already_in_directory",
        "The directory already has an entry of that name.",
        "Names are compared without case, and are unique: a queue on its computer, a "
        "list in the whole directory.",
        "Choose another name, or delete the existing entry.",
        "directory",
        "MQ_ERROR_QUEUE_EXISTS",
    ),
    Entry(
        7008,
        "too_many_targets",
        "The name stands for more queues than one message can be sent to.",
        "Distribution lists were expanded, and 10,000 queues and lists are the limit: a packet "
        "lists all of them.",
        "Send to parts of the list, or to shorter lists.",
        "bad_name",
        "MQ_ERROR_INSUFFICIENT_RESOURCES",
    ),
    Entry(
        7009,
        "directory_file_unreadable",
        "The file of the directory cannot be read.",
        "It does not exist, the user of the daemon may not read it, or it is far too long.",
        "Check file in the section [directory] of the configuration, and the permissions "
        "of the file.",
        "configuration",
    ),
    Entry(
        7010,
        "directory_file_broken",
        "The file of the directory is not valid.",
        "It is not TOML, or has an unknown key, a duplicate name, or a reference to a missing "
        "entry. The error gives file and line. The contents that the daemon read before stay in "
        "force.",
        "Correct the line; `qmd directory check FILE` validates the file. The daemon reads it "
        "again automatically.",
        "configuration",
    ),
    Entry(
        7011,
        "directory_not_asked",
        "The directory must be asked about a name first, and the request could not wait for that.",
        "The cached answer about the name became too old in the middle of the request.",
        "Try again: the directory is being asked.",
        "directory",
    ),
    Entry(
        7012,
        "directory_entry_left",
        "A public queue was deleted, and its entry is still in the directory. In the log.",
        "The queue was created while the configuration named a directory, and it names none now.",
        "Delete the entry there by hand; otherwise other computers continue to send to it.",
        "directory",
    ),
    Entry(
        7013,
        "name_needs_no_directory",
        "The name does not refer to an entry of a directory.",
        "It is a private or direct name, or a queue of the queue manager itself.",
        "Run `qmd name explain NAME` to see what it stands for.",
        "bad_name",
    ),
    Entry(
        7014,
        "list_is_empty",
        "The destination contains no queue.",
        "It is a distribution list without members, or one of lists without members.",
        "Add a member: `qmd dl add NAME QUEUE`.",
        "bad_name",
    ),
    Entry(
        7030,
        "directory_identity_differs",
        "The directory knows the queue manager of this computer by another id than its own.",
        "The directory assigns the id, and this queue manager generated one when it was created "
        "without the directory. Other computers would look for its public queues under an id to "
        "which it does not answer.",
        "Create a new data folder with kind active-directory configured: its queue manager "
        "adopts the id of the directory. Or use private queues and direct names.",
        "directory",
    ),
    Entry(
        7031,
        "ldap_missing",
        "Active Directory needs Python packages that are not installed.",
        "The configuration has kind active-directory, and the extra `directory` is not installed.",
        "Install it: pip install '.[directory]'; for an installed service see"
        " docs/active-directory.md.",
        "configuration",
    ),
    Entry(
        7032,
        "directory_entry_differs",
        "A public queue was changed, and its entry in the directory was not. In the log.",
        "The account that is used there may not change it, the directory cannot be written, or "
        "it does not accept the value.",
        "Change the entry there by hand, or correct the cause in the log and change the queue "
        "again: `qmd queue set`.",
        "directory",
    ),
)
