"""Rights of all verbs: with insufficient tokens they are refused, and they change nothing.

The requests name real objects of other clients: a queue with messages and a subqueue, a transaction
that has received and sent, a message by its id, a reader with a reserved range, staged rows, an
outgoing queue.  A verb without a row in `qmd.control.verb_rights`, or without a try here, fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import msgspec
import pytest

from qmd.access.rights import (
    ADMIN,
    ALL_RIGHTS,
    ANY,
    READ,
    WRITE,
    GrantedRights,
    rights_of,
)
from qmd.access.tokens import Grant, create
from qmd.catalogue import find_by_code
from qmd.control import verb_rights
from qmd.control.remote import RemoteServer
from qmd.control.verbs import HANDLERS
from qmd.control_protocol import bulk as pipeline
from qmd.control_protocol import directory, routing
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator
from qmd.control_protocol import transactions as transaction_frames
from qmd.control_protocol.bulk import Attempt
from qmd.control_protocol.messages import Done, ImportedMessage, NewMessage, Refused, Request
from tests.integration.managers import Host, Hosts, hosted
from tests.patience import END_S

ROOT = Path(__file__).parents[3]
ELSEWHERE = "DIRECT=TCP:127.0.0.1:9\\private$\\others"
MINE, SECRET = "mine", "secret"
QUERY, READER = "etl", "archive"


class Client:
    """A connection to the control socket, or a remote one with a token."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._number = 0

    async def ask(self, verb: type[Request], *fields: object) -> Done | Refused:
        return await self.ask_as(verb(0, *fields))

    async def ask_as(self, request: Request) -> Done | Refused:
        self._number += 1
        self._writer.write(frames.frame(msgspec.structs.replace(request, number=self._number)))
        async with asyncio.timeout(END_S):
            (length,) = struct.unpack("<I", await self._reader.readexactly(4))
            reply = frames.decode_reply(await self._reader.readexactly(length))
        assert reply.number == self._number
        return reply

    async def done(self, verb: type[Request], *fields: object) -> Any:
        reply = await self.ask(verb, *fields)
        assert isinstance(reply, Done), reply
        return reply.result

    def close(self) -> None:
        self._writer.close()


class World:
    """A queue manager with objects of other clients, and their ids."""

    host: Host
    local: Client
    transaction: bytes  # of a local application; it has received from SECRET and sent to it
    committed: bytes  # the id of a committed transaction
    message_id: str  # of a message in SECRET
    lookup_id: int
    fence: int
    positions: int

    def __init__(self, host: Host) -> None:
        self.host = host
        settings = replace(
            host.services.settings.remote,
            enabled=True,
            port=0,
            plain_on_loopback=True,
            tokens=host.folder / "tokens",
            requests_per_second=100_000,
        )
        self.server = RemoteServer(host.components, HANDLERS, settings)
        self._clients: list[Client] = []

    async def log_in(self, *scopes: str, queues: tuple[str, ...] = ()) -> Client:
        name = f"t{len(self._clients)}"
        token = create(self.server.settings.tokens, name, frozenset(scopes), queues)
        return await self.log_in_with(token)

    async def log_in_with(self, token: str) -> Client:
        client = Client(*await asyncio.open_connection(*self.server.address))
        self._clients.append(client)
        await client.done(frames.Login, frames.VERSION, token)
        return client

    async def connect(self) -> Client:
        """Connect to the control socket."""
        client = Client(*await asyncio.open_unix_connection(self.host.socket))
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            client.close()
        await self.server.close()

    async def state(self) -> dict[str, Any]:
        """Return all state that a verb can change: rows on the disk, and objects in memory."""
        await self.host.settled()
        tables = await self.host.storage.read(_rows)
        readers = [
            {name: value for name, value in each.items() if name != "quiet_s"}
            for each in self.host.readers.overview()
        ]
        return tables | {
            "readers": readers,
            "stages": self.host.stage_store.overview(),
            "transactions": [
                (each.id, len(each.messages), each.taken_count, each.doom)
                for each in self.host.transactions.live
            ],
            "taken": {
                queue.name: sorted(queue.taken) for queue in self.host.queues.by_key.values()
            },
            "paused": {queue.destination: queue.paused for queue in self.host.outgoing.queues},
        }


