"""The rights that each verb needs, and the objects on which it needs them.

`admit` checks a request before its verb begins; a verb without a row needs all rights.  A test
(tests/integration/control/test_verb_rights.py) requires a row for every verb, and tries each verb
with a token that lacks a right.

`reference` returns the table of docs/remote.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from qmd.access.demands import (
    ADMIN,
    ANY,
    EVERYTHING,
    NO_QUEUE,
    READ,
    TO_PEEK,
    TO_RECEIVE,
    TO_RELEASE,
    TO_SEND,
    WRITE,
    Demand,
    Thing,
)
from qmd.access.rights import Rights
from qmd.access.things import thing_of
from qmd.control_protocol import access as access_frames
from qmd.control_protocol import audit as audit_frames
from qmd.control_protocol import bulk as pipeline_frames
from qmd.control_protocol import delayed as delayed_frames
from qmd.control_protocol import directory as directory_frames
from qmd.control_protocol import doors as door_frames
from qmd.control_protocol import figures as figure_frames
from qmd.control_protocol import identities as identity_frames
from qmd.control_protocol import links as link_frames
from qmd.control_protocol import locks as lock_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames
from qmd.control_protocol import routing as routing_frames
from qmd.control_protocol import settings as settings_frames
from qmd.control_protocol import tls as tls_frames
from qmd.control_protocol import topics as topic_frames
from qmd.control_protocol import transactions as transaction_frames
from qmd.control_protocol.messages import Request
from qmd.control_protocol.once import SendOnce
from qmd.control_protocol.signing import SigningParts
from qmd.core import access
from qmd.core.principals import ANONYMOUS, CERT, SASL, is_of_kind
from qmd.queues.local_queue import relatives

if TYPE_CHECKING:
    from qmd.control.components import Components

Things = Callable[["Components", Any], Iterable[Thing]]


class Need(NamedTuple):
    """One demand of a verb; `words` describe its objects in the manual.

    `is_unnamed`: the request does not name these objects, and a refusal does not either.
    """

    demand: Demand
    things: Things
    words: str
    is_unnamed: bool = False

    @property
    def scope(self) -> str:
        """The scope that a token needs."""
        return self.demand.scope


class Row(NamedTuple):
    """The demands that a verb meets before it begins; `inside` describes those checked later."""

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


def _unnamed(field: str) -> Things:
    """Return a function for all queues, if a field names none."""

    def things(components: Components, request: Any) -> Iterable[Thing]:
        return () if getattr(request, field) else (EVERYTHING,)

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
            yield NO_QUEUE
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


def _object(components: Components, request: Any) -> Iterable[Thing]:
    return components.access_administration.things(request.object)


def _tested(components: Components, request: access_frames.TestAccess) -> Iterable[Thing]:
    return _object(components, request) if request.principal else ()


def _way(components: Components, request: routing_frames.RedirectOutgoing) -> Iterable[Thing]:
    """Return the queue of the request; for an address, all queues."""
    is_queue = "\\" in request.destination or "=" in request.destination
    return components.things.named(request.destination) if is_queue else (EVERYTHING,)


def _stated(kind: str) -> Things:
    """Return a function for the host, if a door states a principal of the kind."""

    def things(components: Components, request: Any) -> Iterable[Thing]:
        return (EVERYTHING,) if any(map(partial(is_of_kind, kind), request.principals)) else ()

    return things


# Needs.


def _host(scope: str, right: str, things: Things = _everything, words: str = "all queues") -> Need:
    """Return the need of a right on the host."""
    return Need(Demand(scope, (right,), of_host=True), things, words)


def _open(scope: str, things: Things = _everything, words: str = "all queues") -> Need:
    """Return a need of tokens alone: each local user may do it, or its answer is limited."""
    return Need(Demand(scope, ()), things, words)


_FREE = _open(ANY, _nothing, "nothing")
_OWN_TRANSACTION = _open(ANY, _nothing, "a transaction of its own connection")
_OWN_IDS = _open(ANY, _nothing, "an id of its own")
_STATUS = _host(READ, access.SEE_STATUS)
_ALL_READ = _open(READ)
_ACCESS = _host(ADMIN, access.ADMINISTER_ACCESS)
_DIRECTORY = _host(ADMIN, access.MANAGE_DIRECTORY)
_FOR_HOSTS = _host(ADMIN, access.ACT_FOR_HOSTS)
#: An address comes with each of these; it is none by itself.
_FOR_STATED = (
    _host(ADMIN, access.ACT_FOR_USERS, _stated(SASL), "all queues if it states sasl:NAME"),
    _host(ADMIN, access.ACT_FOR_CERTIFICATES, _stated(CERT), "all queues if it states cert:NAME"),
    _host(ADMIN, access.ACT_FOR_ANONYMOUS, _stated(ANONYMOUS), "all queues if it states anonymous"),
)
_PEERS = _host(ADMIN, access.MANAGE_PEERS)
_RECEIVE = Need(TO_RECEIVE, _named("queue"), "the queue")
_PEEK = Need(TO_PEEK, _named("queue"), "the queue")
_READER = Need(TO_RECEIVE, _of_reader, "all queues of the reader", is_unnamed=True)
_RECEIVE_BY_ID = Need(TO_RECEIVE, _by_id("queue"), "the queue")
_PEEK_BY_ID = Need(TO_PEEK, _by_id("queue"), "the queue")
_READ_OUTGOING = _host(READ, access.SEE_STATUS, _named("destination"), "the destination")
_PEEK_OUTGOING = Need(TO_PEEK, _named("destination"), "the destination")
_OUTGOING = _host(ADMIN, access.MANAGE_OUTGOING, _named("destination"), "the destination")
_TAKE_AWAY = Need(Demand(ADMIN, (access.RECEIVE, access.PEEK)), _named("queue"), "the queue")
_INTO = "the destination, and the queues for dead letters, acknowledgments and reports"
_QUERY = "write on all queues of the query's staged and published messages"


def _of_queue(scope: str, right: str, things: Things, words: str = "the queue") -> Need:
    return Need(Demand(scope, (right,)), things, words)


_NAME = _named("name")


def _rows(needs: tuple[Need, ...], *verbs: type[Request], inside: str = "") -> dict[type, Row]:
    return dict.fromkeys(verbs, Row(needs, inside))


TABLE: dict[type, Row] = {
    **_rows((_FREE,), frames.Hello, frames.Login),
    # Messages.
    **_rows((Need(TO_SEND, _sent("messages"), _INTO),), frames.Send, SendOnce),
    **_rows((Need(TO_SEND, _sent("messages"), _INTO),), link_frames.SendOverLinks),
    **_rows((Need(TO_SEND, _to_sign, "the destination"),), SigningParts),
    **_rows((_RECEIVE,), frames.Take, frames.TakeChosen),
    **_rows((_PEEK,), frames.Look, frames.Peek, operator_frames.DeadLetters, door_frames.Note),
    **_rows((_RECEIVE,), frames.Remove, frames.Reject, frames.GiveBack),
    **_rows((_RECEIVE,), frames.OpenExclusive, frames.CloseExclusive),
    **_rows((_RECEIVE,), door_frames.StopWaiting),
    **_rows((_FOR_HOSTS,), door_frames.RejectOutgoing, door_frames.EndLinkSession),
    **_rows((_FOR_HOSTS, *_FOR_STATED), door_frames.AnnounceSession, inside="on the socket only"),
    **_rows(
        (_TAKE_AWAY, Need(Demand(ADMIN, (access.SEND,)), _named("target"), "the target")),
        frames.Move,
    ),
    **_rows(
        (
            _TAKE_AWAY,
            Need(Demand(ADMIN, (access.SEND,)), _named("to", optional=True), "the new destination"),
        ),
        frames.Resend,
        inside=f"admin on {_INTO}, of each message",
    ),
    **_rows(
        (
            Need(TO_PEEK, _named("queue", optional=True), "the queue"),
            _host(READ, access.SEE_STATUS, _unnamed("queue"), "all queues if none is named"),
        ),
        delayed_frames.ListDelayed,
    ),
    **_rows(
        (_open(WRITE, _nothing, ""),),
        delayed_frames.CancelDelayed,
        inside="admin on the destination, for messages of other clients",
    ),
    # An import can state any sender and any time, so sending is not enough.
    **_rows(
        (Need(Demand(ADMIN, (access.SEND, access.SET_PROPERTIES)), _named("queue"), "the queue"),),
        frames.Import,
    ),
    # Locks: their ids bear the marks of their clients.
    **_rows((_RECEIVE,), lock_frames.TakeLocked, lock_frames.SettleLocked, lock_frames.Enroll),
    **_rows((_OWN_IDS,), lock_frames.RenewLock, lock_frames.ListLocks),
    # Links of doors: their ids are those of their clients.
    **_rows((_OWN_IDS,), link_frames.ResumeLink, link_frames.ForgetLink),
    # Transactions, and the results of requests.
    **_rows(
        (_OWN_TRANSACTION,),
        transaction_frames.Begin,
        transaction_frames.Commit,
        transaction_frames.Abort,
    ),
    **_rows(
        (_RECEIVE, Need(TO_SEND, _named("target", optional=True), "the target")),
        transaction_frames.Settle,
    ),
    **_rows((_OWN_IDS,), frames.Outcome, transaction_frames.ListTransactions),
    # Only for own transactions: the ids of local users bear their marks.
    **_rows(
        (_open(ADMIN),),
        transaction_frames.Enlist,
        transaction_frames.ForgetBranch,
        transaction_frames.ListBranches,
    ),
    # Queues.
    **_rows((_host(ADMIN, access.CREATE_QUEUE, _NAME, "the queue"),), operator_frames.CreateQueue),
    **_rows((_of_queue(ADMIN, access.SET_PROPERTIES, _NAME),), operator_frames.SetQueue),
    **_rows((_of_queue(ADMIN, access.PURGE, _NAME),), operator_frames.PurgeQueue),
    **_rows(
        (_of_queue(ADMIN, access.DELETE, _family, "the queue, its subqueues and its journal"),),
        operator_frames.DeleteQueue,
    ),
    **_rows((_ALL_READ,), operator_frames.ListQueues, operator_frames.Status),
    **_rows((_of_queue(READ, access.GET_PROPERTIES, _NAME),), operator_frames.ShowQueue),
    **_rows(
        (
            Need(TO_PEEK, _named("queue", optional=True), "the queue"),
            _host(READ, access.READ_EVENTS, _unnamed("queue"), "all queues if none is named"),
        ),
        operator_frames.Events,
    ),
    **_rows((_host(READ, access.READ_EVENTS),), operator_frames.Inventory),
    **_rows(
        (_open(READ, _named("queue"), "the queue"),),
        operator_frames.Why,
        inside="read on all queues that contained the message; no other host is queried",
    ),
    # Outgoing queues, sessions and routes.
    **_rows((_STATUS,), operator_frames.ListOutgoing, operator_frames.ListSequences),
    **_rows((_STATUS,), operator_frames.ListSessions),
    **_rows((_READ_OUTGOING,), operator_frames.ShowOutgoing),
    **_rows((_PEEK_OUTGOING,), operator_frames.PeekOutgoing, operator_frames.ListAwaiting),
    **_rows((_OUTGOING,), operator_frames.GiveUpAwaiting, operator_frames.PauseOutgoing),
    **_rows((_OUTGOING,), operator_frames.ResumeOutgoing, operator_frames.KickOutgoing),
    **_rows((_OUTGOING,), operator_frames.PurgeOutgoing, routing_frames.RestartOutgoing),
    **_rows(
        (
            _host(
                ADMIN,
                access.MANAGE_OUTGOING,
                _way,
                "the destination; for an address all queues",
            ),
        ),
        routing_frames.RedirectOutgoing,
    ),
    **_rows((_STATUS,), identity_frames.ListPeers),
    **_rows((_PEERS,), identity_frames.PinPeer, identity_frames.ForgetPeer),
    **_rows((_STATUS,), tls_frames.ListTlsPeers, settings_frames.ShowSettings),
    **_rows((_ACCESS,), settings_frames.ReloadSettings),
    **_rows((_PEERS,), tls_frames.ForgetTlsPeer),
    **_rows((_PEERS,), routing_frames.ForgetIdentity),
    # Data pipelines.
    **_rows(
        (Need(TO_RECEIVE, _by_id("queues"), "the queues"), _READER),
        pipeline_frames.OpenReader,
    ),
    **_rows((_RECEIVE_BY_ID, _READER), pipeline_frames.Reserve),
    **_rows((_PEEK_BY_ID, _READER), pipeline_frames.ReadRange),
    **_rows((Need(TO_RECEIVE, _by_id("ends"), "the queues"), _READER), pipeline_frames.Consume),
    **_rows((_PEEK_BY_ID,), pipeline_frames.SplitRange),
    **_rows((_STATUS,), pipeline_frames.ListReaders),
    **_rows(
        (
            Need(TO_RELEASE, _by_id("queue", optional=True), "the queue"),
            Need(TO_RELEASE, _of_reader, "all queues of the reader", is_unnamed=True),
        ),
        pipeline_frames.ReleaseReader,
    ),
    **_rows((Need(TO_SEND, _sent("rows"), _INTO),), pipeline_frames.Stage, inside=_QUERY),
    **_rows((Need(TO_SEND, _nothing, ""),), pipeline_frames.Publish, inside=_QUERY),
    **_rows(
        (Need(TO_SEND, _nothing, ""),),
        pipeline_frames.DiscardStages,
        inside=f"{_QUERY}; without a query on all queues",
    ),
    **_rows((_host(WRITE, access.SEE_STATUS),), pipeline_frames.ListStages),
    # Events that count as shipped may be deleted.
    **_rows((_ACCESS,), pipeline_frames.MarkShipped),
    # The directory.
    **_rows((_ALL_READ,), directory_frames.DirectoryStatus, directory_frames.DirectoryLookup),
    **_rows((_ALL_READ,), directory_frames.ShowList, directory_frames.ExpandList),
    **_rows((_ALL_READ,), directory_frames.ListLists, directory_frames.ListAliases),
    **_rows((_ALL_READ,), directory_frames.ExplainName),
    **_rows((_DIRECTORY,), directory_frames.DirectoryReload),
    **_rows((_DIRECTORY,), directory_frames.CreateList, directory_frames.DeleteList),
    **_rows((_DIRECTORY,), directory_frames.AddMembers, directory_frames.RemoveMembers),
    **_rows((_DIRECTORY,), directory_frames.CreateAlias, directory_frames.DeleteAlias),
    **_rows((_DIRECTORY,), directory_frames.PublishKeys),
    **_rows((_DIRECTORY,), directory_frames.RegisterCertificate),
    **_rows((_DIRECTORY,), directory_frames.RemoveCertificate),
    **_rows((_ALL_READ,), directory_frames.ListCertificates),
    **_rows((_ACCESS,), audit_frames.AuditEntries, audit_frames.SetLogLevel),
    **_rows((_STATUS,), audit_frames.LogLevels),
    # Figures name all queues, whatever the rights on each.
    **_rows(
        (_STATUS,),
        figure_frames.HostFigures,
        figure_frames.QueueFigures,
        figure_frames.DestinationFigures,
        figure_frames.OldestMessages,
    ),
    # Topics: a sender needs the right to send to the topic, not to the queues.
    **_rows((_STATUS,), topic_frames.ListTopics, topic_frames.ShowTopic),
    **_rows((_DIRECTORY,), topic_frames.DeleteTopic, topic_frames.Unsubscribe),
    **_rows(
        (_DIRECTORY, Need(Demand(ADMIN, (access.SEND,)), _named("destination"), "the queue")),
        topic_frames.Subscribe,
    ),
    **_rows(
        (
            _DIRECTORY,
            Need(
                Demand(ADMIN, (access.SEND,)),
                _named("unmatched", optional=True),
                "the queue of other messages",
            ),
        ),
        topic_frames.CreateTopic,
    ),
    # Rights.
    **_rows(
        (Need(Demand(READ, (access.GET_PERMISSIONS,)), _object, "the object"),),
        access_frames.ShowAccess,
    ),
    **_rows(
        (Need(Demand(ADMIN, (access.CHANGE_PERMISSIONS,)), _object, "the object"),),
        access_frames.ChangeAccess,
    ),
    **_rows(
        (Need(Demand(ADMIN, (access.TAKE_OWNERSHIP,)), _object, "the object"),),
        access_frames.SetOwner,
        inside="admin on all queues, to give the queue to another owner",
    ),
    **_rows(
        (Need(Demand(READ, (access.GET_PERMISSIONS,)), _tested, "the object, for another client"),),
        access_frames.TestAccess,
    ),
    **_rows((_ACCESS,), access_frames.ExportAccess, access_frames.ImportAccess),
    **_rows(_FOR_STATED, access_frames.ActFor, inside="on the socket only"),
}
_UNKNOWN = Row((_ACCESS,))


def admit(components: Components, rights: Rights, request: Request) -> Request:
    """Return the request as it is executed for a client with these rights.

    Raises Refusal, and MustAsk if the directory must be asked first.
    """
    require(components, rights, request)
    claimed = rights.claim(request)
    components.outcome_limit.check(rights, claimed)
    return claimed


def require(components: Components, rights: Rights, request: Request) -> None:
    """Raise Refusal if a client lacks a right for a request, and MustAsk."""
    verb = frames.verb_of(request)
    for need in TABLE.get(type(request), _UNKNOWN).needs:
        things = need.things(components, request)
        if need.is_unnamed:
            rights.require_unnamed(need.demand, things, verb, need.words)
        else:
            rights.require(need.demand, things, verb)


def reference() -> str:
    """Return the table in Markdown."""
    lines = ["| verb | a token needs | other clients need |", "| --- | --- | --- |"]
    for verb, row in sorted(TABLE.items(), key=lambda each: frames.verb_of(each[0])):
        needs = [
            f"{need.scope} on {need.words}"
            if need.scope and need.words
            else need.scope or need.words
            for need in row.needs
        ]
        inside = [f"while it runs: {row.inside}"] if row.inside else []
        others = [_of_others(need) for need in row.needs if need.demand.rights]
        lines.append(
            f"| `{frames.verb_of(verb)}` | {'; '.join([*needs, *inside])} |"
            f" {'; '.join(filter(None, others)) or 'nothing'} |"
        )
    return "\n".join(lines) + "\n"


def _of_others(need: Need) -> str:
    rights = access.rights_text(need.demand.rights)
    if need.demand.of_host:
        when = need.words.partition(" if ")[2]
        return f"{rights} on the host" + (f", if {when}" if when else "")
    return f"{rights} on {need.words}" if need.words else ""


if __name__ == "__main__":
    print(reference(), end="")
