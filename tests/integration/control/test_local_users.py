"""Rights of local users: programs of several users at one control socket.

The users are real: each connection was made by a process of that user (tests/users.py).
"""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
from typing import Any

import msgspec

from protocol import parse_user_message
from qmd.access.register import Holder, holder_of
from qmd.access.rights import PrincipalRights
from qmd.catalogue import find_by_code
from qmd.control_protocol import access, delayed, directory, routing
from qmd.control_protocol import bulk as pipeline
from qmd.control_protocol import links as link_frames
from qmd.control_protocol import locks as lock_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator
from qmd.control_protocol import topics as topic_frames
from qmd.control_protocol import transactions as transaction_frames
from qmd.control_protocol.bulk import Attempt
from qmd.control_protocol.messages import Done, ImportedMessage, Refused, Request
from qmd.core.access import DEFAULTS, Kind
from qmd.core.principals import ALL, Principal, parse_principal
from storage.tables import outcomes
from tests.integration.control.verb_tries import (
    ELSEWHERE,
    MINE,
    SECRET,
    TRIES,
    Client,
    others,
    to,
)
from tests.integration.managers import Host, Hosts, hosted
from tests.patience import END_S
from tests.users import connect_as, needs_root

pytestmark = needs_root

ANN, BOB, STAFF = 4711, 4712, 4800  # ids that no account has
DEAD_LETTERS = "DIRECT=OS:.\\SYSTEM$;DEADLETTER"
#: Verbs that a user may call, because their answers hold nothing of other clients.
OPEN: set[type[Request]] = {
    *(frames.Hello, frames.Login, operator.ListQueues, operator.Status, frames.Outcome),
    *(transaction_frames.ListTransactions, transaction_frames.ListBranches),
    *(transaction_frames.ForgetBranch,),  # of an id that bears the mark of the user
    *(directory.DirectoryStatus, directory.DirectoryLookup, directory.ExplainName),
    delayed.CancelDelayed,  # those of others look like none
    *(directory.ShowList, directory.ExpandList, directory.ListLists, directory.ListAliases),
    lock_frames.ListLocks,
    *(link_frames.ResumeLink, link_frames.ForgetLink),  # of links of the user itself
}
#: Requests that are permitted by default, and change only what is the user's own.
PERMITTED = {(frames.Send, 4), (frames.Send, 8), (operator.CreateQueue, 0)}