def _rows(db: sqlite3.Connection) -> dict[str, Any]:
    tables = (
        *("message", "outgoing", "queue", "outgoing_queue", "outcome", "branch", "awaiting"),
        *("reader", "reader_queue", "reservation", "stage", "publication", "peer_instance"),
    )
    return {table: db.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in tables}


@contextlib.asynccontextmanager
async def others(hosts: Hosts) -> AsyncIterator[World]:
    """Start a queue manager with objects of other clients: see World."""
    host = await hosts.start()
    world = World(host)
    await world.server.listen()
    await host.create(MINE)
    for name in (SECRET, "secret2"):
        await host.create(name, transactional=True)
    await host.send(MINE, b"mine")
    ids = await host.send(SECRET, *[b"%d" % at for at in range(8)])
    await host.send(ELSEWHERE, b"on its way")
    world.local = local = await world.connect()
    await local.done(frames.Move, SECRET, "secret;retry", frames.Choice(message_ids=[]),
                     frames.Piece(limit=1))  # fmt: skip
    [first] = await local.done(frames.Peek, SECRET)
    world.lookup_id, world.message_id = first[0], ids[1]
    run = await local.done(pipeline.OpenReader, READER, [SECRET])
    world.fence = run["fence"]
    reserved = await local.done(pipeline.Reserve, READER, world.fence, SECRET, 0, 2)
    world.positions = reserved["end"]
    await local.done(pipeline.Stage, QUERY, 0, 0, "a", 0, [NewMessage(SECRET, b"staged")])
    world.transaction, world.committed = os.urandom(16), os.urandom(16)
    await local.done(transaction_frames.Begin, world.committed)
    await local.done(frames.Send, [NewMessage(SECRET, b"done")], b"", world.committed)
    await local.done(transaction_frames.Commit, world.committed)
    await local.done(transaction_frames.Begin, world.transaction)
    await local.done(frames.Take, SECRET, 1, 0.0, world.transaction)
    await local.done(frames.Send, [NewMessage(SECRET, b"more")], b"", world.transaction)
    try:
        yield world
    finally:
        await world.close()


class Try(NamedTuple):
    """A request about objects of other clients.

    `code` is the error for a token with all scopes for the queue MINE alone.  It is "" where the
    request succeeds without information about other clients.
    """

    request: Callable[[World], Request]
    code: str = "queue_not_granted"


NOT_GRANTED, NONE_SUCH = "queue_not_granted", "no_such_transaction"


def about(verb: Any, *fields: Any, code: str = NOT_GRANTED) -> Try:
    """Return a try with fields that do not depend on the world."""
    return Try(lambda world: verb(0, *fields), code)


def to(destination: str, **more: Any) -> NewMessage:
    return NewMessage(destination, b"", **more)


