"""Requests about objects of other clients, for every verb of the control protocol.

The requests name real objects: a queue with messages and a subqueue, a transaction that has
received and sent, a message by its id, a reader with a reserved range, staged rows, an outgoing
queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from qmd.access.tokens import create
from qmd.control.remote import RemoteServer
from qmd.control.verbs import HANDLERS
from qmd.control_protocol import (
    access,
    audit,
    delayed,
    directory,
    doors,
    figures,
    identities,
    routing,
    settings,
    tls,
)
from qmd.control_protocol import bulk as pipeline
from qmd.control_protocol import links as link_frames
from qmd.control_protocol import locks as lock_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator
from qmd.control_protocol import topics as topic_frames
from qmd.control_protocol import transactions as transaction_frames
from qmd.control_protocol.bulk import Attempt
from qmd.control_protocol.messages import Done, ImportedMessage, NewMessage, Refused, Request
from qmd.control_protocol.once import SendOnce
from qmd.control_protocol.signing import SigningParts
from tests.integration.managers import Host, Hosts
from tests.patience import END_S

SENDER = "S-1-5-21-1-2-3-1001"
ELSEWHERE = "DIRECT=TCP:127.0.0.1:9\\private$\\others"
MINE, SECRET = "mine", "secret"
GUID = "11111111-1111-1111-1111-111111111111"
QUERY, READER = "etl", "archive"
LOCK = bytes(range(16))  # of a local application; it holds a message of SECRET
LINK = link_frames.LinkDeliveries(bytes(16), 0, 0, [b"a delivery"])


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
    delayed_id: str  # of a delayed message to SECRET
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
            "locks": [
                (each.id, each.ends_at, each.messages) for each in self.host.locks._locks.values()
            ],
            "taken": {
                queue.name: sorted(queue.taken) for queue in self.host.queues.by_key.values()
            },
            "paused": {queue.destination: queue.paused for queue in self.host.outgoing.queues},
        }


def _rows(db: sqlite3.Connection) -> dict[str, Any]:
    tables = (
        *("message", "outgoing", "queue", "outgoing_queue", "outcome", "branch", "awaiting"),
        *("reader", "reader_queue", "reservation", "stage", "publication", "peer_origin"),
        *("access_entry", "topic", "subscription", "delayed"),
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
    (world.delayed_id,) = await host.send(SECRET, b"later", delay_ms=3_600_000)
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
    await local.done(lock_frames.TakeLocked, SECRET, LOCK, 3600.0)
    await local.done(topic_frames.CreateTopic, "news")
    await local.done(topic_frames.Subscribe, "news", "secret", SECRET)
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


QUEUED = "ShowOutgoing PauseOutgoing ResumeOutgoing KickOutgoing PurgeOutgoing ListAwaiting"
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
        about(frames.Send, [to("topic:news")]),
    ],
    SendOnce: [
        about(SendOnce, [to(SECRET)], b"key"),
        about(SendOnce, [to(MINE, dead_letter_queue=SECRET)], b"key", b"digest"),
    ],
    link_frames.SendOverLinks: [about(link_frames.SendOverLinks, [to(SECRET)], [LINK])],
    # The same id names another link for each client.
    link_frames.ResumeLink: [about(link_frames.ResumeLink, LINK.link, code="")],
    link_frames.ForgetLink: [about(link_frames.ForgetLink, LINK.link, code="")],
    SigningParts: [
        about(SigningParts, to(SECRET)),
        about(SigningParts, to(SECRET), True),
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
    lock_frames.TakeLocked: [
        about(lock_frames.TakeLocked, SECRET, bytes(16), 5.0),
        about(lock_frames.TakeLocked, MINE, bytes(8), 5.0, code="bad_lock_id"),
    ],
    lock_frames.SettleLocked: [
        about(lock_frames.SettleLocked, LOCK, SECRET),
        about(lock_frames.SettleLocked, LOCK, MINE, code="lock_lost"),
    ],
    lock_frames.RenewLock: [about(lock_frames.RenewLock, LOCK, 5.0, code="lock_lost")],
    lock_frames.ListLocks: [about(lock_frames.ListLocks, code="")],
    lock_frames.Enroll: [
        Try(lambda world: lock_frames.Enroll(0, world.transaction, SECRET, [world.lookup_id])),
        Try(
            lambda world: lock_frames.Enroll(0, world.transaction, MINE, [world.lookup_id], LOCK),
            NONE_SUCH,
        ),
    ],
    **{
        verb: [about(verb)]
        for verb in (
            figures.HostFigures,
            figures.QueueFigures,
            figures.DestinationFigures,
            figures.OldestMessages,
            audit.AuditEntries,
            audit.LogLevels,
            audit.SetLogLevel,
        )
    },
    topic_frames.CreateTopic: [
        about(topic_frames.CreateTopic, "news"),
        about(topic_frames.CreateTopic, "mine", SECRET),
    ],
    topic_frames.DeleteTopic: [about(topic_frames.DeleteTopic, "news")],
    topic_frames.Subscribe: [about(topic_frames.Subscribe, "news", "s", SECRET)],
    topic_frames.Unsubscribe: [about(topic_frames.Unsubscribe, "news", "secret")],
    topic_frames.ShowTopic: [about(topic_frames.ShowTopic, "news")],
    topic_frames.ListTopics: [about(topic_frames.ListTopics)],
    frames.OpenExclusive: [about(frames.OpenExclusive, "secret2")],
    frames.CloseExclusive: [about(frames.CloseExclusive, "secret2")],
    delayed.ListDelayed: [about(delayed.ListDelayed, SECRET), about(delayed.ListDelayed)],
    delayed.CancelDelayed: [
        Try(lambda world: delayed.CancelDelayed(0, [world.delayed_id]), code=""),  # as of none
        about(delayed.CancelDelayed, [], code=""),
    ],
    operator.DeadLetters: [about(operator.DeadLetters, "DIRECT=OS:.\\SYSTEM$;DEADLETTER")],
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
    operator.ListSequences: [about(operator.ListSequences)],
    operator.ListSessions: [about(operator.ListSessions)],
    operator.Status: [about(operator.Status)],
    operator.Why: [
        Try(lambda world: operator.Why(0, world.message_id)),
        Try(lambda world: operator.Why(0, world.message_id, SECRET)),
        Try(lambda world: operator.Why(0, world.message_id, MINE)),
        Try(lambda world: operator.Why(0, world.message_id.partition("\\")[0] + "\\4000000", MINE)),
    ],
    operator.Inventory: [about(operator.Inventory)],
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
    identities.ListPeers: [about(identities.ListPeers)],
    identities.PinPeer: [
        about(identities.PinPeer, GUID, "127.0.0.9"),
        about(identities.PinPeer, GUID, "127.0.0.9", True),
    ],
    identities.ForgetPeer: [about(identities.ForgetPeer, GUID)],
    tls.ListTlsPeers: [about(tls.ListTlsPeers)],
    settings.ShowSettings: [about(settings.ShowSettings)],
    settings.ReloadSettings: [about(settings.ReloadSettings)],
    tls.ForgetTlsPeer: [about(tls.ForgetTlsPeer, "0" * 8)],
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
    directory.PublishKeys: [about(directory.PublishKeys)],
    directory.RegisterCertificate: [about(directory.RegisterCertificate, SENDER, b"certificate")],
    directory.RemoveCertificate: [about(directory.RemoveCertificate, SENDER, "00" * 32)],
    directory.ListCertificates: [about(directory.ListCertificates, SENDER)],
    directory.ExplainName: [about(directory.ExplainName, SECRET)],
    access.ShowAccess: [about(access.ShowAccess, SECRET), about(access.ShowAccess, "host")],
    access.ChangeAccess: [
        about(access.ChangeAccess, "grant", "everyone", "full", SECRET),
        about(access.ChangeAccess, "revoke", "everyone", "send", "secret;retry"),
        about(access.ChangeAccess, "grant", "everyone", "full", "host"),
        about(access.ChangeAccess, "deny", "everyone", "full", "*"),
        about(access.ChangeAccess, "deny", "everyone", "send", ELSEWHERE),
    ],
    access.SetOwner: [about(access.SetOwner, SECRET), about(access.SetOwner, SECRET, "user:1000")],
    access.TestAccess: [
        about(access.TestAccess, "everyone", "send", SECRET),
        about(access.TestAccess, "everyone", "create-queue", "host"),
    ],
    access.ExportAccess: [about(access.ExportAccess)],
    doors.StopWaiting: [about(doors.StopWaiting, SECRET)],
    **{each: [about(each, ELSEWHERE)] for each in (getattr(operator, n) for n in QUEUED.split())},
    operator.PeekOutgoing: [about(operator.PeekOutgoing, ELSEWHERE, 0, 1, "label")],
    operator.GiveUpAwaiting: [about(operator.GiveUpAwaiting, ELSEWHERE)],
    doors.RejectOutgoing: [about(doors.RejectOutgoing, "http://b:80", bytes(16), 1, 0x8000, "")],
    doors.EndLinkSession: [about(doors.EndLinkSession, "http://hostb:80", "no answer")],
    doors.AnnounceSession: [about(doors.AnnounceSession, "127.0.0.1", 9, "10.0.0.1", [])],
    doors.Note: [about(doors.Note, SECRET, [1], "seen")],
    access.ActFor: [about(access.ActFor, ["sasl:ann"]), about(access.ActFor, ["anonymous"])],
    access.ImportAccess: [
        about(access.ImportAccess, []),
        about(access.ImportAccess, [], [], True),
        about(
            access.ImportAccess,
            [access.ImportedEntry("host", "everyone", None, "allow", "full")],
            [access.ImportedOwner(SECRET, "user:4711", None)],
        ),
    ],
}


def secret_id(world: World) -> str:
    """Return the id of the queue SECRET that pipelines use."""
    return next(each["queue"] for each in world.host.readers.overview())
