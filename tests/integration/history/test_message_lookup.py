"""qmd why: the place of a message, and the reason for its wait.  docs/cli.md `qmd why`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protocol.identifiers import guid_text, parse_message_id
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL, NewMessage
from qmd.core.internal_names import HISTORY_QUEUE
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind
from qmd.history import explanation, places, sentences
from qmd.queues.local_queue import Reader
from tests.integration.disk import held_disk
from tests.integration.history.lookups import until_state, why
from tests.integration.managers import Host, Hosts, hosted, until
from tests.integration.remote import guid, listening, packet


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

    reported = await why(a, ids[2])

    assert reported["state"] == "queued"
    (place,) = reported["places"]
    assert (place["queue"], place["position"], place["taken"]) == ("private$\\orders", 3, False)
    assert "third in line; no receiver waits for it" in reported["sentences"][0]
    assert reported["remedies"] == ["Receive it: qmd receive 'private$\\orders'."]


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

    reported = await why(a, id_)

    [first, *history] = reported["sentences"]
    assert "where it was moved because: it failed 2 times; the last time: pay failed:" in first
    assert "KeyError: 'price' (that was at 2" in first
    assert not any("because" in sentence for sentence in history), "once is enough"
    [place] = reported["places"]
    assert reported["remedies"] == [
        "Correct the cause, and move it back: qmd move 'private$\\orders;poison' 'private$\\orders'"
        f" --lookup-id {place['lookup_id']}"
    ]
    moved = [event for event in reported["events"] if event["kind"] == "moved"]
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

    reported = await why(a, str(message.lookup_id), queue="orders")

    assert (reported["message_id"], reported["state"], reported["places"]) == (sent, "received", [])
    assert "received from private$\\orders by an application" in reported["sentences"][0]


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

    reported = await why(a, sent)

    assert reported["state"] == "taken"
    assert "is taken by a connection of process 4711, which took" in reported["sentences"][0]

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
    reported = await why(a, to_be_sent)
    assert reported["state"] == "uncommitted"
    assert f"It was given to transaction {transaction.hex()}" in reported["sentences"][0]

    a.transactions.abort(transaction, owner, "")
    assert (await why(a, there))["state"] == "queued"
    assert (await why(a, to_be_sent))["state"] == "unknown"


@hosted
async def test_a_message_for_a_computer_that_is_down_waits_with_the_reason(hosts: Hosts) -> None:
    a = await hosts.start()
    destination = "DIRECT=TCP:127.0.0.1:1\\private$\\q"
    ids = await a.send(destination, b"1", b"2", delivery=TRANSACTIONAL)
    await until(lambda: a.sending_to(destination).link.retry.failures >= 2, "failed attempts")

    reported = await why(a, ids[1])

    assert reported["state"] == "outgoing"
    assert "second in line, because: " in reported["sentences"][0]
    assert "the next attempt is in" in reported["sentences"][0]
    assert f"qmd outgoing kick '{destination}'" in reported["remedies"][0]


@hosted
async def test_a_paused_queue_is_given_as_the_reason(hosts: Hosts) -> None:
    a = await hosts.start()
    destination = "DIRECT=TCP:127.0.0.1:1\\private$\\q"
    (sent,) = await a.send(destination, b"1", delivery=RECOVERABLE)
    await a.outgoing.set_paused(a.sending_to(destination), True)

    reported = await why(a, sent)

    assert "an operator has paused that queue" in reported["sentences"][0]
    assert reported["remedies"] == [f"Resume it: qmd outgoing resume '{destination}'."]


@hosted
async def test_a_sent_message_without_an_acknowledgment_is_reported_as_such(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(guid(7)) as listener:
        (sent,) = await a.send(listener.name("q"), b"x", delivery=TRANSACTIONAL)
        remote = await listener.session()
        await until(lambda: remote.messages, "the message")

        reported = await why(a, sent)

        assert reported["state"] == "in_flight"
        assert "is not order-acknowledged yet. It is sent again in" in reported["sentences"][0]
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

    reported = await why(a, f"{guid_text(a.id)}\\99")

    assert reported["state"] == "dead_lettered"
    assert "because: There is no such queue." in reported["sentences"][0]
    lookup_id = reported["places"][0]["lookup_id"]
    assert reported["remedies"][0].endswith(f": qmd dead-letter requeue --lookup-id {lookup_id}")


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

    reported = await why(a, f"{guid_text(a.id)}\\5")

    assert reported["state"] == "delivered"
    assert len(reported["events"]) == 42
    (again,) = [each for each in reported["sentences"] if "transmitted again" in each]
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

    reported = await why(a, sent, ask=True)

    assert reported["peers"][0]["state"] == "queued"
    assert (await why(b, sent))["state"] == "queued"


@hosted
async def test_a_disk_that_hangs_does_not_block_questions(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    (sent,) = await a.send("orders", b"x", delivery=RECOVERABLE)
    await a.settled()

    with held_disk(a):
        reported = await why(a, sent)

    assert reported["state"] == "queued"
    assert "The disk does not keep up" in reported["sentences"][-1]


def test_every_kind_of_event_has_a_sentence() -> None:
    of_the_host = {Kind.STARTED, Kind.RESTORED, Kind.MET, Kind.ACCESS_REFUSED}
    of_the_host |= {Kind.DISK_FULL, Kind.DISK_HAS_ROOM}
    of_messages = {kind.value for kind in Kind if kind not in of_the_host}

    assert set(sentences.PHRASES) == of_messages
    assert set(explanation._ENDS) <= of_messages


@hosted
async def test_the_name_of_the_history_queue_is_reserved(hosts: Hosts) -> None:
    a = await hosts.start()
    with pytest.raises(Refusal) as refused:
        await a.create("qmd_history$")
    assert refused.value.code == "name_not_creatable"
    assert all(queue.name != HISTORY_QUEUE for queue in a.queues.by_key.values())


@hosted
async def test_a_message_that_waits_for_its_receipt_names_its_place(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders", transactional=True)
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    (sent,) = await a.send(
        destination, b"x", delivery=TRANSACTIONAL, time_to_be_received_s=3600, dead_letter=True
    )
    await until(lambda: not a.sending_to(destination).messages, "the order ack")

    reported = await why(a, sent, ask=True)

    assert reported["state"] == "awaiting_receipt"
    assert (
        f"it is in {destination}, and its receipt is not confirmed yet." in reported["sentences"][0]
    )
    assert "it goes to the transactional dead-letter queue" in reported["sentences"][0]
    assert reported["peers"][0]["state"] == "queued"

    await b.receive("orders")
    await until_state(a, sent, "confirmed")


@hosted
async def test_an_acknowledgment_without_a_valid_queue_is_reported(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("strict", transactional=True)
    ids = [
        *await a.send("orders", b"1", delivery=RECOVERABLE, admin_queue="nowhere", acknowledge=1),
        *await a.send("orders", b"2", delivery=RECOVERABLE, admin_queue="strict", acknowledge=1),
    ]

    reported = [await why(a, each) for each in ids]

    kinds = [[event["kind"] for event in each["events"]] for each in reported]
    assert kinds == [["sent", "unacknowledged"]] * 2
    assert "has no queue private$\\nowhere" in reported[0]["events"][-1]["reason"]
    assert "it is transactional" in reported[1]["events"][-1]["reason"]
    assert any("not acknowledged to" in sentence for sentence in reported[0]["sentences"])