SEVERAL = f"{MINE},{SECRET}"
TRIES: dict[type[Request], list[Try]] = {
    frames.Hello: [about(frames.Hello, code="")],
    frames.Login: [about(frames.Login, code="")],
    frames.Send: [
        about(frames.Send, [to(SECRET)]),
        about(frames.Send, [to(MINE), to("DIRECT=OS:.\\private$\\SECRET")]),
        about(frames.Send, [to(SEVERAL)]),
        about(frames.Send, [to(f"{MINE},list:all")]),
        about(frames.Send, [to(ELSEWHERE)]),
        about(frames.Send, [to(MINE, dead_letter_queue=SECRET)]),
        about(frames.Send, [to(MINE, admin_queue=SECRET, acknowledge=5)]),
        about(frames.Send, [to(MINE, report_queue="secret2")]),
        about(frames.Send, []),
        Try(lambda world: frames.Send(0, [to(MINE)], b"", world.transaction), NONE_SUCH),
    ],
    frames.Take: [
        about(frames.Take, SECRET),
        Try(lambda world: frames.Take(0, MINE, 1, 0.0, world.transaction), NONE_SUCH),
    ],
    frames.TakeChosen: [
        about(frames.TakeChosen, SECRET, frames.EVERY_MESSAGE),
        Try(
            lambda world: frames.TakeChosen(0, MINE, frames.Choice(), 1, 0.0, world.transaction),
            NONE_SUCH,
        ),
    ],
    frames.Look: [Try(lambda world: frames.Look(0, SECRET, "this", world.lookup_id))],
    frames.Peek: [about(frames.Peek, SECRET), about(frames.Peek, "secret;retry")],
    frames.Remove: [Try(lambda world: frames.Remove(0, SECRET, [world.lookup_id]))],
    frames.Reject: [Try(lambda world: frames.Reject(0, SECRET, [world.lookup_id]))],
    frames.GiveBack: [Try(lambda world: frames.GiveBack(0, SECRET, [world.lookup_id]))],
    frames.OpenExclusive: [about(frames.OpenExclusive, "secret2")],
    frames.CloseExclusive: [about(frames.CloseExclusive, "secret2")],
    frames.DeadLetters: [about(frames.DeadLetters, "DIRECT=OS:.\\SYSTEM$;DEADLETTER")],
    frames.Move: [about(frames.Move, SECRET, MINE), about(frames.Move, MINE, SECRET)],
    frames.Resend: [
        about(frames.Resend, SECRET, code=NOT_GRANTED),
        Try(lambda world: frames.Resend(0, MINE, to=SECRET)),
    ],
    frames.Import: [about(frames.Import, SECRET, [ImportedMessage(b"", 0)])],
    transaction_frames.Begin: [
        Try(lambda world: transaction_frames.Begin(0, world.transaction[:8]), "bad_transaction_id")
    ],
    transaction_frames.Commit: [
        Try(lambda world: transaction_frames.Commit(0, world.transaction), NONE_SUCH)
    ],
    transaction_frames.Abort: [
        Try(lambda world: transaction_frames.Abort(0, world.transaction), NONE_SUCH)
    ],
    transaction_frames.Settle: [
        Try(
            lambda world: transaction_frames.Settle(0, world.transaction, SECRET, [world.lookup_id])
        ),
        Try(lambda world: transaction_frames.Settle(0, world.transaction, MINE, [1], SECRET)),
        Try(
            lambda world: transaction_frames.Settle(0, world.transaction, MINE, [1], MINE),
            NONE_SUCH,
        ),
    ],
    frames.Outcome: [
        Try(lambda world: frames.Outcome(0, world.transaction), "transaction_of_another"),
        Try(lambda world: frames.Outcome(0, world.committed), ""),
    ],
    transaction_frames.ListTransactions: [about(transaction_frames.ListTransactions, code="")],
    transaction_frames.Enlist: [
        Try(lambda world: transaction_frames.Enlist(0, world.transaction, "shop"))
    ],
    transaction_frames.ForgetBranch: [
        Try(lambda world: transaction_frames.ForgetBranch(0, world.transaction, "shop"))
    ],
    transaction_frames.ListBranches: [about(transaction_frames.ListBranches)],
    operator.CreateQueue: [about(operator.CreateQueue, "more"), about(operator.CreateQueue, "")],
    operator.SetQueue: [about(operator.SetQueue, SECRET, 1)],
    operator.DeleteQueue: [about(operator.DeleteQueue, SECRET)],
    operator.PurgeQueue: [about(operator.PurgeQueue, SECRET)],
    operator.ListQueues: [about(operator.ListQueues)],
    operator.ShowQueue: [about(operator.ShowQueue, SECRET)],
    operator.ListOutgoing: [about(operator.ListOutgoing)],
    operator.ShowOutgoing: [about(operator.ShowOutgoing, ELSEWHERE)],
    operator.ListAwaiting: [about(operator.ListAwaiting, ELSEWHERE)],
    operator.GiveUpAwaiting: [about(operator.GiveUpAwaiting, ELSEWHERE)],
    operator.PauseOutgoing: [about(operator.PauseOutgoing, ELSEWHERE)],
    operator.ResumeOutgoing: [about(operator.ResumeOutgoing, ELSEWHERE)],
    operator.KickOutgoing: [about(operator.KickOutgoing, ELSEWHERE)],
    operator.PurgeOutgoing: [about(operator.PurgeOutgoing, ELSEWHERE)],
    operator.ListSequences: [about(operator.ListSequences)],
    operator.ListSessions: [about(operator.ListSessions)],
    operator.Status: [about(operator.Status)],
    operator.Why: [
        Try(lambda world: operator.Why(0, world.message_id)),
        Try(lambda world: operator.Why(0, world.message_id, SECRET)),
        Try(lambda world: operator.Why(0, world.message_id, MINE)),
        Try(lambda world: operator.Why(0, world.message_id.partition("\\")[0] + "\\4000000", MINE)),
    ],
    operator.Events: [about(operator.Events), about(operator.Events, "", 10, 10, SECRET)],
    routing.RestartOutgoing: [
        about(routing.RestartOutgoing, ELSEWHERE),
        about(routing.RestartOutgoing, ELSEWHERE, True),
    ],
    routing.RedirectOutgoing: [
        about(routing.RedirectOutgoing, ELSEWHERE, "127.0.0.1:10"),
        about(routing.RedirectOutgoing, "127.0.0.1:9", "127.0.0.1:10"),
        about(routing.RedirectOutgoing, MINE, "127.0.0.1:10"),
    ],
    routing.ForgetIdentity: [about(routing.ForgetIdentity, "0" * 8)],
    pipeline.OpenReader: [
        about(pipeline.OpenReader, "new", [SECRET]),
        about(pipeline.OpenReader, READER, [MINE]),
        about(pipeline.OpenReader, READER, []),
        Try(lambda world: pipeline.OpenReader(0, "new", [secret_id(world)])),
    ],
    pipeline.Reserve: [
        Try(lambda world: pipeline.Reserve(0, READER, world.fence, SECRET, 0)),
        Try(lambda world: pipeline.Reserve(0, READER, world.fence, MINE, 0)),
        Try(lambda world: pipeline.Reserve(0, READER, world.fence, secret_id(world), 0)),
    ],
    pipeline.ReadRange: [
        about(pipeline.ReadRange, SECRET),
        about(pipeline.ReadRange, SECRET, 0, 0, 1, 1, READER),
        about(pipeline.ReadRange, MINE, 0, 0, 1, 1, READER),
    ],
    pipeline.SplitRange: [about(pipeline.SplitRange, SECRET)],
    pipeline.Consume: [
        Try(lambda world: pipeline.Consume(0, READER, world.fence, {secret_id(world): 1})),
        Try(lambda world: pipeline.Consume(0, READER, world.fence, {SECRET: 1})),
        Try(lambda world: pipeline.Consume(0, READER, world.fence, {})),
    ],
    pipeline.ListReaders: [about(pipeline.ListReaders)],
    pipeline.ReleaseReader: [
        about(pipeline.ReleaseReader, READER),
        about(pipeline.ReleaseReader, READER, MINE),
        about(pipeline.ReleaseReader, READER, "", False, True),
    ],
    pipeline.Stage: [
        about(pipeline.Stage, "new", 0, 0, "a", 0, [to(SECRET)]),
        about(pipeline.Stage, QUERY, 0, 0, "a", 0, [to(MINE)]),
        about(pipeline.Stage, QUERY, 0, 0, "a", 1, [to(MINE)]),
        about(pipeline.Stage, QUERY, 7, 0, "b", 0, [to(MINE)]),
        about(pipeline.Stage, QUERY, 0, 0, "a", 0, []),
    ],
    pipeline.Publish: [
        about(pipeline.Publish, QUERY, 0, [Attempt(0, "a", 1)]),
        about(pipeline.Publish, QUERY, 0, []),
        about(pipeline.Publish, QUERY, 9, []),
    ],
    pipeline.DiscardStages: [
        about(pipeline.DiscardStages, QUERY),
        about(pipeline.DiscardStages, QUERY, 0, 0, "a"),
        about(pipeline.DiscardStages, "", None, None, "", 1),
        about(pipeline.DiscardStages),
    ],
    pipeline.ListStages: [about(pipeline.ListStages)],
    pipeline.MarkShipped: [about(pipeline.MarkShipped, 0)],
    directory.DirectoryStatus: [about(directory.DirectoryStatus)],
    directory.DirectoryReload: [about(directory.DirectoryReload)],
    directory.DirectoryLookup: [about(directory.DirectoryLookup, SECRET)],
    directory.CreateList: [about(directory.CreateList, "all", [SECRET])],
    directory.DeleteList: [about(directory.DeleteList, "all")],
    directory.AddMembers: [about(directory.AddMembers, "all", [SECRET])],
    directory.RemoveMembers: [about(directory.RemoveMembers, "all", [SECRET])],
    directory.ShowList: [about(directory.ShowList, "all")],
    directory.ExpandList: [about(directory.ExpandList, "all")],
    directory.ListLists: [about(directory.ListLists)],
    directory.ListAliases: [about(directory.ListAliases)],
    directory.CreateAlias: [about(directory.CreateAlias, "boss", SECRET)],
    directory.DeleteAlias: [about(directory.DeleteAlias, "boss")],
    directory.ExplainName: [about(directory.ExplainName, SECRET)],
}


