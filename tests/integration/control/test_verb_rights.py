"""Rights of all verbs: with insufficient tokens they are refused, and they change nothing.

The requests name real objects of other clients: a queue with messages and a subqueue, a transaction
that has received and sent, a message by its id, a reader with a reserved range, staged rows, an
outgoing queue.  A verb without a row in `qmd.control.verb_rights`, or without a try here, fails.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

from qmd.access.demands import ADMIN, ANY, READ, WRITE
from qmd.access.rights import GrantedRights, rights_of
from qmd.access.tokens import Grant, create
from qmd.catalogue import find_by_code
from qmd.control import verb_rights
from qmd.control.verbs import HANDLERS
from qmd.control_protocol import bulk as pipeline
from qmd.control_protocol import locks as lock_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator
from qmd.control_protocol import topics as topic_frames
from qmd.control_protocol import transactions as transaction_frames
from qmd.control_protocol.bulk import Attempt
from qmd.control_protocol.messages import Done, Refused, Request
from qmd.control_protocol.parts import MANY
from tests.integration.control.verb_tries import (
    LOCK,
    MINE,
    QUERY,
    READER,
    SECRET,
    TRIES,
    World,
    others,
    to,
)
from tests.integration.managers import Hosts, hosted

ROOT = Path(__file__).parents[3]


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
        before, count = await world.state(), 0
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
                count += 1
                assert world.host.access_checks.refused_count == count, where
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
async def test_a_client_cannot_settle_a_lock_of_another(hosts: Hosts) -> None:
    """A client with rights on the queue knows the id of the lock."""
    async with others(hosts) as world:
        spy = await world.log_in(READ, WRITE, queues=(MINE, "secret*"))
        before = await world.state()
        assert await spy.done(lock_frames.ListLocks) == []
        for how in ("remove", "reject", "give_back", "fail"):
            reply = await spy.ask(lock_frames.SettleLocked, LOCK, SECRET, [], how)
            assert isinstance(reply, Refused)
            assert reply.code == "lock_lost"
        own = os.urandom(16)
        await spy.done(transaction_frames.Begin, own)
        for request in (
            lock_frames.RenewLock(0, LOCK, 0.001),
            lock_frames.Enroll(0, own, SECRET, [world.lookup_id], LOCK),
        ):
            reply = await spy.ask_as(request)
            assert isinstance(reply, Refused)
            assert reply.code == "lock_lost"
        await spy.done(transaction_frames.Abort, own)
        # Its own lock of the same id is another one.
        await spy.done(lock_frames.TakeLocked, MINE, LOCK, 3600.0)
        assert await spy.done(lock_frames.SettleLocked, LOCK, MINE, [], "give_back") == 1
        assert await world.state() == before
        [shown] = await world.local.done(lock_frames.ListLocks)
        assert shown["lock"] == LOCK.hex()
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
        reported = await mine.done(operator.Why, sent[1], MINE)
        assert {place["queue"] for place in reported["places"]} == {"private$\\mine"}
        assert not reported["peers"]
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
async def test_the_right_to_send_to_a_topic_is_a_right_of_its_own(hosts: Hosts) -> None:
    async with others(hosts) as world:
        writer = await world.log_in(READ, WRITE, queues=("topic:news",))
        before = world.host.queue(SECRET).messages
        reply = await writer.ask(frames.Send, [to(SECRET)])
        assert isinstance(reply, Refused)
        assert reply.code == "queue_not_granted"
        await writer.done(frames.Send, [to("Topic:NEWS", delivery=frames.TRANSACTIONAL)])
        assert world.host.queue(SECRET).messages == before + 1
        # A subscription needs the right to send to its queue.
        admin = await world.log_in(ADMIN, queues=("topic:*",))
        reply = await admin.ask(topic_frames.Subscribe, "news", "more", SECRET)
        assert isinstance(reply, Refused)
        assert reply.code == "queue_not_granted"
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
        reported = await world.local.done(pipeline.Publish, "new", 1, [Attempt(0, "c", 1)])
        assert not reported["published"]
        await still_whole(world)


def test_a_token_for_everything_has_all_rights() -> None:
    assert rights_of(Grant("t", frozenset({ADMIN}), ("*",), "", "")).are_all
    for scopes, queues in (({READ, WRITE}, ("*",)), ({ADMIN}, ("a*",))):
        assert not rights_of(Grant("t", frozenset(scopes), queues, "", "")).are_all


async def still_whole(world: World) -> None:
    """Assert that the other clients can complete their work."""
    await world.local.done(transaction_frames.Commit, world.transaction)
    reported = await world.local.done(
        pipeline.Consume, READER, world.fence, {SECRET: world.positions}
    )
    assert reported["messages"] == world.positions
    published = await world.local.done(pipeline.Publish, QUERY, 0, [Attempt(0, "a", 1)])
    assert published["published"]


@hosted
async def test_large_requests_of_a_token_are_counted_and_end_with_it(hosts: Hosts) -> None:
    async with others(hosts) as world:
        limited = replace(world.server.settings, requests_per_second=1)
        world.server.settings = limited
        ann = await world.log_in("write")
        many = [to(SECRET) for _ in range(MANY)]
        replies = [await ann.ask(frames.Send, many) for _ in range(30)]
        assert "too_many_requests" in {getattr(each, "code", "") for each in replies}

        world.server.settings = replace(limited, requests_per_second=100_000)
        bob = await world.log_in("write")
        before = world.host.queue(SECRET).messages
        world.server.watch.is_valid = lambda grant: False  # type: ignore[method-assign]
        refusal = await bob.ask(frames.Send, many)
        assert getattr(refusal, "code", "") == "token_refused"
        with pytest.raises(asyncio.IncompleteReadError):  # the connection ends
            await bob.ask(frames.Send, many)
        assert world.host.queue(SECRET).messages == before
