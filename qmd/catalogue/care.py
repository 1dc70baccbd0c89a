"""Errors of backups and restorations."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        3401,
        "backup_failed",
        "A backup was not made or not restored.",
        "The disk of the folder or of the backup is full, cannot be read or cannot be written. The "
        "error says which.",
        "Remove the cause and repeat the command. The data folder is unchanged.",
    ),
    Entry(
        3402,
        "backup_damaged",
        "A backup is damaged or not complete.",
        "Bytes of a file changed or are missing, or an earlier file that it needs was removed.",
        "Restore another backup: `qmd restore SOURCE --list`, then --number.",
    ),
    Entry(
        3403,
        "not_a_backup",
        "A file is not a backup of qmd.",
        "Another program wrote it, or its beginning is damaged.",
        "Name a file that `qmd backup` wrote, or a folder with such files.",
    ),
    Entry(
        3404,
        "backup_newer",
        "A backup has a format that this version of qmd does not know.",
        "A later version made it.",
        "Install that version, or a later one.",
    ),
    Entry(
        3405,
        "backup_key_missing",
        "A backup is encrypted with a key that was not named.",
        "--key is missing, or names another key. The error has the id of the key.",
        "Name the file of the key: --key FILE. Without the key the backup cannot be read.",
    ),
    Entry(
        3406,
        "backup_of_another",
        "The folder has backups of another queue manager.",
        "Two queue managers would share one folder of backups.",
        "Give each queue manager a folder of its own for its backups.",
    ),
    Entry(
        3407,
        "backup_disk_short",
        "A backup was given up, because the disk of the data folder is short of space.",
        "The write-ahead log cannot shrink during a backup, and traffic goes on.",
        "Free space, or make the backup when there is less traffic.",
    ),
    Entry(
        3408,
        "backup_busy",
        "Another backup to the same folder is under way.",
        "Two commands write to one folder of backups.",
        "Wait until the other one has ended.",
    ),
    Entry(
        3409,
        "no_such_backup",
        "There is no such backup in the folder.",
        "The number is wrong, or the folder has no backups.",
        "List them: `qmd restore SOURCE --list`.",
    ),
    Entry(
        3410,
        "restore_refused",
        "A restoration would overwrite a folder.",
        "The data folder is not empty, or is a symbolic link.",
        "Give --replace, which keeps the present folder under another name, or name another "
        "folder with --folder.",
    ),
    Entry(
        3411,
        "restore_clock_behind",
        "The clock of this computer is behind the time of the backup.",
        "The clock is wrong. Sequences of messages begin with the time, and would be taken for old "
        "ones.",
        "Set the clock, and repeat the command.",
    ),
    Entry(
        3412,
        "config_not_reloaded",
        "The daemon has not taken over its configuration.",
        "The file has an error, which is named.",
        "Correct it (`qmd config check`), and reload again. The settings in use are unchanged.",
    ),
    Entry(
        3413,
        "configuration_not_reloaded",
        "A reload has changed nothing, because the configuration has an error (in the log).",
        "The file was changed, and a value is not allowed.",
        "Correct it (`qmd config check`), and reload again.",
    ),
    Entry(
        3414,
        "remote_certificate_not_renewed",
        "The certificate of remote control was not read again (in the log).",
        "The certificate or its key cannot be read, or they do not belong together.",
        "Correct the files, and reload again. The former certificate stays in use.",
    ),
)