def secret_id(world: World) -> str:
    """Return the id of the queue SECRET that pipelines use."""
    return next(each["queue"] for each in world.host.readers.overview())


def test_every_verb_has_a_row_and_a_try() -> None:
    verbs = set(frames.all_verbs())

    assert verbs == set(HANDLERS)
    assert {verb.__name__ for verb in verbs ^ set(verb_rights.TABLE)} == set()
    assert {verb.__name__ for verb in verbs ^ set(TRIES)} == set()


def test_a_verb_without_a_row_needs_all_rights() -> None:
    class New(Request, tag="new", frozen=True):
        pass

    rights = GrantedRights(Grant("t", frozenset({READ, WRITE}), ("*",), "", ""))
    with pytest.raises(Exception, match="needs admin"):
        verb_rights.admit(None, rights, New(1))  # type: ignore[arg-type]


def test_every_id_in_a_verb_is_bound_to_its_token() -> None:
    """Ids are found by the types of the fields, since their names differ."""
    rights = GrantedRights(Grant("t", frozenset({READ, WRITE}), ("*",), "", ""))
    ids = (frames.Token, frames.TransactionId)
    found = 0
    for verb in frames.all_verbs():
        hints = get_type_hints(verb, include_extras=True)
        for field in [name for name, hint in hints.items() if hint in ids]:
            if verb in (transaction_frames.Enlist, transaction_frames.ForgetBranch):
                continue  # only for clients with all rights
            defaults = {
                each.name: each.default
                for each in msgspec.structs.fields(verb)
                if each.default is not msgspec.NODEFAULT
            }
            given = {name: None for name in verb.__struct_fields__} | defaults
            request = verb(**given | {field: bytes(16)})
            claimed = getattr(rights.claim(request), field)
            assert claimed != bytes(16), (verb, field)
            assert rights.shown_id(claimed) == bytes(16)
            found += 1
    assert found >= 12


