"""Attacks on the rights of others: by another local user, by a token of few rights, by a peer.

The daemons, the sockets, the users and the tokens are real.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from protocol.identifiers import guid_text
from protocol.message_class import MessageClass
from qmd.catalogue import find_by_code
from qmd.control_protocol import bulk as pipeline
from qmd.control_protocol import directory
from qmd.control_protocol import locks as lock_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator
from qmd.control_protocol import topics as topic_frames
from qmd.control_protocol import transactions as transaction_frames
from qmd.control_protocol.messages import Done, NewMessage, Refused, Request
from tests.integration.control.test_local_users import OPEN, PERMITTED
from tests.integration.control.verb_tries import (
    ELSEWHERE,
    LOCK,
    MINE,
    QUERY,
    READER,
    SECRET,
    TRIES,
)
from tests.patience import END_S
from tests.process.harness import DEADXACT, Daemon, Hosts
from tests.process.remote import RemoteQueueManager
from tests.process.remote_daemon import Remote
from tests.users import connect_as, needs_root

ATTACKER = 64_001  # a user that has no account
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is needed to make certificates"
)


class Link:
    """A connection to the control socket or to the remote port."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.settimeout(END_S)
        self._number = 0

    def ask(self, request: Request) -> Done | Refused:
        self._number += 1
        self._socket.sendall(frames.frame(msgspec.structs.replace(request, number=self._number)))
        (length,) = struct.unpack("<I", self._exactly(4))
        reply = frames.decode_reply(self._exactly(length))
        assert reply.number == self._number
        return reply

    def done(self, verb: type[Request], *fields: object) -> Any:
        reply = self.ask(verb(0, *fields))
        assert isinstance(reply, Done), reply
        return reply.result

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            assert more, "the connection was closed"
            data += more
        return data

    def close(self) -> None:
        self._socket.close()


