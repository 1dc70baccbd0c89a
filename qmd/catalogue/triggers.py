"""Errors of triggers."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        6101,
        "trigger_not_valid",
        "The definition of a trigger is not valid.",
        "The error names the field, the condition or the argument.",
        "`qmd trigger create --help` and docs/triggers.md describe it.",
    ),
    Entry(
        6102,
        "trigger_exists",
        "There is such a trigger already, or it conflicts with one of the same queue.",
        "Names are unique, and several triggers of a queue must all peek.",
        "Choose another name, or delete or disable the other trigger.",
    ),
    Entry(
        6103,
        "no_such_trigger",
        "There is no trigger or no rule of that name.",
        "It was never created, or it was deleted.",
        "`qmd trigger list` lists them.",
    ),
    Entry(
        6104,
        "trigger_file",
        "The file with the triggers cannot be read or written.",
        "file in the section [triggers] names a file or folder that the user of this process cannot"
        " use, that other users own or can write, or that has another content.",
        "Correct the setting or the permissions; the triggers that run stay as they are.",
    ),
    Entry(
        6105,
        "trigger_action_foreign",
        "The trigger has an action of Windows without a counterpart here.",
        "It calls a COM component, or no program was named for that of Windows.",
        "Delete the rule and add another one, or import again with --program.",
    ),
    Entry(
        6106,
        "trigger_waits",
        "A trigger cannot take messages of its queue now (in the log).",
        "The daemon does not run, the queue does not exist, or the user of the triggers lacks a"
        " right.",
        "The reason says which; it is tried again. `qmd acl grant` grants the rights.",
    ),
    Entry(
        6107,
        "trigger_action_failed",
        "A program or a call of a trigger failed (in the log).",
        "The reason has the exit code and the last line of its errors, or the answer of the URL.",
        "Correct the cause; a message that was received is tried again.",
    ),
    Entry(
        6108,
        "trigger_without_policy",
        "The retry policy of the queue of a trigger cannot be seen (in the log).",
        "The user of the triggers lacks the right to see the properties of the queue.",
        "The attempts and pauses of the trigger hold; `qmd acl grant user:qmd-trigger"
        " get-properties QUEUE` grants the right.",
    ),
    Entry(
        6109,
        "trigger_failed",
        "A trigger failed (in the log).",
        "A fault of qmd. The message returned to its queue.",
        "Report it with the line of the log.",
    ),
    Entry(
        6110,
        "trigger_actions_cut_off",
        "Actions had not ended when the process of the triggers had to stop (in the log).",
        "They took longer than --drain allows.",
        "Nothing is lost: their messages returned, and are tried again.",
    ),
)