def test_the_manual_has_the_table() -> None:
    manual = (ROOT / "docs" / "remote.md").read_text()

    assert verb_rights.reference() in manual, (
        "put in what `python -m qmd.control.verb_rights` prints"
    )


@hosted
async def test_a_token_for_one_queue_has_no_effect_on_other_clients(hosts: Hosts) -> None:
    async with others(hosts) as world:
        narrow = await world.log_in(READ, WRITE, ADMIN, queues=(MINE,))
        before = await world.state()
        for verb, tries in TRIES.items():
            for at, each in enumerate(tries):
                reply = await narrow.ask_as(each.request(world))
                where = f"{verb.__name__}, try {at}: {reply}"
                if each.code:
                    assert isinstance(reply, Refused), where
                    assert reply.code == each.code, where
                    assert find_by_code(reply.code) is not None, where
                    assert reply.id, where
                    assert reply.remedy, where
                else:
                    assert isinstance(reply, Done), where
                    assert verb in (frames.Hello, frames.Login) or not reply.result, where
                assert await world.state() == before, where
        await still_whole(world)


@hosted
async def test_a_token_without_the_scope_is_refused(hosts: Hosts) -> None:
    async with others(hosts) as world:
        clients = {
            READ: await world.log_in(WRITE),
            WRITE: await world.log_in(READ),
            ADMIN: await world.log_in(READ, WRITE),
        }
        before = await world.state()
        for verb, tries in TRIES.items():
            scopes = [need.scope for need in verb_rights.TABLE[verb].needs]
            if scopes[0] == ANY:
                continue
            for at, each in enumerate(tries):
                reply = await clients[scopes[0]].ask_as(each.request(world))
                where = f"{verb.__name__}, try {at}: {reply}"
                assert isinstance(reply, Refused), where
                assert reply.code == "scope_missing", where
                assert await world.state() == before, where
        # A move in a transaction needs the rights to receive and to write.
        own = os.urandom(16)
        await clients[WRITE].done(transaction_frames.Begin, own)
        reply = await clients[WRITE].ask(transaction_frames.Settle, own, MINE, [1], SECRET)
        assert isinstance(reply, Refused)
        assert reply.code == "scope_missing"
        await still_whole(world)


