"""Doors that act for their users: a connection has the rights of its user, and no others.

The door is a program of another user (tests/users.py), or root.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import struct
from contextlib import closing
from typing import Any

import pytest

from qmd.access import tokens
from qmd.access.register import Holder, holder_of
from qmd.control_protocol import access, directory, doors, topics
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator
from qmd.control_protocol import transactions as transaction_frames
from qmd.control_protocol.messages import Done, Refused
from qmd.core.access import HOST_RIGHTS, HOST_SETS, Kind, parse_rights
from qmd.core.principals import Principal, parse_principal
from storage.tables import access as access_rows
from storage.tables.access import EntryRow
from tests.integration.control.test_local_users import UserClient, close_to_others, user
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
from tests.users import needs_root

pytestmark = needs_root

DOOR, ANN = 4713, "sasl:ann"
#: Verbs that show the queues of which a list or a topic consists, or repeat a name.
NAMES_OF_LISTS = {directory.ExplainName, topics.ShowTopic, topics.ListTopics}


async def door(host: Host, *principals: str) -> Client:
    """Return a connection of a door, which acts for the user with these principals."""
    client = await user(host, DOOR)
    if principals:
        await client.done(access.ActFor, list(principals))
    return client


HOST = Holder("host", Kind.HOST)
DOOR_USER = Principal("user", "", DOOR)


async def trust_the_door(host: Host, rights: str = "act-for") -> None:
    await host.access_register.grant(HOST, DOOR_USER, parse_rights(rights, of_host=True))


async def refusal(client: Client, *request: Any) -> str:
    reply = await client.ask(*request)
    assert isinstance(reply, Refused), reply
    return reply.code


@hosted
async def test_a_user_of_a_door_elsewhere_sends_to_no_other_host_without_a_right(
    hosts: Hosts,
) -> None:
    """This queue manager would be its relay; programs of this computer are not elsewhere."""
    host = await hosts.start()
    await trust_the_door(host)
    send, clients = (frames.Send, [to(ELSEWHERE)]), []
    for address in ("10.1.2.3", "2001:db8::5"):
        far = await door(host, ANN, f"host:{address}")
        assert await refusal(far, *send) == "right_missing"
        assert not host.outgoing.queues
        clients.append(far)
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        near = await door(host, ANN, f"host:{address}")
        assert len(await near.done(*send)) == 1
        clients.append(near)

    client = await user(host, os.getuid())
    await client.done(access.ChangeAccess, "grant", ANN, "send", ELSEWHERE)
    assert len(await far.done(*send)) == 1
    for each in (*clients, client):
        each.close()


@hosted
async def test_only_a_door_may_act_for_a_user(hosts: Hosts) -> None:
    host = await hosts.start()
    client = await user(host, DOOR)

    assert await refusal(client, access.ActFor, [ANN]) == "right_missing"
    await trust_the_door(host)
    assert await client.done(access.ActFor, [ANN, "host:10.1.2.3"]) == {"principal": ANN}
    client.close()


@hosted
async def test_a_door_cannot_become_a_user_of_this_computer(hosts: Hosts) -> None:
    host = await hosts.start()
    await trust_the_door(host)
    client = await door(host)

    for names in (
        ["user:0"], ["user:root"], ["group:0"], ["local"], ["everyone"], ["token:admin"],
        ["service:qmd.service"], ["sid:S-1-5-18"], ["peer:11111111-1111-1111-1111-111111111111"],
        ["host:127.0.0.1"], [ANN, "user:0"], [ANN, "local"], ["nonsense"], [""],
    ):  # fmt: skip
        assert await refusal(client, access.ActFor, names) in (
            "principal_of_no_door", "bad_principal",
        ), names  # fmt: skip
    assert isinstance(await client.ask(access.ActFor, []), Refused)
    client.close()


class Ended:
    """A session that the daemon has ended, once it has."""

    def __init__(self) -> None:
        self.is_open, self.reason = True, ""
        self.has_ended = asyncio.Event()

    def close(self, reason: str) -> None:
        self.is_open, self.reason = False, reason
        self.has_ended.set()


@hosted
async def test_a_revoked_token_ends_the_session_that_was_announced_with_it(hosts: Hosts) -> None:
    host = await hosts.start()
    announced, now = host.components.peers.announced, host.services.loop.time
    file = host.services.settings.remote.tokens
    tokens.create(file, "shop", frozenset({"write"}), ("*",))
    token = tokens.create(file, "other", frozenset({"write"}), ("*",))
    await trust_the_door(host)
    client = await user(host, DOOR)
    request = (doors.AnnounceSession, "127.0.0.1", 40_000, "10.1.2.3", [], True)

    assert await refusal(client, *request, f"{token}x") == "token_refused"
    session = Ended()
    assert announced.take(("127.0.0.1", 40_000), session, now()) is None
    await client.done(*request, token)
    found = announced.take(("127.0.0.1", 40_000), session, now())
    assert found is not None
    assert [str(each) for each in found.principals] == ["token:other"]
    await client.done(doors.AnnounceSession, "127.0.0.1", 40_001, "10.1.2.3", [], True, token)

    tokens.revoke(file, "shop")
    tokens.revoke(file, "other")
    await asyncio.wait_for(session.has_ended.wait(), END_S)
    assert "revoked" in session.reason
    # Nor does one begin that was announced before.
    assert announced.take(("127.0.0.1", 40_001), Ended(), now()) is None
    client.close()


@hosted
async def test_only_a_door_may_announce_the_session_of_a_host(hosts: Hosts) -> None:
    """The session counts as one of that host, with its limits, rights and principals."""
    host = await hosts.start()
    announced = host.components.peers.announced
    now = host.services.loop.time
    place = ("127.0.0.1", 40_000)
    request = (doors.AnnounceSession, *place, "10.1.2.3", ["cert:CN=hostb"], True)
    ended = Ended()
    client = await user(host, DOOR)
    await trust_the_door(host, ",".join({*HOST_RIGHTS} - {"act-for-hosts"}))

    assert await refusal(client, *request) == "right_missing"
    assert announced.take(place, ended, now()) is None
    await trust_the_door(host)
    await client.done(*request)
    found = announced.take(place, ended, now())
    assert found is not None
    assert (found.host, found.is_encrypted) == ("10.1.2.3", True)
    # A user of a door is none, even with the right.
    await host.access_register.grant(HOST, parse_principal(ANN), HOST_SETS["act-for"])
    of_user = await door(host, ANN)
    assert await refusal(of_user, *request) == "acting_not_allowed"
    assert announced.take(place, ended, now()) is None
    client.close(), of_user.close()


@hosted
async def test_a_door_acts_only_for_the_classes_of_users_that_it_serves(hosts: Hosts) -> None:
    """The door for HTTP does not become a user with a password for AMQP, and so on."""
    host = await hosts.start()
    stated = {
        "act-for-users": [ANN],
        "act-for-certificates": ["cert:hostb"],
        "act-for-anonymous": ["anonymous"],
        "act-for-hosts": [],
    }
    for right in stated:
        await host.access_register.revoke(HOST, DOOR_USER, frozenset(HOST_RIGHTS))
        await trust_the_door(host, right)
        for other, names in stated.items():
            client = await door(host)
            announcing = (doors.AnnounceSession, "127.0.0.1", 9, "10.1.2.3", names)
            if names and right == other:
                assert await refusal(client, *announcing) == "right_missing"
                assert isinstance(await client.ask(access.ActFor, [*names, "host:10.1.2.3"]), Done)
            elif names:
                assert await refusal(client, access.ActFor, names) == "right_missing"
                for first, mine in stated.items():
                    if first == right and mine:  # nor beside one that it serves
                        assert await refusal(client, access.ActFor, mine + names) == "right_missing"
                assert await refusal(client, *announcing) == "right_missing"
            elif right == other:
                await client.done(*announcing)
            client.close()


@hosted
async def test_a_right_of_before_is_that_for_all_classes(hosts: Hosts) -> None:
    host = await hosts.start()
    await hosts.stop(host)
    with closing(sqlite3.connect(host.folder / "data" / "queues.db")) as db, db:
        row = EntryRow("host", "allow", "user:4713", 4713, "act-for,see-status")
        access_rows.put(db, row)
    host = await hosts.start("a")

    for names in ([ANN], ["cert:hostb"], ["anonymous"]):
        (await door(host, *names)).close()
    await host.access_register.revoke(HOST, DOOR_USER, frozenset({"act-for-users"}))
    client = await door(host)
    assert await refusal(client, access.ActFor, [ANN]) == "right_missing"
    client.close()
    (entry,) = host.access_register.entries_of("host")
    assert entry.rights == HOST_SETS["act-for"] - {"act-for-users"} | {"see-status"}


@hosted
async def test_a_user_of_a_door_never_gets_the_rights_of_the_door_back(hosts: Hosts) -> None:
    host = await hosts.start()
    await host.create("orders")
    await host.send("orders", b"1")
    root = await user(host, 0)  # as a door that `qmd serve --doors` has started
    await root.done(frames.Peek, "orders")

    await root.done(access.ActFor, [ANN])

    assert await refusal(root, frames.Peek, "orders") == "right_missing"
    assert await refusal(root, frames.Take, "orders") == "right_missing"
    assert await refusal(root, operator.CreateQueue, "new") == "right_missing"
    for names in (["sasl:root"], [ANN], ["anonymous"]):
        assert isinstance(await root.ask(access.ActFor, names), Refused)
    # Even if an entry gives the right to the user itself.
    await host.access_register.grant(HOST, parse_principal(ANN), HOST_SETS["act-for"])
    assert await refusal(root, access.ActFor, ["sasl:root"]) == "acting_not_allowed"
    root.close()


@hosted
async def test_requests_that_follow_in_the_same_packet_have_the_rights_of_the_user(
    hosts: Hosts,
) -> None:
    host = await hosts.start()
    await host.create("orders")
    await host.send("orders", b"1")
    reader, writer = await asyncio.open_unix_connection(str(host.socket))
    requests = (
        frames.Take(1, "orders"),
        access.ActFor(2, [ANN]),
        frames.Remove(3, "orders", [1]),
        frames.Take(4, "orders"),
    )

    writer.write(b"".join(map(frames.frame, requests)))
    answers = {}
    async with asyncio.timeout(END_S):
        while len(answers) < len(requests):
            (length,) = struct.unpack("<I", await reader.readexactly(4))
            reply = frames.decode_reply(await reader.readexactly(length))
            answers[reply.number] = reply

    assert isinstance(answers[1], Done)
    assert isinstance(answers[2], Done)
    assert isinstance(answers[3], Refused)
    assert isinstance(answers[4], Refused)
    assert len(await host.peek("orders")) == 1  # it was given back
    writer.close()


@hosted
async def test_messages_and_transactions_of_the_door_are_given_back(hosts: Hosts) -> None:
    host = await hosts.start()
    await host.create("orders", transactional=True)
    await host.send("orders", b"1")
    root, transaction = await user(host, 0), os.urandom(16)
    await root.done(transaction_frames.Begin, transaction)
    await root.done(frames.Send, [to("orders")], b"", transaction)
    assert await root.done(frames.Take, "orders")

    await root.done(access.ActFor, [ANN])

    other = await user(host, 0)
    assert len(await other.done(frames.Take, "orders")) == 1
    assert await other.done(transaction_frames.ListTransactions) == []
    assert isinstance(await root.ask(transaction_frames.Commit, transaction), Refused)
    root.close(), other.close()


@hosted
async def test_no_verb_of_a_user_of_a_door_has_an_effect_without_the_right(hosts: Hosts) -> None:
    """A user that has the door's right too, and one request of each verb."""
    async with others(hosts) as world:
        await close_to_others(world.host, SECRET, "secret2", MINE)
        await trust_the_door(world.host)
        client = await door(world.host, ANN, "host:10.1.2.3")
        before = await world.state()
        for verb, tries in TRIES.items():
            for at, each in enumerate(tries):
                request = each.request(world)
                if isinstance(request, frames.Send) and all(
                    each.destination == ELSEWHERE for each in request.messages
                ):
                    continue  # to queues that are open to all users, or to none
                reply = await client.ask_as(request)
                where = f"{verb.__name__}, try {at}: {reply}"
                if isinstance(reply, Done) and verb not in NAMES_OF_LISTS:
                    assert SECRET not in repr(reply), where
                assert await world.state() == before, where
        client.close()
        await world.local.done(transaction_frames.Commit, world.transaction)


