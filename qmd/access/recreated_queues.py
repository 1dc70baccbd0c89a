"""Queues that were made again: delayed messages for the former queue of their name.

A delayed message was permitted when it was sent.  Its queue may have been deleted since, and the
next one of its name may be that of another owner, who has closed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.core.access import SEND, Caller, Subject, decide
from qmd.core.principals import ALL_LOCAL, USER, Principal, parse_principal
from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.access.register import AccessRegister
    from qmd.queues.local_queue import LocalQueue

_LOCAL, _DOOR = "#uid:", "#door:"  # the beginnings of names of clients: qmd/access/rights.py


class RecreatedQueues:
    """The decisions about delayed messages for queues that are younger than they."""

    def __init__(self, register: AccessRegister) -> None:
        self._register = register

    def check(self, queue: LocalQueue, client: str, sent_at_ms: int) -> None:
        """Raise Refusal if a message that `client` has sent then may not enter the queue.

        A token is one for all queues of its patterns, also later ones.
        """
        if queue.created_at_s * 1000 <= sent_at_ms or not client.startswith((_LOCAL, _DOOR)):
            return
        subject = self._register.of_queue(queue)
        caller = _caller(client, subject)
        verdict = decide(caller, SEND, subject)
        if not verdict.allowed:
            raise Refusal(
                "right_missing",
                f"{queue.name} was deleted and made again since, and {caller.name} may not send to"
                f" it: {verdict.reason}",
            )


def _caller(client: str, subject: Subject) -> Caller:
    """Return a client by its name, with those of its principals that the queue knows by their id.

    Its groups are not known.
    """
    if client.startswith(_DOOR):
        principal = parse_principal(client.removeprefix(_DOOR))
        return Caller(str(principal), frozenset({principal}), is_remote=True)
    number = int(client.removeprefix(_LOCAL))
    named = {entry.principal for level in subject.levels for entry in level.entries}
    if subject.owner is not None:
        named.add(subject.owner)
    own = {each for each in named if each.kind == USER and each.number == number}
    principal = Principal(USER, "", number)
    return Caller(str(principal), frozenset({ALL_LOCAL, principal, *own}))