@hosted
async def test_a_client_cannot_end_a_transaction_of_another(hosts: Hosts) -> None:
    """The id of the transaction, which the history of a queue may contain, gives no right."""
    async with others(hosts) as world:
        spies = [
            await world.log_in(READ),
            await world.log_in(READ, WRITE),
            await world.log_in(READ, WRITE, ADMIN, queues=(MINE, "secret*")),
        ]
        before = await world.state()
        for spy in spies:
            assert await spy.done(transaction_frames.ListTransactions) == []
            for verb in (frames.Outcome, transaction_frames.Commit, transaction_frames.Abort):
                reply = await spy.ask(verb, world.transaction)
                assert isinstance(reply, Refused), verb
            assert await spy.done(frames.Outcome, world.committed) is None
            assert await world.state() == before
        for client in (world.local, await world.connect(), await world.log_in(READ, ADMIN)):
            [shown] = await client.done(transaction_frames.ListTransactions)
            assert shown["transaction"] == world.transaction.hex()
        await still_whole(world)


@hosted
async def test_equal_ids_of_different_tokens_are_independent(hosts: Hosts) -> None:
    async with others(hosts) as world:
        path = world.server.settings.tokens
        first = create(path, "first", frozenset({READ, WRITE}), ())
        client, again = [await world.log_in_with(first) for _ in range(2)]
        other = await world.log_in(READ, WRITE)
        once, transaction = b"order 17", os.urandom(16)

        ids = await client.done(frames.Send, [to(MINE)], once, b"", True)
        assert await again.done(frames.Outcome, once) == ids
        assert await again.done(frames.Send, [to(MINE)], once, b"", True) == ids
        assert await other.done(frames.Outcome, once) is None
        others_ids = await other.done(frames.Send, [to(MINE)], once, b"", True)
        assert others_ids != ids
        assert await world.local.done(frames.Outcome, once) is None

        await client.done(transaction_frames.Begin, transaction)
        [shown] = await again.done(transaction_frames.ListTransactions)
        assert shown["transaction"] == transaction.hex()
        assert await other.done(transaction_frames.ListTransactions) == []
        reply = await other.ask(frames.Outcome, transaction)
        assert isinstance(reply, Refused)
        assert reply.code == "transaction_of_another"
        await client.done(frames.Send, [to(SECRET)], b"", transaction)
        ids = await client.done(transaction_frames.Commit, transaction)
        assert await again.done(frames.Outcome, transaction) == ids
        assert await other.done(frames.Outcome, transaction) is None