@contextmanager
def local(path: Path) -> Iterator[Link]:
    """Connect as the user of the tests, which the daemon has too."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.connect(str(path))
    link = Link(connected)
    yield link
    link.close()


def fill(link: Link) -> SimpleNamespace:
    """Make objects of another application; return the ids that requests of an attacker name."""
    link.done(operator.CreateQueue, MINE)
    for name in (SECRET, "secret2"):
        link.done(operator.CreateQueue, name, True)
    link.done(frames.Send, [NewMessage(MINE, b"mine")])
    ids = link.done(frames.Send, [NewMessage(SECRET, b"%d" % at) for at in range(8)])
    link.done(frames.Send, [NewMessage(ELSEWHERE, b"on its way")])
    link.done(frames.Move, SECRET, "secret;retry", frames.Choice(message_ids=[]),
              frames.Piece(limit=1))  # fmt: skip
    lookup_id = link.done(frames.Peek, SECRET)[0][0]
    fence = link.done(pipeline.OpenReader, READER, [SECRET])["fence"]
    reserved = link.done(pipeline.Reserve, READER, fence, SECRET, 0, 2)
    link.done(pipeline.Stage, QUERY, 0, 0, "a", 0, [NewMessage(SECRET, b"staged")])
    transaction, committed = os.urandom(16), os.urandom(16)
    link.done(transaction_frames.Begin, committed)
    link.done(frames.Send, [NewMessage(SECRET, b"done")], b"", committed)
    link.done(transaction_frames.Commit, committed)
    link.done(transaction_frames.Begin, transaction)
    link.done(frames.Take, SECRET, 1, 0.0, transaction)
    link.done(frames.Send, [NewMessage(SECRET, b"more")], b"", transaction)
    (delayed_id,) = link.done(frames.Send, [NewMessage(SECRET, b"later", delay_ms=3_600_000)])
    link.done(lock_frames.TakeLocked, SECRET, LOCK, 3600.0)
    link.done(topic_frames.CreateTopic, "news")
    link.done(topic_frames.Subscribe, "news", "secret", SECRET)
    readers = link.done(pipeline.ListReaders)
    return SimpleNamespace(
        transaction=transaction,
        committed=committed,
        message_id=ids[1],
        lookup_id=lookup_id,
        delayed_id=delayed_id,
        fence=fence,
        positions=reserved["end"],
        host=SimpleNamespace(readers=SimpleNamespace(overview=lambda: readers)),
    )


def state(daemon: Daemon, link: Link) -> dict[str, Any]:
    """Return everything that a successful attack would change."""
    queues = daemon.json("queue", "list", "--system")
    return {
        "queues": {each["format_name"]: each["messages"] for each in queues},
        "secret": [each[0] for each in link.done(frames.Peek, SECRET)],
        "retry": [each[0] for each in link.done(frames.Peek, "secret;retry")],
        "outgoing": [
            (each["destination"], each["messages"], each["state"])
            for each in link.done(operator.ListOutgoing)
        ],
        "transactions": [
            each["transaction"] for each in link.done(transaction_frames.ListTransactions)
        ],
        "readers": [(each["name"], each["queue"]) for each in link.done(pipeline.ListReaders)],
        "stages": len(link.done(pipeline.ListStages)),
        "rights": daemon.cli("acl", "export").stdout,
    }


@needs_root
def test_no_verb_of_another_local_user_has_an_effect(hosts: Hosts) -> None:
    daemon = hosts.daemon(control={"mode": "0666"})
    path = daemon.folder / "qmd.sock"
    with local(path) as ours:
        things = fill(ours)
        for queue in (SECRET, "secret2"):
            daemon.cli("acl", "revoke", "everyone", "send,get-properties,get-permissions", queue)
        daemon.cli("acl", "owner", MINE, f"user:{ATTACKER}")
        before = state(daemon, ours)
        attacker = Link(connect_as(ATTACKER, path))
        for verb, tries in TRIES.items():
            for at, each in enumerate(tries):
                if (verb, at) in PERMITTED:
                    continue
                reply = attacker.ask(each.request(things))
                where = f"{verb.__name__}, try {at}: {reply}"
                if verb not in OPEN:
                    assert isinstance(reply, Refused), where
                    assert find_by_code(reply.code) is not None, where
                elif isinstance(reply, Done) and verb is not directory.ExplainName:
                    assert SECRET not in repr(reply), where
        attacker.close()

        assert state(daemon, ours) == before
        ours.done(transaction_frames.Commit, things.transaction)
    assert daemon.json("status")[0]["access_refused"] > 0


@needs_openssl
def test_no_verb_of_a_token_of_few_rights_has_an_effect(tmp_path: Path) -> None:
    # The login comes after other work, and must not be too late for that.
    remote = Remote(tmp_path, login_timeout=f"{int(END_S)}s")
    token = remote.token("read", "write", "admin", queues=(MINE,), name="few")
    try:
        with local(remote.folder / "qmd" / "qmd.sock") as ours, remote.raw() as connection:
            things = fill(ours)
            before = state(remote.daemon, ours)
            attacker = Link(connection)
            attacker.done(frames.Login, frames.VERSION, token.read_text().strip())
            for verb, tries in TRIES.items():
                if verb is frames.Login:
                    continue
                for at, each in enumerate(tries):
                    reply = attacker.ask(each.request(things))
                    where = f"{verb.__name__}, try {at}: {reply}"
                    if each.code:
                        assert isinstance(reply, Refused), where
                        assert reply.code == each.code, where
                    else:
                        assert SECRET not in repr(reply), where

            assert state(remote.daemon, ours) == before
            ours.done(transaction_frames.Commit, things.transaction)
    finally:
        remote.daemon.kill()


def refusals(daemon: Daemon) -> list[dict[str, Any]]:
    return daemon.json("events", "tail", "--kind", "refused")


def test_a_denied_peer_hears_of_it_and_its_stream_goes_on(
    hosts: Hosts, remote: RemoteQueueManager
) -> None:
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    entry = (f"peer:{guid_text(remote.guid)}", "send", "orders")
    peer, sequence = remote.connect(daemon.port), remote.new_sequence()
    peer.send(remote.transactional("orders", sequence, 1))
    peer.wait_order_ack(sequence, 1)

    daemon.cli("acl", "deny", *entry)
    peer.send(remote.transactional("orders", sequence, 2))
    peer.wait(lambda: bool(peer.final_acks), what="a final ack")
    [refusal] = peer.final_acks
    daemon.cli("acl", "revoke", *entry)
    peer.send(remote.transactional("orders", sequence, 3, 1))
    peer.wait_order_ack(sequence, 3)

    assert refusal.message_class == MessageClass.NACK_ACCESS_DENIED
    assert daemon.bodies("orders") == [b"1", b"3"]
    [event] = refusals(daemon)
    assert event["class"] == "nack_access_denied"
    assert " ".join(("deny", *entry[:2])) in event["reason"]


@pytest.mark.parametrize("principal", ["host:127.0.0.1", "peer"])
def test_a_denied_sender_has_a_dead_letter_with_the_reason(hosts: Hosts, principal: str) -> None:
    sender, receiver = hosts.daemon(), hosts.daemon()
    receiver.create("orders", transactional=True)
    target = f"DIRECT=TCP:127.0.0.1:{receiver.port}\\private$\\orders"
    if principal == "peer":
        principal = f"peer:{sender.json('status')[0]['queue_manager']}"
    entry = (principal, "send", "orders")

    sender.send(target, b"1", "--transactional")
    receiver.wait_for("orders", 1)
    receiver.cli("acl", "deny", *entry)
    sender.send(target, b"2", "--transactional")
    [letter] = sender.wait_for(DEADXACT, 1)
    receiver.cli("acl", "revoke", *entry)
    sender.send(target, b"3", "--transactional")
    receiver.wait_for("orders", 2)

    assert letter["class"] == "nack_access_denied"
    assert "may not send" in letter["reason"]
    assert receiver.bodies("orders") == [b"1", b"3"]
    assert sender.bodies(DEADXACT) == [b"2"]
    assert not any(each["messages"] for each in sender.json("outgoing", "list"))


def test_a_program_that_states_a_guid_does_not_get_its_rights(
    hosts: Hosts, remote: RemoteQueueManager
) -> None:
    daemon = hosts.daemon()
    daemon.create("orders")
    daemon.cli("acl", "revoke", "everyone", "send", "orders")
    daemon.cli("acl", "grant", f"peer:{guid_text(remote.guid)}", "send", "orders")
    peer = remote.connect(daemon.port)

    peer.send(remote.message("orders", b"x", recoverable=True))
    peer.wait_stored()

    assert daemon.count("orders") == 0
    [event] = refusals(daemon)
    assert event["class"] == "nack_access_denied"
