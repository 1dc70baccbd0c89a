"""The steps of replacing one host of Windows, with the way back from each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Step = dict[str, Any]
_JOURNAL = "\\journal$"
_JOURNAL_KB = 8_000_000  # 8 GB


def drain_plan(old: str, new: str, queues: Sequence[str]) -> list[Step]:
    r"""Return the steps: title, text, `windows` for the old host, `commands` for the new one,
    `senders` for each sender, and `back`.

    `old` and `new` are the names of the hosts; `queues` are private queues, such as "orders".
    """
    steps = _until_the_cut(old, new, queues) + _the_cut(old, new, queues)
    return [{"windows": [], "commands": [], "senders": [], **step} for step in steps]


def _until_the_cut(old: str, new: str, queues: Sequence[str]) -> list[Step]:
    listed = _listed(queues)
    return [
        {
            "title": "Collect and import",
            "text": "Queues, properties and rights. Repeat it until the cut-over: only changes are"
            " made.",
            "windows": [f".\\Export-MsmqDefinition.ps1 -Output {old}.json"],
            "commands": [
                f"qmd migrate windows plan {old}.json",
                f"qmd migrate windows apply {old}.json --dry-run",
                f"qmd migrate windows apply {old}.json",
            ],
            "back": [f"qmd queue delete 'private$\\{queue}'" for queue in queues],
        },
        {
            "title": "Send to both",
            "text": "Turn on the journal of each queue on Windows: it shows later which messages"
            " its programs received. A journal that has reached its quota, or that of the computer,"
            " takes no copies: then such messages would be received here again. So give both room"
            " for all messages until the cut (in KB). Then let senders name both queues. No program"
            " receives here yet.",
            "windows": [
                f"Set-MsmqQueueManager -JournalQuota {_JOURNAL_KB}",
                *(
                    f"Get-MsmqQueue -Name '{queue}' -QueueType Private | Set-MsmqQueue"
                    f" -Journaling $true -JournalQuota {_JOURNAL_KB}"
                    for queue in queues
                ),
            ],
            "senders": [_both(old, new, queue) for queue in queues],
            "back": [
                "Let senders name the old queue only; wait until none has messages for the new"
                " host.",
                *(f"qmd queue purge 'private$\\{queue}'" for queue in queues),
            ],
        },
        {
            "title": "Compare",
            "text": "Repeat until nothing is missing here: then the messages from before are"
            " received, and each that is left on Windows is here too. Messages that only the new"
            " queue has (--later) were received on Windows, or are later ones.",
            "windows": [f".\\Export-MsmqMessage.ps1 -Queue {listed} -Output {old}.messages.jsonl"],
            "commands": [
                f"qmd migrate windows compare {old}.messages.jsonl 'private$\\{queue}' --later"
                for queue in queues
            ],
            "back": ["As before: nothing was changed."],
        },
    ]


def _the_cut(old: str, new: str, queues: Sequence[str]) -> list[Step]:
    exported = _listed(queues, "", _JOURNAL)
    return [
        {
            "title": "Stop the receivers of the old host",
            "text": "From here to the last step messages wait, and none is lost.",
            "windows": ["Stop the programs that receive."],
            "back": ["Start them again."],
        },
        {
            "title": "Let senders name the new queue only",
            "text": f"By configuration, or by the name {old} in DNS: a direct name stands for the"
            " host that gets the message. Wait until no sender has messages for the old host.",
            "senders": [
                *(f"DIRECT=OS:{new}\\private$\\{queue}" for queue in queues),
                "Get-MsmqOutgoingQueue",
                "qmd outgoing list",
            ],
            "back": ["Do the next step, and then see below: messages are sent back."],
        },
        {
            "title": "Remove what the old host has received",
            "text": "Its journals have those messages. Then all that its queues have must be here."
            " If align exits with 1, read on in the manual before you go on.",
            "windows": [
                f".\\Export-MsmqMessage.ps1 -Queue {exported} -Output {old}.messages.jsonl"
            ],
            "commands": [
                command
                for queue in queues
                for command in (
                    f"qmd migrate windows align {old}.messages.jsonl 'private$\\{queue}' --dry-run",
                    f"qmd migrate windows align {old}.messages.jsonl 'private$\\{queue}'",
                    f"qmd migrate windows compare {old}.messages.jsonl 'private$\\{queue}' --later",
                )
            ],
            "back": [
                f"qmd move 'private$\\{queue};aligned' 'private$\\{queue}' --all"
                for queue in queues
            ]
            + ["Then do this step anew before any other: start no receiver, send nothing back."],
        },
        {
            "title": "Start the receivers of the new host",
            "text": "The old host keeps copies that no program receives. Purge them when you are"
            " sure, and before a cut back.",
            "commands": [f"qmd queue show 'private$\\{queue}'" for queue in queues],
            "back": _cut_back(old, queues),
        },
    ]


def _listed(queues: Sequence[str], *below: str) -> str:
    return ", ".join(f"'.\\private$\\{queue}{each}'" for queue in queues for each in below or ("",))


def _both(old: str, new: str, queue: str) -> str:
    return f"DIRECT=OS:{old}\\private$\\{queue},DIRECT=OS:{new}\\private$\\{queue}"


def _cut_back(old: str, queues: Sequence[str]) -> list[str]:
    return [
        "The step before must be done: else messages that the old host has received are sent back,"
        " too.",
        "Stop the receivers of the new host, and pause the senders; wait until none of them has"
        " messages that are not sent.",
        "Purge the queues of the old host: all of their messages are in the new queues, or were"
        " received.",
        *(
            f"qmd resend 'private$\\{queue}' --all --to 'DIRECT=OS:{old}\\private$\\{queue}'"
            for queue in queues
        ),
        "qmd outgoing list",
        "Wait until nothing waits there.",
        "Let senders name the old queue, and resume them; start the receivers of the old host.",
    ]