@hosted
async def test_a_send_that_is_not_granted_dooms_the_transaction_of_its_client(
    hosts: Hosts,
) -> None:
    async with others(hosts) as world:
        await world.host.create("own", transactional=True)
        client = await world.log_in(READ, WRITE, queues=("own",))
        other = await world.log_in(READ, WRITE, queues=("own",))
        mine, theirs = os.urandom(16), os.urandom(16)
        await client.done(transaction_frames.Begin, mine)
        await other.done(transaction_frames.Begin, theirs)
        for transaction in (mine, world.transaction, theirs):
            await client.ask(frames.Send, [to(SECRET)], b"", transaction)
        await other.done(frames.Send, [to("own")], b"", theirs)
        reply = await client.ask(transaction_frames.Commit, mine)
        assert isinstance(reply, Refused)
        assert reply.code == "transaction_doomed"
        await other.done(transaction_frames.Commit, theirs)
        await still_whole(world)


@hosted
async def test_a_token_can_use_its_own_queues(hosts: Hosts) -> None:
    async with others(hosts) as world:
        mine = await world.log_in(READ, WRITE, ADMIN, queues=(MINE, "mine;*", "order*"))
        await mine.done(operator.CreateQueue, "orders")
        for name in ("orders,list:all", "orders,alias:boss", f"orders,list:all,{SECRET}"):
            reply = await mine.ask(frames.Send, [to(name)])  # it begins like one of its own
            assert isinstance(reply, Refused)
            assert reply.code == "queue_not_granted"
        [sent] = await mine.done(frames.Send, [to(f"{MINE},orders")])
        assert len(sent) == 2
        await mine.done(frames.Move, "orders", MINE)
        told = await mine.done(operator.Why, sent[1], MINE)
        assert {place["queue"] for place in told["places"]} == {"private$\\mine"}
        assert not told["peers"]
        assert (await mine.done(operator.Events, "", 100, 100, MINE))["events"]
        run = await mine.done(pipeline.OpenReader, "r", [MINE])
        run = await mine.done(pipeline.OpenReader, "r", [MINE])
        end = await mine.done(pipeline.Reserve, "r", run["fence"], MINE, 0)
        await mine.done(pipeline.Consume, "r", run["fence"], {MINE: end["end"]})
        await mine.done(pipeline.ReleaseReader, "r", "", False, True)
        for epoch in range(2):
            await mine.done(pipeline.Stage, "q", epoch, 0, "a", 0, [to(MINE)])
            published = await mine.done(pipeline.Publish, "q", epoch, [Attempt(0, "a", 1)])
            assert published["published"]
            published = await mine.done(pipeline.Publish, "q", epoch, [Attempt(0, "a", 1)])
            assert not published["published"]
        await mine.done(pipeline.Stage, "q", 2, 0, "a", 0, [to(MINE)])
        assert (await mine.done(pipeline.DiscardStages, "q"))["rows"] == 1
        await mine.done(operator.DeleteQueue, "orders")
        await still_whole(world)


@hosted
async def test_a_message_is_resent_only_to_queues_of_the_token(hosts: Hosts) -> None:
    async with others(hosts) as world:
        await world.host.send(MINE, b"tells the secret", admin_queue=SECRET, acknowledge=2)
        admin = await world.log_in(ADMIN, queues=(MINE,))
        before = await world.state()
        reply = await admin.ask(frames.Resend, MINE)
        assert isinstance(reply, Refused)
        assert reply.code == "queue_not_granted"
        assert await world.state() == before
        wider = await world.log_in(ADMIN, queues=(MINE, SECRET))
        assert (await wider.done(frames.Resend, MINE))["messages"] == 2


