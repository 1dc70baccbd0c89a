"""qmd why: the report of the other side, and the questions of peers.  docs/cli.md `qmd why`."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from protocol.identifiers import guid_text
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE
from qmd.events.header import EventHeader, Kind
from qmd.history import remote_lookup
from qmd.history.lookup_messages import REPLY_BYTES_MAX, LookupReply, LookupRequest
from tests.integration.history.lookups import why
from tests.integration.managers import Hosts, hosted, until
from tests.integration.remote import dial, guid, listening, packet

# The other side.


@hosted
async def test_the_receiving_queue_manager_reports_the_place_of_the_message(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders")
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    (sent,) = await a.send(destination, b"x", delivery=RECOVERABLE)
    await until(lambda: not a.sending_to(destination).messages, "the acknowledgment")

    reported = await why(a, sent, ask=True)

    assert reported["state"] == "delivered"
    (peer,) = reported["peers"]
    assert (peer["answered"], peer["host"], peer["state"]) == (True, "b", "queued")
    assert peer["queue_manager"] == guid_text(b.id)
    assert "first in line" in peer["sentences"][0]
    assert "accepted" in [event["kind"] for event in peer["events"]]
    assert reported["sides"] == ""


@hosted
async def test_the_sending_queue_manager_reports_its_side(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders")
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    (sent,) = await a.send(destination, b"x", delivery=RECOVERABLE)
    await until(lambda: not a.sending_to(destination).messages, "the acknowledgment")
    (message,) = await b.peek("orders")

    reported = await why(b, str(message.lookup_id), queue="orders", ask=True)

    assert reported["message_id"] == sent
    (peer,) = reported["peers"]
    assert (peer["answered"], peer["host"]) == (True, "a")
    assert "sent" in [event["kind"] for event in peer["events"]]


@hosted
async def test_without_an_answer_of_the_peer_only_the_local_side_is_reported(hosts: Hosts) -> None:
    a = await hosts.start("a")
    b = await hosts.start("b", events={"answer": ()})
    await b.create("orders")
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    (sent,) = await a.send(destination, b"x", delivery=RECOVERABLE)
    await until(lambda: not a.sending_to(destination).messages, "the acknowledgment")

    reported = await why(a, sent, ask=True)
    assert reported["peers"][0]["answered"] is False
    assert "These are the records of a; 127.0.0.1" in reported["sides"]
    assert "did not answer" in reported["sides"]

    again = await why(a, sent, ask=True)
    assert "is not asked again for" in again["sides"]
    assert a.remote_lookup.request_count == 1
    assert (b.remote_lookup.reply_count, b.nacks.count) == (0, 0)


@hosted
async def test_a_full_queue_manager_answers_questions(hosts: Hosts) -> None:
    a = await hosts.start("a")
    b = await hosts.start("b", quotas={"computer_bytes": 1000})
    await b.create("orders")
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    (sent,) = await a.send(destination, b"x", delivery=RECOVERABLE)
    await until(lambda: not a.sending_to(destination).messages, "the acknowledgment")
    await b.send("orders", bytes(1000 - b.usage.bytes - 170), delivery=RECOVERABLE)

    reported = await why(a, sent, ask=True)

    assert reported["peers"][0]["answered"] is True
    assert len(b.peers.connections) == 1


@hosted
async def test_a_session_is_opened_for_a_question(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders")
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    (sent,) = await a.send(destination, b"x", delivery=RECOVERABLE)
    await until(lambda: not a.sending_to(destination).messages, "the acknowledgment")
    for connection in list(b.peers.connections):
        connection.close("for the test")
    await until(lambda: not a.peers.connections, "the end of the session")
    a.sending_to(destination).link.retry.kick(a.loop.time())

    reported = await why(a, sent, ask=True)

    assert reported["peers"][0]["answered"] is True


@hosted
async def test_an_unreachable_computer_does_not_delay_the_answer(hosts: Hosts) -> None:
    a = await hosts.start("a")
    sent = packet(b"x", source=guid(9), number=5)
    a.recorder.record(EventHeader(Kind.DUPLICATE, peer="b"), [sent])
    await a.settled()

    before = a.loop.time()
    reported = await why(a, f"{guid_text(guid(9))}\\5", ask=True)

    assert reported["peers"][0]["explanation"].endswith(
        "cannot be asked: no session with it is open."
    )
    assert a.loop.time() - before < remote_lookup.WAIT_S


@hosted
async def test_a_peer_gets_no_answer_about_messages_of_other_sources(hosts: Hosts) -> None:
    a = await hosts.start()
    secret = packet(b"x", source=guid(8), number=5)
    a.recorder.record(EventHeader(Kind.DUPLICATE, peer=guid_text(guid(8))), [secret])
    own = packet(b"x", source=a.id, number=6)
    a.recorder.record(EventHeader(Kind.TRANSMITTED, queue="x", peer=guid_text(guid(7))), [own])
    await a.settled()
    remote = await dial(a, guid(7))

    foreign = await reply_to(remote, LookupRequest(1, guid(8), 5))
    exchanged = await reply_to(remote, LookupRequest(1, a.id, 6))

    assert (foreign.state, foreign.events) == ("not_told", [])
    assert [event.kind for event in exchanged.events] == ["transmitted"]
    remote.close()


@hosted
async def test_an_invalid_question_is_ignored_and_leaves_no_state(hosts: Hosts) -> None:
    a = await hosts.start()
    remote = await dial(a, guid(7))
    bodies = [
        b"",
        b"\x93",
        b"\xff" * 1000,
        b"\x91" * 100_000,
        msgspec.msgpack.encode(["why", 1, b"short", 5]),
        msgspec.msgpack.encode(["why", 1, bytes(16), 1 << 40]),
        msgspec.msgpack.encode(["why", 1, bytes(16), 5, b"x" * 1000]),
        msgspec.msgpack.encode(["told", 1, "x" * 1000, "", [], [], [], False]),
        msgspec.msgpack.encode(LookupReply(1, "b", "queued", ["It lies."], [], [], False)),
    ]
    for number, body in enumerate(bodies):
        remote.send(request_packet(body, number + 1, delivery=EXPRESS))
    remote.send(request_packet(bodies[0], 90, delivery=RECOVERABLE))
    await until(lambda: remote.acknowledged, "the acknowledgment")

    reply = await reply_to(remote, LookupRequest(1, guid(7), 1))

    assert reply.state == "unknown"
    assert (a.nacks.count, a.usage.bytes, a.remote_lookup.reply_count) == (0, 0, 1)
    remote.close()


@hosted
async def test_questions_beyond_the_limit_are_ignored(hosts: Hosts) -> None:
    a = await hosts.start()
    remote = await dial(a, guid(7), window_size=1000)
    body = msgspec.msgpack.encode(LookupRequest(1, guid(7), 1))
    sent = 0
    for _ in range(10):
        for _ in range(50):
            sent += 1
            if remote.session.room():
                remote.send(request_packet(body, sent, delivery=EXPRESS))
        await asyncio.sleep(0)
    await reply_to(remote, LookupRequest(1, guid(7), 1), patience=20)

    assert a.remote_lookup.reply_count < 100
    remote.close()


@hosted
async def test_a_long_history_is_cut_to_the_limit_of_an_answer(hosts: Hosts) -> None:
    a = await hosts.start()
    sent = packet(b"x", source=guid(7), number=5)
    for each in range(500):
        a.recorder.record(
            EventHeader(Kind.OUT_OF_ORDER, peer=guid_text(guid(7)), reason=f"{each} " + "x" * 900),
            [sent],
        )
    await a.settled()
    remote = await dial(a, guid(7))

    reply = await reply_to(remote, LookupRequest(1, guid(7), 5))

    assert reply.events_left_out
    assert reply.events[0].reason.startswith("0 ")
    assert reply.events[-1].reason.startswith("499 ")
    assert len(msgspec.msgpack.encode(reply)) <= REPLY_BYTES_MAX
    remote.close()


@hosted
async def test_an_answer_of_another_queue_manager_is_ignored(hosts: Hosts) -> None:
    a = await hosts.start("a")
    async with listening(guid(7)) as listener:
        (sent,) = await a.send(listener.name("q"), b"x", delivery=RECOVERABLE)
        remote = await listener.session()
        await until(lambda: remote.messages, "the message")
        remote.acknowledge()
        (message,) = remote.messages
        a.recorder.record(
            EventHeader(Kind.TRANSMITTED, queue=listener.name("q"), peer=guid_text(guid(7))),
            [message.packet],
        )
        await a.settled()
        liar = await dial(a, guid(6))
        waiting = asyncio.create_task(why(a, sent, ask=True))
        await until(lambda: len(remote.messages) == 2, "the question")
        asked_as = bytes(remote.messages[1].message.user.source_queue_manager) + remote.messages[
            1
        ].message.user.message_number.to_bytes(4, "little")
        lie = msgspec.msgpack.encode(LookupReply(1, "b", "received", ["It lies."], [], [], False))
        liar.send(
            packet(
                lie,
                source=guid(6),
                number=1,
                queue="qmd_history$",
                delivery=EXPRESS,
                correlation_id=asked_as,
            )
        )
        truth = msgspec.msgpack.encode(
            LookupReply(1, "b", "queued", ["It is here."], [], [], False)
        )
        await a.settled()
        remote.send(
            packet(
                truth,
                source=guid(7),
                number=1,
                queue="qmd_history$",
                delivery=EXPRESS,
                correlation_id=asked_as,
            )
        )

        reported = await waiting

        assert reported["peers"][0]["sentences"] == ["It is here."]
        liar.close()


def request_packet(body: bytes, number: int, *, delivery: int) -> bytes:
    return packet(body, source=guid(7), number=number, queue="qmd_history$", delivery=delivery)


_numbers = iter(range(1000, 9000))


async def reply_to(remote: Any, request: LookupRequest, *, patience: int = 1) -> LookupReply:
    """Send a request and return its reply.

    Send it up to `patience` times, since requests above the limit get no reply.
    """
    for _ in range(patience):
        before = len(remote.messages)
        body = msgspec.msgpack.encode(request)
        number = next(_numbers)
        await until(lambda: remote.session.room(), "room")
        remote.send(request_packet(body, number, delivery=EXPRESS))
        for _ in range(200):
            await asyncio.sleep(0.005)
            for message in remote.messages[before:]:
                properties = message.message.properties
                if properties.correlation_id[16:] == number.to_bytes(4, "little"):
                    reply = msgspec.msgpack.decode(properties.body, type=LookupReply)
                    assert isinstance(reply, LookupReply)
                    return reply
    raise AssertionError("no reply came")