@hosted
async def test_a_user_of_a_door_owns_the_queues_that_it_creates(hosts: Hosts) -> None:
    host = await hosts.start()
    await trust_the_door(host)
    await host.access_register.grant(HOST, parse_principal(ANN), frozenset({"create-queue"}))
    ann, bob = await door(host, ANN), await door(host, "sasl:bob")

    await ann.done(operator.CreateQueue, "own")
    assert host.access_register.owner_of(host.queue("own")) == parse_principal(ANN)
    await bob.done(frames.Send, [to("own")])
    assert await refusal(bob, frames.Take, "own") == "right_missing"
    assert len(await ann.done(frames.Take, "own")) == 1
    await host.access_register.grant(
        holder_of(host.queue("own")), parse_principal("sasl:bob"), frozenset({"purge"})
    )
    await bob.done(operator.PurgeQueue, "own")
    assert await refusal(bob, operator.CreateQueue, "other") == "right_missing"
    ann.close(), bob.close()


@hosted
async def test_outcomes_of_two_users_of_a_door_are_independent(hosts: Hosts) -> None:
    host = await hosts.start()
    await host.create("orders")
    await trust_the_door(host)
    ann, bob = await door(host, ANN), await door(host, "sasl:bob")
    local = await user(host, DOOR)
    once = b"order 17"

    ids = await ann.done(frames.Send, [to("orders")], once, b"", True)

    assert await bob.done(frames.Outcome, once) is None
    assert await local.done(frames.Outcome, once) is None
    assert await bob.done(frames.Send, [to("orders")], once, b"", True) != ids
    assert await ann.done(frames.Send, [to("orders")], once, b"", True) == ids
    ann.close(), bob.close(), local.close()


