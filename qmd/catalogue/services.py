"""Errors of queued services while they play calls."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        6001,
        "service_refused",
        "The settings of a queued service conflict, or do not fit its queue, or it ended "
        "at a poison message.",
        "The error names the settings, the operations, or the message that it cannot play.",
        "Correct the service or its queue; move a poison message away, and start it again.",
    ),
    Entry(
        6002,
        "call_failed",
        "An operation of a queued service raised an error.",
        "The line of the log has the error, and the id of the message.",
        "Correct the cause; a call that participates in its playback is retried automatically.",
    ),
    Entry(
        6003,
        "call_delayed",
        "A call failed in every attempt of a cycle, and waits in ;retry.",
        "Its operation raised an error every time.",
        "Read the lines call_failed of the same message; the call is retried automatically.",
    ),
    Entry(
        6004,
        "call_poisoned",
        "A call was given up: it failed in every cycle, or is not a call of this service.",
        "Its operation keeps failing, or a sender and the service use different interfaces.",
        "Inspect the poison queue of the service (`qmd peek 'orders;poison'`); correct "
        "the cause, and move the call back.",
    ),
    Entry(
        6005,
        "call_lost",
        "A message of a non-transactional queue could not be played, and is lost.",
        "It is not a call of this service, and messages cannot be returned to such a queue.",
        "Use a transactional queue for calls that must not be lost.",
    ),
    Entry(
        6006,
        "calls_cut_off",
        "Calls had not ended when the service had to stop.",
        "They took longer than --drain allows.",
        "Nothing is lost: they are retried. Allow more time, or make them shorter.",
    ),
    Entry(
        6007,
        "playback_aborted",
        "The transaction of a playback was aborted by the queue manager.",
        "The connection broke, the daemon was restarted, or the operation took longer than"
        " [transactions] idle.",
        "The call is retried; an operation that takes long should have the playback `ignore`.",
    ),
    Entry(
        6008,
        "queue_manager_unreachable",
        "The service cannot reach its queue manager, or may not use its queue.",
        "The daemon is stopped, the queue was deleted, or the user of the service lacks a right on"
        " it.",
        "The service keeps trying; start the daemon, create the queue, or grant the right that the "
        "reason names.",
    ),
    Entry(
        6009,
        "file_passed_over",
        "A file beside a service has the name of a package of qmd, and is ignored.",
        "`protocol`, `storage`, `pipeline` and `qmd` are packages of qmd, and a program can "
        "only have one package of each name.",
        "Give the file another name.",
    ),
)
