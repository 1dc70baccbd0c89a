"""qmd why: the place of a message, the reason for its wait, and the report of the other side.

docs/cli.md `qmd why`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from protocol.identifiers import guid_text, parse_message_id
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL, NewMessage
from qmd.core.internal_names import HISTORY_QUEUE
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind
from qmd.history import explanation, places, remote_lookup
from qmd.history.lookup_messages import REPLY_BYTES_MAX, LookupReply, LookupRequest
from qmd.queues.local_queue import Reader
from tests.integration.managers import Host, Hosts, dial, guid, hosted, listening, packet, until
from tests.patience import END_S


async def why(host: Host, message: str, *, queue: str = "", ask: bool = False) -> dict[str, Any]:
    return await host.message_lookup.why(message, queue, ask=ask)


async def forget_history(host: Host) -> None:
    """Delete the history, as its limits of age and size do."""

    def forget(db: Any) -> None:
        db.execute("DELETE FROM event_range")
        db.execute("DELETE FROM event_block")

    await host.settled()
    await host.storage.batch.run(forget)


@hosted
async def test_a_message_in_a_queue_is_found_with_its_position(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    ids = await a.send("orders", b"1", b"2", b"3", delivery=RECOVERABLE)

    view = await why(a, ids[2])

    assert view["state"] == "queued"
    (place,) = view["places"]
    assert (place["queue"], place["position"], place["taken"]) == ("private$\\orders", 3, False)
    assert "third in line; nobody waits for it" in view["sentences"][0]
    assert view["remedies"] == ["Receive it: qmd receive 'private$\\orders'."]


@hosted
async def test_a_poison_message_shows_its_reason_and_its_last_failure(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    [id_] = await a.send("orders", b"bad")
    queue, owner = a.queue("orders"), object()

    async def taken(transaction: bytes) -> int:
        a.transactions.begin(transaction, owner, 0.0)
        messages = a.loop.create_future()
        a.transactions.take(transaction, owner, queue, 1, 0.0, messages.set_result)
        return int((await messages)[0].lookup_id)

    for at in range(2):
        transaction = bytes([at] * 16)
        await taken(transaction)
        a.transactions.abort(transaction, owner, "pay failed: KeyError: 'price'")
    lookup_id = await taken(b"t" * 16)
    done = a.loop.create_future()
    await a.transactions.settle(
        b"t" * 16, owner, queue, [lookup_id], target="orders;poison", reason="it failed 2 times"
    )
    a.transactions.commit(b"t" * 16, owner, done.set_result)
    await done
    await a.settled()

    view = await why(a, id_)

    [first, *history] = view["sentences"]
    assert "where it was moved because: it failed 2 times; the last time: pay failed:" in first
    assert "KeyError: 'price' (that was at 2" in first
    assert not any("because" in sentence for sentence in history), "once is enough"
    [place] = view["places"]
    assert view["remedies"] == [
        "Mend the cause, and bring it back: qmd move 'private$\\orders;poison' 'private$\\orders'"
        f" --lookup-id {place['lookup_id']}"
    ]
    moved = [event for event in view["events"] if event["kind"] == "moved"]
    assert [event["reason"] for event in moved] == ["it failed 2 times"]


@hosted
async def test_without_a_history_the_tables_are_searched(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    ids = await a.send("orders", *(b"%d" % each for each in range(1200)), delivery=RECOVERABLE)
    (away,) = await a.send("DIRECT=TCP:127.0.0.1:1\\private$\\q", b"x", delivery=RECOVERABLE)
    await forget_history(a)

    assert (await why(a, ids[1100]))["places"][0]["position"] == 1101
    assert (await why(a, away))["state"] == "outgoing"
    assert (await why(a, f"{guid_text(a.id)}\\4000000000"))["state"] == "unknown"


@hosted
async def test_a_message_is_found_by_its_lookup_id(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("others")
    (stored,) = await a.send("orders", b"x", delivery=RECOVERABLE)
    (express,) = await a.send("orders", b"y", delivery=EXPRESS)
    first, second = await a.peek("orders")

    assert (await why(a, str(first.lookup_id)))["message_id"] == stored
    assert (await why(a, str(second.lookup_id), queue="orders"))["message_id"] == express
    with pytest.raises(Refusal, match="no message with the lookup id") as refused:
        await why(a, str(first.lookup_id), queue="others")
    assert refused.value.code == "no_such_message"


@hosted
async def test_the_history_finds_the_lookup_id_of_a_deleted_message(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    (sent,) = await a.send("orders", b"x", delivery=RECOVERABLE)
    (message,) = await a.peek("orders")
    await a.receive("orders")

    view = await why(a, str(message.lookup_id), queue="orders")

    assert (view["message_id"], view["state"], view["places"]) == (sent, "received", [])
    assert "received from private$\\orders by an application" in view["sentences"][0]


@pytest.mark.parametrize("text", ["", "hello", "12\\3", "99999999999999999999", "-1"])
def test_an_invalid_id_is_refused(tmp_path: Any, text: str) -> None:
    @hosted
    async def test(hosts: Hosts) -> None:
        a = await hosts.start()
        with pytest.raises(Refusal) as refused:
            await why(a, text)
        assert refused.value.code in ("not_a_message_id", "bad_lookup_id")

    test(tmp_path)


@hosted
async def test_the_reader_that_has_taken_a_message_is_named(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    (sent,) = await a.send("orders", b"x", delivery=RECOVERABLE)
    reader = Reader(who="a connection of process 4711")
    await a.take(reader, "orders")

    view = await why(a, sent)

    assert view["state"] == "taken"
    assert "is taken by a connection of process 4711, which took" in view["sentences"][0]

    a.message_receiver.leave(reader)
    assert not a.queue("orders").takers
    assert (await why(a, sent))["state"] == "queued"


@hosted
async def test_a_message_that_a_transaction_has_taken_or_sent_names_the_transaction(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    (there,) = await a.send("orders", b"x")
    transaction, owner = bytes(range(16)), object()
    a.transactions.begin(transaction, owner, 0.0)
    taken: asyncio.Future[Any] = a.loop.create_future()
    a.transactions.take(transaction, owner, a.queue("orders"), 1, 0.0, taken.set_result)
    await taken
    (to_be_sent,) = a.transactions.send(transaction, owner, [NewMessage("orders", b"y")])

    assert f"is taken by transaction {transaction.hex()}" in (await why(a, there))["sentences"][0]
    view = await why(a, to_be_sent)
    assert view["state"] == "uncommitted"
    assert f"It was given to transaction {transaction.hex()}" in view["sentences"][0]

    a.transactions.abort(transaction, owner, "")
    assert (await why(a, there))["state"] == "queued"
    assert (await why(a, to_be_sent))["state"] == "unknown"


@hosted
async def test_a_message_for_a_computer_that_is_down_waits_with_the_reason(hosts: Hosts) -> None:
    a = await hosts.start()
    destination = "DIRECT=TCP:127.0.0.1:1\\private$\\q"
    ids = await a.send(destination, b"1", b"2", delivery=TRANSACTIONAL)
    await until(lambda: a.sending_to(destination).link.retry.failures >= 2, "failed attempts")

    view = await why(a, ids[1])

    assert view["state"] == "outgoing"
    assert "second in line, because: " in view["sentences"][0]
    assert "the next attempt is in" in view["sentences"][0]
    assert f"qmd outgoing kick '{destination}'" in view["remedies"][0]


@hosted
async def test_a_paused_queue_is_given_as_the_reason(hosts: Hosts) -> None:
    a = await hosts.start()
    destination = "DIRECT=TCP:127.0.0.1:1\\private$\\q"
    (sent,) = await a.send(destination, b"1", delivery=RECOVERABLE)
    await a.outgoing.set_paused(a.sending_to(destination), True)

    view = await why(a, sent)

    assert "an operator has paused that queue" in view["sentences"][0]
    assert view["remedies"] == [f"Resume it: qmd outgoing resume '{destination}'."]


@hosted
async def test_a_sent_message_without_an_acknowledgment_is_reported_as_such(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(guid(7)) as listener:
        (sent,) = await a.send(listener.name("q"), b"x", delivery=TRANSACTIONAL)
        remote = await listener.session()
        await until(lambda: remote.messages, "the message")

        view = await why(a, sent)

        assert view["state"] == "in_flight"
        assert "is not order-acknowledged yet. It is sent again in" in view["sentences"][0]
        remote.acknowledge()
        remote.order_ack(remote.messages[0])
        await until(lambda: not a.sending_to(listener.name("q")).messages, "the order ack")


@hosted
async def test_a_dead_letter_shows_its_reason(hosts: Hosts) -> None:
    a = await hosts.start()
    dead = packet(b"x", source=a.id, number=99)
    a.dead_letters.dead_letter(
        dead,
        MessageClass.NACK_BAD_DESTINATION_QUEUE,
        "There is no such queue.",
        1000,
        "DIRECT=OS:b\\q",
    )
    await a.settled()

    view = await why(a, f"{guid_text(a.id)}\\99")

    assert view["state"] == "dead_lettered"
    assert "because: There is no such queue." in view["sentences"][0]
    lookup_id = view["places"][0]["lookup_id"]
    assert view["remedies"][0].endswith(f": qmd dead-letter requeue --lookup-id {lookup_id}")


@hosted
async def test_repeated_events_are_one_sentence(hosts: Hosts) -> None:
    a = await hosts.start()
    sent = packet(b"x", source=a.id, number=5)
    a.recorder.record(EventHeader(Kind.SENT, queue="DIRECT=OS:b\\q"), [sent], places=[1])
    for _ in range(40):
        a.recorder.record(EventHeader(Kind.RETRANSMITTED, queue="DIRECT=OS:b\\q", peer="b"), [sent])
    a.recorder.record(
        EventHeader(Kind.ORDER_ACKNOWLEDGED, queue="DIRECT=OS:b\\q", peer="b"), [sent]
    )
    await a.settled()

    view = await why(a, f"{guid_text(a.id)}\\5")

    assert view["state"] == "delivered"
    assert len(view["events"]) == 42
    (again,) = [each for each in view["sentences"] if "transmitted again" in each]
    assert again.startswith("It was transmitted again to b 40 times, first at ")


@hosted
async def test_a_message_far_back_in_its_queue_has_no_position(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    ids = await a.send("orders", *(b"%d" % each for each in range(30)), delivery=RECOVERABLE)
    source, number = parse_message_id(ids[-1])

    (few,) = (await a.message_search.find(source, number)).places
    assert few["position"] == 30

    (many,) = (await a.message_search.find(source, number, thorough=False)).places
    assert many["position"] == 30
    more = await a.send(
        "orders", *(b"x" for _ in range(places.AHEAD_FEW + 1)), delivery=RECOVERABLE
    )
    source, number = parse_message_id(more[-1])
    (far,) = (await a.message_search.find(source, number, thorough=False)).places
    assert far["position"] is None
    assert (
        "in line"
        not in a.message_describer.describe(
            source, number, await a.message_search.find(source, number, thorough=False)
        )["sentences"][0]
    )


@hosted
async def test_an_express_message_is_found_as_well(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("plain")
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\plain"
    (sent,) = await a.send(destination, b"x", delivery=EXPRESS)
    await until(lambda: not a.sending_to(destination).messages, "the acknowledgment")

    view = await why(a, sent, ask=True)

    assert view["peers"][0]["state"] == "queued"
    assert (await why(b, sent))["state"] == "queued"


@hosted
async def test_a_disk_that_hangs_does_not_block_questions(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    (sent,) = await a.send("orders", b"x", delivery=RECOVERABLE)
    await a.settled()

    with a.held_disk():
        view = await why(a, sent)

    assert view["state"] == "queued"
    assert "The disk does not keep up" in view["sentences"][-1]


def test_every_kind_of_event_has_a_sentence() -> None:
    of_the_host = {Kind.STARTED, Kind.DISK_FULL, Kind.DISK_HAS_ROOM}
    of_messages = {kind.value for kind in Kind if kind not in of_the_host}

    assert set(explanation._PHRASES) == of_messages
    assert set(explanation._ENDS) <= of_messages


# The other side.


@hosted
async def test_the_receiving_queue_manager_reports_the_place_of_the_message(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders")
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    (sent,) = await a.send(destination, b"x", delivery=RECOVERABLE)
    await until(lambda: not a.sending_to(destination).messages, "the acknowledgment")

    view = await why(a, sent, ask=True)

    assert view["state"] == "delivered"
    (peer,) = view["peers"]
    assert (peer["answered"], peer["host"], peer["state"]) == (True, "b", "queued")
    assert peer["queue_manager"] == guid_text(b.id)
    assert "first in line" in peer["sentences"][0]
    assert "accepted" in [event["kind"] for event in peer["events"]]
    assert view["sides"] == ""


@hosted
async def test_the_sending_queue_manager_reports_its_side(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders")
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    (sent,) = await a.send(destination, b"x", delivery=RECOVERABLE)
    await until(lambda: not a.sending_to(destination).messages, "the acknowledgment")
    (message,) = await b.peek("orders")

    view = await why(b, str(message.lookup_id), queue="orders", ask=True)

    assert view["message_id"] == sent
    (peer,) = view["peers"]
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

    view = await why(a, sent, ask=True)
    assert view["peers"][0]["answered"] is False
    assert "This is what a knows; 127.0.0.1" in view["sides"]
    assert "did not answer" in view["sides"]

    again = await why(a, sent, ask=True)
    assert "is left alone for" in again["sides"]
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

    view = await why(a, sent, ask=True)

    assert view["peers"][0]["answered"] is True
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

    view = await why(a, sent, ask=True)

    assert view["peers"][0]["answered"] is True


@hosted
async def test_an_unreachable_computer_does_not_delay_the_answer(hosts: Hosts) -> None:
    a = await hosts.start("a")
    sent = packet(b"x", source=guid(9), number=5)
    a.recorder.record(EventHeader(Kind.DUPLICATE, peer="b"), [sent])
    await a.settled()

    before = a.loop.time()
    view = await why(a, f"{guid_text(guid(9))}\\5", ask=True)

    assert view["peers"][0]["explanation"].endswith("cannot be asked: no session with it is open.")
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

        view = await waiting

        assert view["peers"][0]["sentences"] == ["It is here."]
        liar.close()


@hosted
async def test_the_name_of_the_history_queue_is_reserved(hosts: Hosts) -> None:
    a = await hosts.start()
    with pytest.raises(Refusal) as refused:
        await a.create("qmd_history$")
    assert refused.value.code == "name_not_creatable"
    assert all(queue.name != HISTORY_QUEUE for queue in a.queues.by_key.values())


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


@hosted
async def test_a_message_that_waits_for_its_receipt_names_its_place(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders", transactional=True)
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    (sent,) = await a.send(
        destination, b"x", delivery=TRANSACTIONAL, time_to_be_received_s=3600, dead_letter=True
    )
    await until(lambda: not a.sending_to(destination).messages, "the order ack")

    view = await why(a, sent, ask=True)

    assert view["state"] == "awaiting_receipt"
    assert f"it is in {destination}, and its receipt is not confirmed yet." in view["sentences"][0]
    assert "it goes to the transactional dead-letter queue" in view["sentences"][0]
    assert view["peers"][0]["state"] == "queued"

    await b.receive("orders")
    await until_state(a, sent, "confirmed")


async def until_state(host: Host, message: str, state: str) -> None:
    """Look the message up until it has this state."""
    async with asyncio.timeout(END_S):
        while (await why(host, message))["state"] != state:
            pass


@hosted
async def test_an_acknowledgment_without_a_valid_queue_is_reported(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("strict", transactional=True)
    ids = [
        *await a.send("orders", b"1", delivery=RECOVERABLE, admin_queue="nowhere", acknowledge=1),
        *await a.send("orders", b"2", delivery=RECOVERABLE, admin_queue="strict", acknowledge=1),
    ]

    view = [await why(a, each) for each in ids]

    kinds = [[event["kind"] for event in each["events"]] for each in view]
    assert kinds == [["sent", "unacknowledged"]] * 2
    assert "has no queue private$\\nowhere" in view[0]["events"][-1]["reason"]
    assert "it is transactional" in view[1]["events"][-1]["reason"]
    assert any("not acknowledged to" in sentence for sentence in view[0]["sentences"])