@hosted
async def test_a_denial_to_an_address_counts_for_the_users_of_a_door(hosts: Hosts) -> None:
    host = await hosts.start()
    queue = await host.create("orders")
    await trust_the_door(host)
    await host.access_register.deny(
        holder_of(queue), parse_principal("host:10.1.0.0/16"), frozenset({"send"})
    )
    near, far = await door(host, ANN, "host:10.1.2.3"), await door(host, ANN, "host:10.2.2.3")

    assert await refusal(near, frames.Send, [to("orders")]) == "right_missing"
    await far.done(frames.Send, [to("orders")])
    near.close(), far.close()


@pytest.mark.parametrize("count", [3])
def test_users_of_one_door_share_the_places_fairly(tmp_path: Any, count: int) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        host = await hosts.start(control={"clients_max": count})
        await trust_the_door(host)
        greedy = [await door(host, ANN) for _ in range(count)]
        other = await door(host, "sasl:bob")  # gets the place of one connection of the other user
        assert isinstance(await other.ask(frames.Hello), Done)
        alive = 0
        for each in greedy:
            try:
                await each.ask(frames.Hello)
                alive += 1
            except (AssertionError, OSError):
                pass
        assert alive == count - 1
        assert isinstance(other, UserClient)
        other.close()
        for each in greedy:
            each.close()

    scenario(tmp_path)
