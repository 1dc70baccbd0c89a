"""Checks of rights: they ask for each object, and refuse with the right, the principal and the
command that grants it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from qmd.access.demands import EVERYTHING, NO_QUEUE, NOT_A_NAME, Demand, Thing
from qmd.core.access import ADMINISTER_ACCESS, Caller, Kind, Subject, Verdict, decide
from qmd.errors import Refusal
from qmd.events.header import EventHeader
from qmd.events.header import Kind as EventKind

if TYPE_CHECKING:
    from qmd.access.register import AccessRegister
    from qmd.events.recorder import Recorder
    from qmd.runtime.services import Services

#: Events of refusals in one minute; further ones are only counted and logged.
EVENTS_MAX = 60
PERIOD_S = 60.0


class AccessChecks:
    """The decisions for requests of clients."""

    def __init__(self, services: Services, register: AccessRegister, recorder: Recorder) -> None:
        self._services = services
        self._register = register
        self._recorder = recorder
        self._period_ends_s = 0.0
        self._recorded = 0
        #: Number of refused requests since the start.
        self.refused_count = 0

    @property
    def administrator_ids(self) -> frozenset[tuple[str, int]]:
        """The users and groups that an entry lets administer access: kind and id of each."""
        return frozenset(
            (entry.principal.kind, entry.principal.number)
            for level in self._register.host.levels
            for entry in level.entries
            if entry.allows
            and ADMINISTER_ACCESS in entry.rights
            and entry.principal.number is not None
        )

    def require(self, caller: Caller, demand: Demand, things: Iterable[Thing], verb: str) -> None:
        """Raise Refusal if the caller lacks a right on one of the things, and MustAsk."""
        for subject, right in self._asked(demand, things):
            verdict = decide(caller, right, subject)
            if not verdict.allowed:
                raise self._refused(caller, right, subject, verdict, verb)

    def require_no_denial(
        self, caller: Caller, demand: Demand, things: Iterable[Thing], verb: str
    ) -> None:
        """Raise Refusal if an entry denies the caller a right on one of the things."""
        if not self._register.has_denials:
            return
        for thing in things:
            try:
                asked = list(self._asked(demand, (thing,)))
            except Refusal:
                continue  # there is no such queue: nothing can be denied on it
            for subject, right in asked:
                verdict = decide(caller, right, subject)
                if not verdict.allowed and verdict.entry is not None:
                    raise self._refused(caller, right, subject, verdict, verb)

    def may_by_entries(self, caller: Caller, demand: Demand, things: Iterable[Thing]) -> bool:
        """Return whether entries give a token the rights on all of the things."""
        return (
            self._register.names_tokens and bool(demand.rights) and self.may(caller, demand, things)
        )

    def may(self, caller: Caller, demand: Demand, things: Iterable[Thing]) -> bool:
        """Return whether the caller has the rights on all of the things; a queue that does not
        exist is none of them."""
        try:
            return all(
                decide(caller, right, subject).allowed
                for subject, right in self._asked(demand, things)
            )
        except Refusal:
            return False

    def _asked(self, demand: Demand, things: Iterable[Thing]) -> Iterator[tuple[Subject, str]]:
        """Yield the objects of a demand, with the right that is needed on each."""
        host = self._register.host
        for thing in things:
            if thing == NO_QUEUE:
                continue
            if thing == NOT_A_NAME:
                raise Refusal(
                    "name_not_understood",
                    "the request names a queue in a form that is not understood",
                    "`qmd name explain` explains a name.",
                )
            if demand.of_host:
                yield from ((host, right) for right in demand.rights)
            elif thing == EVERYTHING:
                # Entries of single queues may deny what those of all queues allow.
                yield from ((host, ADMINISTER_ACCESS) for _ in demand.rights)
            else:
                for subject in self._register.subjects(thing):
                    yield from ((subject, right) for right in demand.rights)

    def _refused(
        self, caller: Caller, right: str, subject: Subject, verdict: Verdict, verb: str
    ) -> Refusal:
        """Return the refusal of a request, after counting, logging and recording it."""
        self.refused_count += 1
        about = f"{verb} needs the right {right} on {subject.name}"
        reason = f"{caller.name} does not have it: {verdict.reason}"
        self._services.log_limited(
            "access_refused",
            caller.name,
            client=caller.name,
            right=right,
            object=subject.name,
            verb=verb,
            reason=verdict.reason,
        )
        self._record(subject.name, f"{about}; {reason}")
        return Refusal("right_missing", f"{about}, and {reason}", _remedy(caller, right, subject))

    def scope_refused(self, caller: Caller, verb: str, reason: str) -> None:
        """Count, log and record the refusal of a request that the scope of a token excludes."""
        self.refused_count += 1
        self._services.log_limited(
            "access_refused", caller.name, client=caller.name, verb=verb, reason=reason
        )
        self._record("", reason)

    def _record(self, queue: str, reason: str) -> None:
        now_s = self._services.loop.time()
        if now_s > self._period_ends_s:
            self._period_ends_s, self._recorded = now_s + PERIOD_S, 0
        if self._recorded < EVENTS_MAX and self._recorder.enabled:
            self._recorded += 1
            header = EventHeader(EventKind.ACCESS_REFUSED, queue=queue, reason=reason)
            self._recorder.group(header, self._services.id)


def _remedy(caller: Caller, right: str, subject: Subject) -> str:
    name = {Kind.HOST: "host", Kind.ALL_QUEUES: "'*'"}.get(subject.kind, f"'{subject.name}'")
    by = "An administrator" if subject.owner is None else f"{subject.owner} or an administrator"
    return f"{by} can grant it: qmd acl grant {caller.name} {right} {name}"


def not_answered(name: str) -> Refusal:
    """Return the refusal of a request with a name that the directory has to answer again."""
    return Refusal(
        "right_missing",
        f"whether the client may use {name} is not known: the answer of the directory is too old",
        "Try again.",
    )
