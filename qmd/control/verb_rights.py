"""The rights that each verb needs, and the objects on which it needs them.

`admit` checks a request before its verb begins; a verb without a row needs all rights.  A test
(tests/integration/control/test_verb_rights.py) requires a row for every verb, and tries each verb
with a token that lacks a right.

`reference` returns the table of docs/remote.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from qmd.access.rights import (
    ADMIN,
    ANY,
    EVERYTHING,
    READ,
    WRITE,
    Rights,
    Thing,
)
from qmd.access.things import thing_of
from qmd.control_protocol import bulk as pipeline_frames
from qmd.control_protocol import directory as directory_frames
from qmd.control_protocol import identities as identity_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames
from qmd.control_protocol import routing as routing_frames
from qmd.control_protocol import tls as tls_frames
from qmd.control_protocol import transactions as transaction_frames
from qmd.control_protocol.messages import Request
from qmd.control_protocol.signing import SigningParts
from qmd.queues.local_queue import relatives

if TYPE_CHECKING:
    from qmd.control.components import Components

Things = Callable[["Components", Any], Iterable[Thing]]


class Need(NamedTuple):
    """One right that a verb needs; `words` describe the objects in the manual."""

    scope: str
    things: Things
    words: str


class Row(NamedTuple):
    """The rights that a verb needs before it begins; `inside` describes those checked later."""

    needs: tuple[Need, ...]
    inside: str = ""


# Things.


def _nothing(components: Components, request: Any) -> Iterable[Thing]:
    return ()


def _everything(components: Components, request: Any) -> Iterable[Thing]:
    return (EVERYTHING,)


def _named(field: str, *, optional: bool = False) -> Things:
    """Return a function for the queues that a field names.

    An empty field means all queues, or with `optional` none.
    """

    def things(components: Components, request: Any) -> Iterator[Thing]:
        text = getattr(request, field)
        if text:
            yield from components.things.named(text)
        elif not optional:
            yield EVERYTHING

    return things


def _by_id(field: str, *, optional: bool = False) -> Things:
    """Return the same for a field with one or several queues, by their ids or any spelling."""

    def things(components: Components, request: Any) -> Iterator[Thing]:
        value = getattr(request, field)
        texts = [value] if isinstance(value, str) else list(value)
        if not any(texts) and not optional:
            yield EVERYTHING
        for text in filter(None, texts):
            yield from components.things.by_id(text)

    return things


def _of_reader(components: Components, request: Any) -> Iterator[Thing]:
    yield from map(thing_of, components.readers.queues_of(request.reader))


def _sent(field: str) -> Things:
    def things(components: Components, request: Any) -> Iterator[Thing]:
        messages = getattr(request, field)
        if not messages:
            yield EVERYTHING
        seen: set[tuple[str, ...]] = set()
        for new in messages:
            names = (new.destination, new.dead_letter_queue, new.admin_queue, new.report_queue)
            if names not in seen:
                seen.add(names)
                yield from components.things.of_message(new)

    return things


def _to_sign(components: Components, request: SigningParts) -> Iterator[Thing]:
    yield from components.things.of_message(request.message)


def _family(components: Components, request: operator_frames.DeleteQueue) -> Iterator[Thing]:
    for thing in components.things.named(request.name):
        yield thing
        queue = components.queues.by_key.get(thing.key)
        if queue is not None:
            yield from map(thing_of, relatives(queue))


def _way(components: Components, request: routing_frames.RedirectOutgoing) -> Iterable[Thing]:
    """Return the queue of the request; for an address, all queues."""
    is_queue = "\\" in request.destination or "=" in request.destination
    return components.things.named(request.destination) if is_queue else (EVERYTHING,)


# Needs.

_FREE = Need(ANY, _nothing, "nothing")
_OWN_TRANSACTION = Need(ANY, _nothing, "a transaction of its own connection")
_OWN_IDS = Need(ANY, _nothing, "an id of its own")
_ALL_READ = Need(READ, _everything, "all queues")
_ALL_WRITE = Need(WRITE, _everything, "all queues")
_ALL_ADMIN = Need(ADMIN, _everything, "all queues")
_READ = Need(READ, _named("queue"), "the queue")
_READER = Need(READ, _of_reader, "all queues of the reader")
_READ_BY_ID = Need(READ, _by_id("queue"), "the queue")
_READ_OUTGOING = Need(READ, _named("destination"), "the destination")
_ADMIN = Need(ADMIN, _named("queue"), "the queue")
_ADMIN_NAME = Need(ADMIN, _named("name"), "the queue")
_ADMIN_OUTGOING = Need(ADMIN, _named("destination"), "the destination")
_INTO = "the destination, and the queues for dead letters, acknowledgments and reports"
_QUERY = "write on all queues of the query's staged and published messages"


def _rows(needs: tuple[Need, ...], *verbs: type[Request], inside: str = "") -> dict[type, Row]:
    return dict.fromkeys(verbs, Row(needs, inside))


TABLE: dict[type, Row] = {
    **_rows((_FREE,), frames.Hello, frames.Login),
    # Messages.
    **_rows((Need(WRITE, _sent("messages"), _INTO),), frames.Send),
    **_rows((Need(WRITE, _to_sign, "the destination"),), SigningParts),
    **_rows((_READ,), frames.Take, frames.TakeChosen, frames.Look, frames.Peek),
    **_rows((_READ,), frames.Remove, frames.Reject, frames.GiveBack),
    **_rows((_READ,), frames.OpenExclusive, frames.CloseExclusive, frames.DeadLetters),
    **_rows((_ADMIN, Need(ADMIN, _named("target"), "the target")), frames.Move),
    **_rows(
        (_ADMIN, Need(ADMIN, _named("to", optional=True), "the new destination")),
        frames.Resend,
        inside=f"admin on {_INTO}, of each message",
    ),
    **_rows((_ADMIN,), frames.Import),
    # Transactions, and the results of requests.
    **_rows(
        (_OWN_TRANSACTION,),
        transaction_frames.Begin,
        transaction_frames.Commit,
        transaction_frames.Abort,
    ),
    **_rows(
        (_READ, Need(WRITE, _named("target", optional=True), "the target")),
        transaction_frames.Settle,
    ),
    **_rows((_OWN_IDS,), frames.Outcome, transaction_frames.ListTransactions),
    **_rows(
        (_ALL_ADMIN,),
        transaction_frames.Enlist,
        transaction_frames.ForgetBranch,
        transaction_frames.ListBranches,
    ),
    # Queues.
    **_rows((_ADMIN_NAME,), operator_frames.CreateQueue, operator_frames.SetQueue),
    **_rows((_ADMIN_NAME,), operator_frames.PurgeQueue),
    **_rows(
        (Need(ADMIN, _family, "the queue, its subqueues and its journal"),),
        operator_frames.DeleteQueue,
    ),
    **_rows((_ALL_READ,), operator_frames.ListQueues, operator_frames.Status),
    **_rows((Need(READ, _named("name"), "the queue"),), operator_frames.ShowQueue),
    **_rows((_READ,), operator_frames.Events),
    **_rows(
        (_READ,),
        operator_frames.Why,
        inside="read on all queues that contained the message; no other host is queried",
    ),
    # Outgoing queues, sessions and routes.
    **_rows((_ALL_READ,), operator_frames.ListOutgoing, operator_frames.ListSequences),
    **_rows((_ALL_READ,), operator_frames.ListSessions),
    **_rows((_READ_OUTGOING,), operator_frames.ShowOutgoing, operator_frames.ListAwaiting),
    **_rows((_ADMIN_OUTGOING,), operator_frames.GiveUpAwaiting, operator_frames.PauseOutgoing),
    **_rows((_ADMIN_OUTGOING,), operator_frames.ResumeOutgoing, operator_frames.KickOutgoing),
    **_rows((_ADMIN_OUTGOING,), operator_frames.PurgeOutgoing, routing_frames.RestartOutgoing),
    **_rows(
        (Need(ADMIN, _way, "the destination; for an address all queues"),),
        routing_frames.RedirectOutgoing,
    ),
    **_rows((_ALL_READ,), identity_frames.ListPeers),
    **_rows((_ALL_ADMIN,), identity_frames.PinPeer, identity_frames.ForgetPeer),
    **_rows((_ALL_ADMIN,), routing_frames.ForgetIdentity, tls_frames.ForgetTlsPeer),
    **_rows((_ALL_READ,), tls_frames.ListTlsPeers),
    # Data pipelines.
    **_rows(
        (Need(READ, _by_id("queues"), "the queues"), _READER),
        pipeline_frames.OpenReader,
    ),
    **_rows((_READ_BY_ID, _READER), pipeline_frames.Reserve, pipeline_frames.ReadRange),
    **_rows((Need(READ, _by_id("ends"), "the queues"), _READER), pipeline_frames.Consume),
    **_rows((_READ_BY_ID,), pipeline_frames.SplitRange),
    **_rows((_ALL_READ,), pipeline_frames.ListReaders),
    **_rows(
        (
            Need(ADMIN, _by_id("queue", optional=True), "the queue"),
            Need(ADMIN, _of_reader, "all queues of the reader"),
        ),
        pipeline_frames.ReleaseReader,
    ),
    **_rows((Need(WRITE, _sent("rows"), _INTO),), pipeline_frames.Stage, inside=_QUERY),
    **_rows((Need(WRITE, _nothing, ""),), pipeline_frames.Publish, inside=_QUERY),
    **_rows(
        (Need(WRITE, _nothing, ""),),
        pipeline_frames.DiscardStages,
        inside=f"{_QUERY}; without a query on all queues",
    ),
    **_rows((_ALL_WRITE,), pipeline_frames.ListStages),
    **_rows((_ALL_ADMIN,), pipeline_frames.MarkShipped),
    # The directory.
    **_rows((_ALL_READ,), directory_frames.DirectoryStatus, directory_frames.DirectoryLookup),
    **_rows((_ALL_READ,), directory_frames.ShowList, directory_frames.ExpandList),
    **_rows((_ALL_READ,), directory_frames.ListLists, directory_frames.ListAliases),
    **_rows((_ALL_READ,), directory_frames.ExplainName),
    **_rows((_ALL_ADMIN,), directory_frames.DirectoryReload),
    **_rows((_ALL_ADMIN,), directory_frames.CreateList, directory_frames.DeleteList),
    **_rows((_ALL_ADMIN,), directory_frames.AddMembers, directory_frames.RemoveMembers),
    **_rows((_ALL_ADMIN,), directory_frames.CreateAlias, directory_frames.DeleteAlias),
}
_UNKNOWN = Row((_ALL_ADMIN,))


def admit(components: Components, rights: Rights, request: Request) -> Request:
    """Return the request as it is executed for a client with these rights.  Raises Refusal."""
    verb = frames.verb_of(request)
    for need in TABLE.get(type(request), _UNKNOWN).needs:
        rights.require(need.scope, need.things(components, request), verb)
    return rights.claim(request)


def reference() -> str:
    """Return the table in Markdown."""
    lines = ["| verb | needs |", "| --- | --- |"]
    for verb, row in sorted(TABLE.items(), key=lambda each: frames.verb_of(each[0])):
        needs = [
            f"{need.scope} on {need.words}"
            if need.scope and need.words
            else need.scope or need.words
            for need in row.needs
        ]
        inside = [f"while it runs: {row.inside}"] if row.inside else []
        lines.append(f"| `{frames.verb_of(verb)}` | {'; '.join([*needs, *inside])} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