@hosted
async def test_stages_of_an_earlier_run_need_rights_for_their_queues(hosts: Hosts) -> None:
    async with others(hosts) as world:
        host = world.host
    host = await hosts.restart(host)
    world = World(host)
    await world.server.listen()
    try:
        narrow = await world.log_in(WRITE, queues=(MINE,))
        before = await world.state()
        for verb, fields in (
            (pipeline.Publish, (QUERY, 0, [Attempt(0, "a", 1)])),
            (pipeline.Publish, (QUERY, 0, [])),
            (pipeline.Stage, (QUERY, 0, 0, "a", 0, [to(MINE)])),
            (pipeline.DiscardStages, (QUERY,)),
        ):
            reply = await narrow.ask(verb, *fields)
            assert isinstance(reply, Refused), verb
            assert reply.code == "queue_not_granted", verb
            assert await world.state() == before
        wide = await world.log_in(WRITE, queues=("secret*",))
        assert (await wide.done(pipeline.Publish, QUERY, 0, [Attempt(0, "a", 1)]))["published"]
    finally:
        await world.close()


@hosted
async def test_a_query_needs_rights_for_its_queues_between_two_batches(hosts: Hosts) -> None:
    async with others(hosts) as world:
        await still_whole(world)
        assert not world.host.stage_store.overview()
        spy = await world.log_in(READ, WRITE, queues=(MINE,))
        before = await world.state()
        for verb, fields in (
            (pipeline.Publish, (QUERY, 1, [])),
            (pipeline.Publish, (QUERY, 0, [])),
            (pipeline.Stage, (QUERY, 1, 0, "a", 0, [to(MINE)])),
            (pipeline.DiscardStages, (QUERY,)),
        ):
            reply = await spy.ask(verb, *fields)
            assert isinstance(reply, Refused), verb
            assert reply.code == "queue_not_granted", verb
            assert await world.state() == before
    host = await hosts.restart(world.host)
    world = World(host)
    await world.server.listen()
    spy = await world.log_in(READ, WRITE, queues=(MINE,))
    reply = await spy.ask(pipeline.Publish, QUERY, 1, [])
    assert isinstance(reply, Refused)
    await world.close()


@hosted
async def test_a_query_name_of_another_token_loses_no_rows(hosts: Hosts) -> None:
    async with others(hosts) as world:
        spy = await world.log_in(READ, WRITE, queues=(MINE,))
        assert (await spy.done(pipeline.Publish, "new", 0, []))["published"]
        await spy.done(pipeline.Stage, "new", 1, 0, "a", 0, [to(MINE)])
        assert (await spy.done(pipeline.Publish, "new", 1, [Attempt(0, "a", 1)]))["published"]
        for epoch in range(2):
            await world.local.done(pipeline.Stage, "new", epoch, 0, "b", 0, [to(SECRET)])
            reply = await world.local.ask(pipeline.Publish, "new", epoch, [Attempt(0, "b", 1)])
            assert isinstance(reply, Refused)
            assert reply.code == "epoch_of_another"
            assert reply.id
        # With the same queue it counts as the same pipeline, though with other rights.
        await world.local.done(pipeline.DiscardStages, "new")
        await world.local.done(pipeline.Stage, "new", 1, 0, "c", 0, [to(MINE)])
        told = await world.local.done(pipeline.Publish, "new", 1, [Attempt(0, "c", 1)])
        assert not told["published"]
        await still_whole(world)


def test_a_token_for_everything_has_all_rights() -> None:
    assert rights_of(Grant("t", frozenset({ADMIN}), ("*",), "", "")) is ALL_RIGHTS
    for scopes, queues in (({READ, WRITE}, ("*",)), ({ADMIN}, ("a*",))):
        assert not rights_of(Grant("t", frozenset(scopes), queues, "", "")).are_all


async def still_whole(world: World) -> None:
    """Assert that the other clients can complete their work."""
    await world.local.done(transaction_frames.Commit, world.transaction)
    told = await world.local.done(pipeline.Consume, READER, world.fence, {SECRET: world.positions})
    assert told["messages"] == world.positions
    published = await world.local.done(pipeline.Publish, QUERY, 0, [Attempt(0, "a", 1)])
    assert published["published"]