class UserClient(Client):
    """A connection of another user."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._number = 0

    async def ask_as(self, request: Request) -> Done | Refused:
        self._number += 1
        loop = asyncio.get_running_loop()
        frame = frames.frame(msgspec.structs.replace(request, number=self._number))
        received, buffer = b"", frames.FrameBuffer()
        async with asyncio.timeout(END_S):
            await loop.sock_sendall(self._socket, frame)
            while not (found := buffer.feed(received)):
                received = await loop.sock_recv(self._socket, 1 << 16)
                assert received, "the connection was closed"
        reply = frames.decode_reply(found[0])
        assert reply.number == self._number
        return reply

    def close(self) -> None:
        self._socket.close()


async def user(host: Host, uid: int, **more: Any) -> Client:
    """Connect to the control socket as another user."""
    connected = await asyncio.to_thread(connect_as, uid, host.socket, **more)
    connected.setblocking(False)
    return UserClient(connected)


def uid(number: int) -> Principal:
    return Principal("user", "", number)


async def close_to_others(host: Host, *names: str) -> None:
    """Revoke the default rights of everyone on queues."""
    for name in names:
        queue = host.queue(name)
        await host.access_register.revoke(holder_of(queue), ALL, DEFAULTS[Kind.ORDINARY])


@hosted
async def test_a_user_sends_to_a_topic_with_the_right_to_it_alone(hosts: Hosts) -> None:
    async with others(hosts) as world:
        await close_to_others(world.host, SECRET)
        ann = await user(world.host, ANN)
        send = frames.Send(0, [to("topic:news")])
        reply = await ann.ask_as(send)
        assert isinstance(reply, Refused)
        assert reply.code == "right_missing"
        await world.local.done(access.ChangeAccess, "grant", f"user:{ANN}", "send", "topic:NEWS")
        before = world.host.queue(SECRET).messages
        await ann.done(frames.Send, [to("topic:news")])
        assert world.host.queue(SECRET).messages == before + 1
        assert isinstance(await ann.ask(frames.Send, [to(SECRET)]), Refused)
        # The rights end with the topic.
        await world.local.done(topic_frames.DeleteTopic, "news")
        await world.local.done(topic_frames.CreateTopic, "news")
        await world.local.done(topic_frames.Subscribe, "news", "all", SECRET)
        assert isinstance(await ann.ask_as(send), Refused)
        ann.close()


@hosted
async def test_no_verb_of_another_user_has_an_effect_without_the_right(hosts: Hosts) -> None:
    async with others(hosts) as world:
        await close_to_others(world.host, SECRET, "secret2")
        await world.host.access_register.set_owner(world.host.queue(MINE), uid(ANN))
        ann = await user(world.host, ANN)
        before = await world.state()
        for verb, tries in TRIES.items():
            for at, each in enumerate(tries):
                if (verb, at) in PERMITTED:
                    continue
                reply = await ann.ask_as(each.request(world))
                where = f"{verb.__name__}, try {at}: {reply}"
                if verb not in OPEN:
                    assert isinstance(reply, Refused), where
                    assert find_by_code(reply.code) is not None, where
                elif (
                    isinstance(reply, Done) and verb is not directory.ExplainName
                ):  # it repeats the name
                    assert SECRET not in repr(reply), where
                assert await world.state() == before, where
        ann.close()
        await world.local.done(transaction_frames.Commit, world.transaction)


@hosted
async def test_the_refusal_names_the_right_the_user_and_the_command(hosts: Hosts) -> None:
    host = await hosts.start()
    await host.create("orders")
    ann = await user(host, ANN)

    reply = await ann.ask(frames.Take, "orders")

    assert isinstance(reply, Refused)
    assert reply.code == "right_missing"
    assert "the right receive on private$\\orders" in reply.text
    assert "user:4711 does not have it" in reply.text
    assert "qmd acl grant user:4711 receive 'private$\\orders'" in reply.remedy
    assert host.access_checks.refused_count == 1
    await host.settled()
    found = await host.event_log.read(
        cursor="", limit=10, last=0, queue="", kinds=["access_refused"], since_ms=0, until_ms=0,
        wait_s=-1.0,
    )  # fmt: skip
    [event] = found["events"]
    assert event["queue"] == "private$\\orders"
    assert "user:4711" in event["reason"]
    ann.close()


@hosted
async def test_a_user_may_do_everything_on_its_own_queue(hosts: Hosts) -> None:
    host = await hosts.start()
    ann, bob = await user(host, ANN), await user(host, BOB)
    made = await ann.done(operator.CreateQueue, "own", False, "", True)
    assert host.access_register.owner_of(host.queue("own")) == uid(ANN)

    await bob.done(frames.Send, [to("own", label="from bob")])
    [taken] = await ann.done(frames.Take, "own")
    await ann.done(frames.Remove, "own", [taken[0]])
    assert len(await ann.done(frames.Peek, "own;journal")) == 1
    await ann.done(operator.SetQueue, "own", 1_000_000)
    assert (await ann.done(operator.Events, "", 100, 100, "own"))["end"]
    await ann.done(frames.Send, [to("own"), to("own")])
    await ann.done(frames.Move, "own", "own;retry")
    await ann.done(frames.Import, "own", [])
    run = await ann.done(pipeline.OpenReader, "r", ["own"])
    await ann.done(pipeline.Reserve, "r", run["fence"], "own", 0)
    await ann.done(pipeline.ReleaseReader, "r", "", False, True)
    for refused in (
        (frames.Take, "own"),
        (frames.Peek, "own"),
        (frames.Peek, "own;journal"),
        (frames.Peek, "own;retry"),
        (operator.Events, "", 10, 10, "own"),
        (operator.SetQueue, "own", 1),
        (operator.DeleteQueue, "own"),
        (operator.PurgeQueue, "own"),
        (frames.Move, "own;retry", "own"),
        (frames.Import, "own", [ImportedMessage(b"", 0)]),
        (pipeline.OpenReader, "r", ["own"]),
        (pipeline.OpenReader, "r", [made["name"]]),
    ):
        reply = await bob.ask(*refused)
        assert isinstance(reply, Refused), refused
        assert reply.code == "right_missing", refused
    await ann.done(operator.DeleteQueue, "own")
    assert host.access_register.owner_of(await host.create("own")) is None
    assert isinstance(await ann.ask(frames.Peek, "own"), Refused)
    ann.close(), bob.close()


@hosted
async def test_a_group_gives_its_members_a_right_and_a_denial_takes_it_away(hosts: Hosts) -> None:
    host = await hosts.start()
    queue = await host.create("orders")
    register = host.access_register
    await host.send("orders", b"1")
    member = await user(host, ANN, groups=(STAFF,))
    other = await user(host, BOB)

    await register.grant(holder_of(queue), parse_principal(f"group:{STAFF}"),
                         frozenset({"receive"}))  # fmt: skip
    assert len(await member.done(frames.Peek, "orders")) == 1
    assert isinstance(await other.ask(frames.Peek, "orders"), Refused)
    await register.deny(holder_of(queue), uid(ANN), frozenset({"peek"}))
    reply = await member.ask(frames.Peek, "orders")
    assert isinstance(reply, Refused)
    assert "deny user:4711 peek" in reply.text
    assert isinstance(await member.ask(frames.Take, "orders"), Refused)
    member.close(), other.close()

    host = await hosts.restart(host)
    member = await user(host, ANN, groups=(STAFF,))
    assert isinstance(await member.ask(frames.Peek, "orders"), Refused)
    await host.access_register.revoke(
        holder_of(host.queue("orders")), uid(ANN), frozenset({"peek"})
    )
    assert len(await member.done(frames.Peek, "orders")) == 1
    member.close()


@hosted
async def test_dead_letters_and_internal_queues_are_closed_to_other_users(hosts: Hosts) -> None:
    host = await hosts.start()
    ann = await user(host, ANN)

    for queue in (DEAD_LETTERS, "DIRECT=OS:.\\SYSTEM$;DEADXACT", "DIRECT=OS:.\\SYSTEM$;JOURNAL",
                  "private$\\order_queue$"):  # fmt: skip
        for request in (
            (frames.Peek, queue),
            (frames.Take, queue),
            (operator.PurgeQueue, queue),
            (operator.DeadLetters, queue),
            (frames.Import, queue, [ImportedMessage(b"", 0)]),
            (frames.Resend, queue),
            (frames.Move, queue, "orders"),
        ):
            reply = await ann.ask(*request)
            assert isinstance(reply, Refused), request
            assert reply.code == "right_missing", request
        assert isinstance(await ann.ask(frames.Send, [to(queue)]), Refused)
    ann.close()


@hosted
async def test_administrators_of_the_configuration_have_all_rights(hosts: Hosts) -> None:
    access = {"administrators": (f"user:{BOB}", f"group:{STAFF}")}
    host = await hosts.start(access=access)
    await host.create("orders")
    for client in (
        await user(host, BOB),
        await user(host, ANN, groups=(*range(5000, 5400), STAFF)),
        await user(host, ANN, groups=(STAFF,)),
        await user(host, ANN, group=STAFF),
    ):
        await client.done(frames.Peek, "orders")
        assert "messages" in await client.done(operator.Status)
        client.close()
    ann = await user(host, ANN)
    assert isinstance(await ann.ask(frames.Peek, "orders"), Refused)
    status = await ann.done(operator.Status)
    assert status["brief"]
    assert "messages" not in status
    ann.close()


@hosted
async def test_outcomes_and_transactions_of_two_users_are_independent(hosts: Hosts) -> None:
    host = await hosts.start()
    await host.create("orders")
    await host.create("exact", transactional=True)
    ann, bob = await user(host, ANN), await user(host, BOB)
    once, transaction = b"order 17", os.urandom(16)

    ids = await bob.done(frames.Send, [to("orders")], once, b"", True)
    # Another user cannot make a message of this one be taken for one that was sent.
    theirs = await ann.done(frames.Send, [to("orders")], once, b"", True)
    assert theirs != ids
    assert await ann.done(frames.Send, [to("orders")], once, b"", True) == theirs
    await ann.done(transaction_frames.Begin, transaction)
    await ann.done(frames.Send, [to("exact")], b"", transaction)
    for verb in (transaction_frames.Commit, transaction_frames.Abort, frames.Outcome):
        assert isinstance(await bob.ask(verb, transaction), Refused)
    assert await bob.done(transaction_frames.ListTransactions) == []
    await ann.done(transaction_frames.Abort, transaction)
    ann.close(), bob.close()


@hosted
async def test_a_query_of_a_pipeline_belongs_to_its_user(hosts: Hosts) -> None:
    host = await hosts.start()
    ann, bob = await user(host, ANN), await user(host, BOB)
    await ann.done(operator.CreateQueue, "own")
    await close_to_others(host, "own")
    await ann.done(pipeline.Stage, "q", 0, 0, "a", 0, [to("own")])
    for request in (
        (pipeline.Publish, "q", 0, [Attempt(0, "a", 1)]),
        (pipeline.Publish, "q", 0, []),
        (pipeline.DiscardStages, "q"),
        (pipeline.DiscardStages, "", None, None, "", 1),
    ):
        assert isinstance(await bob.ask(*request), Refused), request
    assert (await ann.done(pipeline.Publish, "q", 0, [Attempt(0, "a", 1)]))["published"]
    ann.close(), bob.close()


@hosted
async def test_a_user_sees_only_why_of_messages_that_it_may_peek_at(hosts: Hosts) -> None:
    host = await hosts.start()
    ann, bob = await user(host, ANN), await user(host, BOB)
    await ann.done(operator.CreateQueue, "own")
    [sent] = await bob.done(frames.Send, [to("own", label="private label")])

    assert (await ann.done(operator.Why, sent))["places"]
    for message in (sent, sent.partition("\\")[0] + "\\4000000"):
        reply = await bob.ask(operator.Why, message)
        assert isinstance(reply, Refused)
        assert reply.code == "right_missing"
        assert "private label" not in reply.text
    # Lookup ids can be counted through: the answers are the same with a message there and without.
    [stored] = await ann.done(frames.Peek, "own")
    there, elsewhere = str(stored[0]), str(stored[0] + 1)
    assert (await ann.done(operator.Why, there, "own"))["message_id"] == sent
    for queue in ("", "own"):
        texts = set()
        for lookup_id in (there, elsewhere):
            reply = await bob.ask(operator.Why, lookup_id, queue)
            assert isinstance(reply, Refused)
            assert reply.code == "right_missing"
            texts.add(reply.text)
        assert len(texts) == 1, texts
    ann.close(), bob.close()


@hosted
async def test_the_events_of_an_earlier_queue_of_the_name_are_not_shown(hosts: Hosts) -> None:
    host = await hosts.start()
    ann, bob, root = [await user(host, each) for each in (ANN, BOB, 0)]
    await ann.done(operator.CreateQueue, "own")
    [sent] = await ann.done(frames.Send, [to("own")])
    await ann.done(operator.DeleteQueue, "own")
    await bob.done(operator.CreateQueue, "own")

    request = ("", 100, 100, "own")
    shown, everything = [
        {each["message_id"] for each in (await client.done(operator.Events, *request))["events"]}
        for client in (bob, root)
    ]

    assert sent in everything
    assert sent not in shown
    ann.close(), bob.close(), root.close()


@hosted
async def test_a_user_has_no_more_queues_than_the_limit(hosts: Hosts) -> None:
    host = await hosts.start(access={"queues_max": 2})
    ann = await user(host, ANN)
    await ann.done(operator.CreateQueue, "a")
    replies = await asyncio.gather(*[_create(host, name) for name in ("b", "c")])
    codes = sorted(each.code if isinstance(each, Refused) else "" for each in replies)
    assert codes == ["", "too_many_owned"]
    ann.close()


async def _create(host: Host, name: str) -> Done | Refused:
    client = await user(host, ANN)
    try:
        return await client.ask(operator.CreateQueue, name)
    finally:
        client.close()


@hosted
async def test_a_user_may_not_manage_the_host(hosts: Hosts) -> None:
    host = await hosts.start()
    ann = await user(host, ANN)
    await ann.done(frames.Send, [to(ELSEWHERE)])
    for request in (
        (operator.ListOutgoing,),
        (operator.ShowOutgoing, ELSEWHERE),
        (operator.PeekOutgoing, ELSEWHERE),
        (operator.ListAwaiting, ELSEWHERE),
        (operator.PauseOutgoing, ELSEWHERE),
        (operator.PurgeOutgoing, ELSEWHERE),
        (routing.RedirectOutgoing, ELSEWHERE, "127.0.0.1:10"),
        (operator.Events,),
        (operator.ListSessions,),
        (pipeline.MarkShipped, 1),
    ):
        reply = await ann.ask(*request)
        assert isinstance(reply, Refused), request
        assert reply.code == "right_missing", request
    register = host.access_register
    chosen = frozenset({"see-status", "read-events"})
    await register.grant(Holder("host", Kind.HOST), uid(ANN), chosen)
    assert len(await ann.done(operator.ListOutgoing)) == 1
    reply = await ann.ask(operator.PeekOutgoing, ELSEWHERE)
    assert isinstance(reply, Refused), "labels are not for those that may only see the status"
    await host.create("orders")
    await host.send("orders", b"", label="private label", time_to_be_received_s=1, dead_letter=True)
    host.world.ahead_s += 10
    await hosts.reap(host)
    root = await user(host, 0)
    assert "private label" in repr(await root.done(operator.Events, "", 100, 100))
    root.close()
    events = (await ann.done(operator.Events, "", 100, 100))["events"]
    assert events
    assert "private label" not in repr(events)
    ann.close()


@hosted
async def test_a_connection_without_credentials_has_no_rights(hosts: Hosts) -> None:
    host = await hosts.start()
    rights = host.local_users.at_once(None)

    assert rights is not None
    assert not rights.are_all
    assert not isinstance(rights, PrincipalRights)
    [message] = await _own(host)
    assert parse_user_message(message).properties.body == b"1"


async def _own(host: Host) -> list[bytes]:
    await host.create("orders")
    await host.send("orders", b"1")
    return [each.packet for each in await host.peek("orders")]


def as_before_the_upgrade(db: sqlite3.Connection) -> None:
    """Keep all outcomes as a version did that knew neither rights nor outcomes in blocks."""
    rows = outcomes.list_all(db)
    db.execute("UPDATE event_block SET outcomes = NULL")
    outcomes.record(db, rows)
    db.execute("UPDATE outcome SET shared = 1")


@hosted
async def test_a_request_of_before_the_upgrade_is_never_said_to_be_not_executed(
    hosts: Hosts,
) -> None:
    host = await hosts.start()
    await host.create("orders")
    ann, root = await user(host, ANN), await user(host, 0)
    token, later = b"of before the upgrade", b"of after the upgrade"
    answer = await root.done(frames.Send, [to("orders")], token)
    await host.storage.batch.run(as_before_the_upgrade)
    await root.done(frames.Send, [to("orders")], later)

    assert await ann.done(frames.Outcome, token) == answer
    assert await ann.done(frames.Send, [to("orders")], token, b"", True) == answer
    assert len(await host.peek("orders")) == 2
    assert await ann.done(frames.Outcome, later) is None
    ann.close(), root.close()
