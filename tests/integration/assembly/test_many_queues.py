"""One message to several queues: a copy for each of them, all or none.  qmd/naming/fan_out.py"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tracemalloc
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from protocol import parse_user_message
from protocol.identifiers import parse_message_id
from protocol.message_class import MessageClass
from qmd.client.message import Message
from qmd.control_protocol.messages import (
    EVERY_MESSAGE,
    EXPRESS,
    RECOVERABLE,
    TRANSACTIONAL,
    NewMessage,
    Piece,
)
from qmd.errors import Refusal
from qmd.queues.local_queue import Reader
from storage.rescue import check
from storage.rescue.repair import Rescue
from storage.tables import events
from tests.integration.agreement import check_agreement
from tests.integration.managers import (
    DEAD_LETTERS,
    TRANSACTIONAL_DEAD_LETTERS,
    Host,
    Hosts,
    bodies,
    hosted,
    until,
)
from tests.integration.remote import guid, listening
from tests.stored_packets import packets

LARGE = bytes(100_000)
NOWHERE = "DIRECT=TCP:127.0.0.1:1\\private$\\{}"


def parts(host: Host) -> list[int]:
    """Return the sizes of the shared parts on disk, in bytes."""
    with closing(sqlite3.connect(host.services.settings.queue_manager.data / "queues.db")) as db:
        return [size for (size,) in db.execute("SELECT length(packet) FROM shared_part")]


def file_bytes(host: Host) -> int:
    with closing(sqlite3.connect(host.services.settings.queue_manager.data / "queues.db")) as db:
        (count,) = db.execute("PRAGMA page_count").fetchone()
        (free,) = db.execute("PRAGMA freelist_count").fetchone()
        (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
        return int((count - free) * page_bytes)


async def commit(host: Host, *messages: NewMessage) -> list[Any]:
    """Send messages in one transaction, and commit it."""
    owner, transaction = object(), os.urandom(16)
    host.transactions.begin(transaction, owner, 0.0)
    host.transactions.send(transaction, owner, list(messages))
    done: asyncio.Future[list[Any]] = host.loop.create_future()
    host.transactions.commit(transaction, owner, done.set_result)
    return await done


@hosted
async def test_each_element_gets_a_copy_with_its_own_message_number(hosts: Hosts) -> None:
    a = await hosts.start()
    for name in ("one", "two", "three"):
        await a.create(name)

    [ids] = await a.send("one,two,three", b"to all")

    numbers = [parse_message_id(each)[1] for each in ids]
    assert len(set(numbers)) == 3
    for name, number in zip(("one", "two", "three"), numbers, strict=True):
        [message] = await a.peek(name)
        packet = parse_user_message(message.packet)
        assert packet.user.message_number == number
        assert packet.properties.body == b"to all"
        assert Message(message).destinations == [
            f"DIRECT=OS:a\\private$\\{each}" for each in ("one", "two", "three")
        ]


@hosted
async def test_a_repeated_element_gets_two_copies_in_order(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("one")

    await a.send("one,ONE", b"twice", b"again")

    assert await a.receive("one") == [b"twice", b"twice", b"again", b"again"]


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE, TRANSACTIONAL])
def test_copies_go_to_remote_and_local_queues_alike(tmp_path: Any, delivery: int) -> None:
    @hosted
    async def test(hosts: Hosts) -> None:
        a, b = await hosts.start("a"), await hosts.start("b")
        for host in (a, b):
            await host.create("one", transactional=delivery == TRANSACTIONAL)
        there = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\one"

        for body in (b"1", b"2" + LARGE):
            await a.send(f"{there},one,{there}", body, delivery=delivery)

        assert await a.receive("one") == [b"1", b"2" + LARGE]
        await until(lambda: b.queue("one").messages == 4)
        await b.settled()
        assert await b.receive("one") == [b"1", b"1", b"2" + LARGE, b"2" + LARGE]
        await until(lambda: not a.sending_to(there).messages)
        a.outgoing_release.release()
        await a.settled()
        assert parts(a) == []

    test(tmp_path)


@hosted
async def test_the_shared_part_of_copies_is_stored_once_and_deleted_with_the_last_copy(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("one")
    before = file_bytes(a)
    names = [NOWHERE.format(n) for n in range(20)]

    await a.send(",".join([*names, "one"]), LARGE, delivery=RECOVERABLE)

    [size] = parts(a)
    assert size > len(LARGE)
    assert file_bytes(a) - before < 2 * len(LARGE)
    assert a.sending_to(names[0]).bytes > len(LARGE), "a queue counts what it would give"
    for name in names:
        assert parts(a)
        await a.undeliverable.purge(a.sending_to(name))
    await a.settled()
    assert a.queue(DEAD_LETTERS).messages == 20
    assert len(parts(a)) == 1, "dead letters share it as well"
    assert await a.receive("one") == [LARGE]
    assert bodies(await a.peek(DEAD_LETTERS))[-1] == LARGE
    a = await hosts.restart(a)
    assert await a.receive(DEAD_LETTERS) == [LARGE] * 20
    await a.settled()
    assert parts(a) == []


@hosted
async def test_copies_are_complete_after_a_restart(hosts: Hosts) -> None:
    async with listening(guid(7)) as remote:
        a = await hosts.start()
        await a.create("one", transactional=True)
        await a.outgoing.set_paused(a.outgoing.queue_for(_name(remote.name("x"))), True)
        await a.send(f"{remote.name('x')},one", LARGE, b"2" + LARGE, delivery=TRANSACTIONAL)

        a = await hosts.restart(a)

        assert await a.receive("one") == [LARGE, b"2" + LARGE]
        await a.outgoing.set_paused(a.sending_to(remote.name("x")), False)
        session = await remote.session()
        await until(lambda: len(session.messages) == 2)
        assert session.ordinary == [LARGE, b"2" + LARGE]
        session.order_ack(session.messages[-1])
        await until(lambda: not a.sending_to(remote.name("x")).messages)
        a.outgoing_release.release()
        await a.settled()
        assert parts(a) == []


def _name(text: str) -> Any:
    from protocol.names.format_name import parse_format_name

    return parse_format_name(text)


REFUSED = [
    ("one,missing", "no_such_queue", "element 2 of 2"),
    ("one,DIRECT=OS:.\\private$\\one;JOURNAL", "queue_read_only", "element 2:"),
    ("one,DIRECT=OS:other\\SYSTEM$;DEADXACT", "queue_read_only", "element 2:"),
    ("one,two;sub", "queue_read_only", "element 2:"),
    ("one,PUBLIC=11111111-2222-3333-4444-555555555555", "", "element 2 of 2"),
    ("one,DL=11111111-2222-3333-4444-555555555555", "", "element 2 of 2"),
    ("one,MULTICAST=224.0.0.1:8001", "name_not_reachable", "element 2 of 2"),
    ("one,full", "queue_full", "element 2 of 2"),
]


@pytest.mark.parametrize(("destination", "code", "element"), REFUSED)
def test_a_refusal_names_the_element_and_no_copy_is_sent(
    tmp_path: Any, destination: str, code: str, element: str
) -> None:
    @hosted
    async def test(hosts: Hosts) -> None:
        a = await hosts.start()
        for name in ("one", "two"):
            await a.create(name)
        await a.create("full", quota_bytes=1000)
        await a.mover.target(a.queue("two"), "two;sub")

        with pytest.raises(Refusal) as refusal:
            await a.send(destination, bytes(2000))

        assert element in refusal.value.text
        assert not code or refusal.value.code == code
        with pytest.raises(Refusal):
            await a.handed_over([NewMessage("two", b""), NewMessage(destination, bytes(2000))])
        assert a.queue("one").messages == a.queue("two").messages == 0

    test(tmp_path)


@hosted
async def test_a_transactional_message_to_local_and_remote_queues_goes_to_all(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("yes", transactional=True)
    await a.create("no")
    await a.create("admin")

    [[_, second]] = await commit(
        a, NewMessage("yes,no", b"mixed", admin_queue="admin", acknowledge=4 | 8)
    )

    assert await a.receive("yes") == [b"mixed"]
    assert a.queue("no").messages == 0
    [dead] = await a.peek(TRANSACTIONAL_DEAD_LETTERS)
    message = Message(dead)
    assert message.id == second
    assert message.packet.properties.message_class == MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE
    assert "is not" in (dead.reason or "")
    [nack] = await a.peek("admin")
    assert Message(nack).correlation_id == second
    assert parse_user_message(nack.packet).properties.message_class == (
        MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE
    )


@hosted
async def test_a_single_queue_of_the_wrong_kind_is_refused_at_once(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("no")

    with pytest.raises(Refusal, match="not transactional"):
        await commit(a, NewMessage("no", b""))


@hosted
async def test_a_transaction_keeps_its_order_for_every_form_of_address(hosts: Hosts) -> None:
    a = await hosts.start()
    for name in ("q1", "q2", "q3"):
        await a.create(name, transactional=True)

    sent = await commit(
        a, NewMessage("q1,q2", b"m1"), NewMessage("q2,q3", b"m2"), NewMessage("q2", b"m3")
    )

    assert [len(each) if isinstance(each, list) else 1 for each in sent] == [2, 2, 1]
    assert await a.receive("q1") == [b"m1"]
    assert await a.receive("q2") == [b"m1", b"m2", b"m3"]
    assert await a.receive("q3") == [b"m2"]


@hosted
async def test_the_outcome_by_token_has_the_ids_of_all_copies(hosts: Hosts) -> None:
    a = await hosts.start()
    for name in ("one", "two"):
        await a.create(name)
    token = bytes(16)

    ids = await a.handed_over([NewMessage("one,two", b""), NewMessage("two", b"")], token)

    assert await a.request_outcomes.outcome(token) == ids
    assert [len(each) if isinstance(each, list) else 1 for each in ids] == [2, 1]


@hosted
async def test_acknowledgments_name_the_queue_of_their_copy(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await a.create("admin")
    for name in ("one", "two"):
        await b.create(name)
    names = [f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\{each}" for each in ("one", "two")]
    admin = f"DIRECT=TCP:127.0.0.1:{a.port}\\private$\\admin"

    [ids] = await a.send(",".join(names), b"", admin_queue=admin, acknowledge=1)

    await until(lambda: a.queue("admin").messages == 2)
    await a.settled()
    reported = {
        Message(each).correlation_id: Message(each).response_queue for each in await a.peek("admin")
    }
    assert reported == {
        each: f"DIRECT=TCP:127.0.0.1\\private$\\{name}"
        for each, name in zip(ids, ("one", "two"), strict=True)
    }


@hosted
async def test_every_local_copy_is_acknowledged_on_request(hosts: Hosts) -> None:
    a = await hosts.start()
    for name in ("admin", "one", "two", "three"):
        await a.create(name)

    [ids] = await a.send("one,two,three", LARGE, admin_queue="admin", acknowledge=1)

    await a.settled()
    assert [Message(each).correlation_id for each in await a.peek("admin")] == ids


@hosted
async def test_a_folder_with_copies_is_checked_and_rescued(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("one")
    names = [NOWHERE.format(n) for n in range(3)]
    await a.send(",".join([*names, "one"]), LARGE, delivery=RECOVERABLE)
    await a.send("one", b"ordinary")
    folder = a.services.settings.queue_manager.data
    await hosts.stop(a)

    report = check.check(folder)
    assert report.findings == []
    assert sum(report.messages.values()) == 5
    rescue = Rescue(folder)
    found = list(rescue.run(now_s=1, new_id=bytes(16)))
    assert [each.problem for each in found] == [None] * 5
    assert sum(LARGE in each.packet for each in found) == 4
    assert check.check(rescue.fresh).findings == []
    with closing(sqlite3.connect(rescue.fresh / "queues.db")) as db:
        assert db.execute("SELECT count(*) FROM shared_part").fetchone() == (1,)
        assert all(LARGE in packet for _, packet in packets(db, "outgoing"))

    with closing(sqlite3.connect(folder / "queues.db")) as db:
        db.execute("UPDATE shared_part SET packet = zeroblob(length(packet))")
        db.commit()
    report = check.check(folder)
    assert report.damaged == 4
    assert any("which it shares, is damaged" in each for each in report.findings)


@hosted
async def test_a_damaged_shared_part_loses_only_its_copies(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("one")
    await a.send(f"{NOWHERE.format(1)},one", LARGE, delivery=RECOVERABLE)
    await a.send("one", b"ordinary")
    await a.storage.batch.run(
        lambda db: db.execute("UPDATE shared_part SET packet = zeroblob(length(packet))") and None
    )

    a = await hosts.restart(a)

    assert await a.receive("one") == [b"ordinary"]
    await until(lambda: a.queue("one").messages == 0)


@hosted
async def test_a_queue_that_is_deleted_before_the_commit_aborts_the_transaction(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    for name in ("one", "two"):
        await a.create(name, transactional=True)
    owner, transaction = object(), os.urandom(16)
    a.transactions.begin(transaction, owner, 0.0)
    a.transactions.send(transaction, owner, [NewMessage("one,two", b"x")])
    await a.queue_deletion.delete(a.queue("two"))
    done: asyncio.Future[list[Any]] = a.loop.create_future()

    with pytest.raises(Refusal, match="element 2 of 2") as refusal:
        a.transactions.commit(transaction, owner, done.set_result)

    assert refusal.value.code == "no_such_queue"
    assert a.queue("one").messages == 0


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE, TRANSACTIONAL])
def test_copies_of_a_large_message_use_memory_and_disk_once(tmp_path: Any, delivery: int) -> None:
    @hosted
    async def test(hosts: Hosts) -> None:
        a = await hosts.start()
        here = [f"q{n}" for n in range(30)]
        for name in here:
            await a.create(name, transactional=delivery == TRANSACTIONAL)
        everywhere = ",".join([*here, *(NOWHERE.format(n) for n in range(30))])
        body = os.urandom(2_000_000)
        on_disk = file_bytes(a)

        tracemalloc.start()
        try:
            await a.send(everywhere, body, delivery=delivery)
            await a.settled()
            kept, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert kept < 3 * len(body), "of 60 copies"
        assert most < 8 * len(body)
        assert file_bytes(a) - on_disk < (0.1 if delivery == EXPRESS else 1.5) * len(body)
        for name in here:
            assert await a.receive(name) == [body]
        assert a.sending_to(NOWHERE.format(29)).bytes > len(body), "a queue counts what it gives"

    test(tmp_path)


@hosted
async def test_express_copies_that_share_a_body_are_complete_in_every_read(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    for name in ("one", "two", "three", "four"):
        await a.create(name)
    await a.send("one,two,three,four", LARGE, delivery=EXPRESS)

    assert bodies(await a.peek("one")) == [LARGE]
    reader = Reader()
    [message] = a.queue("one").take(reader, 9, a.clock.now_s)
    a.queue("one").put_back(reader, [message.lookup_id], a.clock.now_s, aborted=True)
    [again] = a.queue("one").take(reader, 9, a.clock.now_s)
    assert (again.packet, again.abort_count) == (message.packet, message.abort_count + 1)
    a.queue("one").put_back(reader, [message.lookup_id], a.clock.now_s)
    assert await a.receive("one") == [LARGE]
    await a.purger.purge(a.queue("two"))
    await a.create("five")
    await a.mover.move(a.queue("three"), "five", EVERY_MESSAGE, Piece(9))
    assert await a.receive("five") == [LARGE]
    await check_agreement(a)
    assert a.usage.express_bytes < 1.1 * len(LARGE)
    assert await a.receive("four") == [LARGE]
    assert a.usage.express_bytes == 0


@hosted
async def test_memory_for_express_messages_counts_a_body_that_copies_share_once(
    hosts: Hosts,
) -> None:
    a = await hosts.start(quotas={"express_bytes": 3 * len(LARGE)})
    names = [f"q{n}" for n in range(9)]
    for name in names:
        await a.create(name)
    elsewhere = [NOWHERE.format(n) for n in range(9)]

    await a.send(",".join(names + elsewhere), LARGE, delivery=EXPRESS)
    await a.send(",".join(names), LARGE, delivery=EXPRESS)

    assert 2 * len(LARGE) < a.usage.express_bytes < 2.5 * len(LARGE)
    await check_agreement(a)
    with pytest.raises(Refusal, match="express messages take"):
        a.send_checks.check([NewMessage("q0,q1", LARGE, delivery=EXPRESS)])
    for name in names:
        assert await a.receive(name) == [LARGE] * 2
    assert a.usage.express_bytes > len(LARGE), "those for elsewhere are there"


@hosted
async def test_each_copy_has_its_own_events_with_its_queue_and_properties(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    for name in ("one", "two", "three"):
        await a.create(name)
    names = ["one", "two", "three", *(NOWHERE.format(n) for n in range(3))]
    bears = b"twenty bytes exactly"
    message = NewMessage(
        ",".join(names),
        LARGE,
        delivery=RECOVERABLE,
        time_to_be_received_s=60,
        correlation_id=bears,
    )
    done: asyncio.Future[list[Any]] = a.loop.create_future()
    a.message_sender.send([NewMessage("one", b"before"), message], b"", done.set_result)
    _, ids = await done

    for name, each in zip(names, ids, strict=True):
        number = parse_message_id(each)[1]
        [reported] = await a.storage.read(partial(events.of_message, source=a.id, number=number))
        assert (reported.kind, reported.correlations, reported.delivery) == (
            "sent",
            [bears],
            "recoverable",
        )
        if name in ("one", "two", "three"):
            packet = (await a.peek(name))[-1]
            assert (reported.queue, reported.places) == (a.queue(name).name, [packet.lookup_id])
            assert packet.expires_at_s is not None
        else:
            assert reported.queue == name
