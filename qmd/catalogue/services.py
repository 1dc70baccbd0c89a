"""Queued services: what goes wrong while calls are played."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        6001,
        "service_refused",
        "A queued service contradicts itself or its queue, or ends with a poison message.",
        "The error says which: its settings, its operations, or the message it cannot play.",
        "Mend the service or its queue; move a poison message away, and start it again.",
    ),
    Entry(
        6002,
        "call_failed",
        "An operation of a queued service has raised an error.",
        "The line of the log has the error, and the id of the message.",
        "Mend what it says; a call that takes part in its playback is played again by itself.",
    ),
    Entry(
        6003,
        "call_delayed",
        "A call has failed as often as one cycle has it, and waits in ;retry.",
        "Its operation raised an error every time.",
        "See the lines call_failed of the same message; it comes back by itself.",
    ),
    Entry(
        6004,
        "call_poisoned",
        "A call is given up: it failed in every cycle, or is no call of this service.",
        "Its operation goes on failing, or a sender and the service do not agree.",
        "See where the service puts poison (`qmd peek 'orders;poison'`); mend, and move it back.",
    ),
    Entry(
        6005,
        "call_lost",
        "A message of a queue without transactions could not be played, and is gone.",
        "It is no call of this service, and such a queue gives nothing back.",
        "Use a transactional queue for calls that must not be lost.",
    ),
    Entry(
        6006,
        "calls_cut_off",
        "Calls had not ended when the service had to stop.",
        "They took longer than --drain allows.",
        "Nothing is lost: they are played again. Give them more time, or make them shorter.",
    ),
    Entry(
        6007,
        "playback_aborted",
        "The transaction of a playback was aborted by the queue manager.",
        "The connection broke, the daemon was restarted, or the operation took longer than"
        " [transactions] idle.",
        "The call is played again; an operation that takes long should ignore its playback.",
    ),
    Entry(
        6008,
        "queue_manager_unreachable",
        "The service cannot reach its queue manager, or its queue.",
        "The daemon is stopped, or the queue was deleted.",
        "It goes on trying; start the daemon, or create the queue.",
    ),
    Entry(
        6009,
        "file_passed_over",
        "A file beside a service has the name of a package of qmd, and is passed over.",
        "`protocol`, `storage`, `pipeline` and `qmd` are packages of qmd, and one program can have"
        " one of each name.",
        "Give the file another name.",
    ),
)
