"""Reserved ranges of pipelines: fixed, exclusive, and consumed once."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3

from qmd.control_protocol.bulk import Attempt
from qmd.control_protocol.messages import EXPRESS, Choice, NewMessage, Piece
from qmd.queues.local_queue import Reader
from storage.rescue.repair import Rescue
from tests.integration.agreement import check_agreement
from tests.integration.bulk.reader import numbered, opened
from tests.integration.bulk.refusals import refused
from tests.integration.managers import Hosts, bodies, hosted


@hosted
async def test_a_range_is_the_same_at_every_read_and_after_a_restart(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *numbered(10))
    run = await opened(a)
    assert (await run.reserve(0, 6))["end"] == 6
    assert await run.read(0, 6) == numbered(6)
    await a.send("orders", *numbered(5, 10))
    assert await run.read(0, 6) == numbered(6)
    a = await hosts.restart(a)
    run = await opened(a)
    assert (run.position, run.reserved) == (0, 6)
    assert await run.read(2, 6) == numbered(4, 2)
    assert await a.receive("orders") == numbered(9, 6)  # other readers get the rest


@hosted
async def test_a_repeated_request_gets_the_same_range(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *numbered(10))
    run = await opened(a)
    assert (await run.reserve(0, 4))["end"] == 4
    again = await run.reserve(0, 6)  # the reply was lost, and the repeated request is larger
    assert (again["end"], again["messages"], again["more"]) == (6, 6, True)
    assert await run.read(0, 6) == numbered(6)
    assert (await run.reserve(6, 100))["end"] == 10
    nothing = await run.reserve(10)
    assert (nothing["end"], nothing["messages"], nothing["more"]) == (10, 0, False)


@hosted
async def test_a_limit_of_bytes_shortens_a_range_to_at_least_one_message(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *[bytes(1000)] * 10)
    run = await opened(a)
    assert (await run.reserve(0, bytes_max=3500))["end"] == 3
    assert (await run.reserve(3, bytes_max=1))["end"] == 4
    assert (await run.reserve(0, bytes_max=2500))["end"] == 2  # also of earlier requests


@hosted
async def test_a_consumed_message_counts_as_received(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.administration.create(
        "orders", transactional=True, label="", journal=True, quota_bytes=None
    )
    await a.create("answers")
    await a.send("orders", *numbered(5), admin_queue="answers", acknowledge=2)
    run = await opened(a)
    await run.reserve(0, 4)
    assert (await run.consume(3))["messages"] == 3
    assert bodies(await a.peek("orders;journal")) == numbered(3)
    answers = await a.peek("answers")
    assert len(answers) == 3
    assert (await run.consume(3))["messages"] == 0  # a repeated request has no effect
    assert await run.read(3, 4) == numbered(1, 3)
    assert await refused(run.read(0, 4)) == "range_consumed"
    assert await refused(run.reserve(1)) == "range_consumed"
    a = await hosts.restart(a)
    run = await opened(a)
    assert (run.position, run.reserved) == (3, 4)
    assert (await run.consume(4))["messages"] == 1
    assert await a.receive("orders") == numbered(1, 4)


@hosted
async def test_damaged_messages_do_not_count_as_consumed(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.administration.create(
        "orders", transactional=True, label="", journal=True, quota_bytes=None
    )
    await a.send("orders", *numbered(9))
    run = await opened(a)
    await run.reserve(0, 9)

    def harm(db: sqlite3.Connection) -> None:
        keys = [key for (key,) in db.execute("SELECT key FROM message ORDER BY key")]
        for key in (keys[2], keys[5]):
            db.execute("UPDATE message SET packet = zeroblob(length(packet)) WHERE key = ?", (key,))

    await a.storage.batch.run(harm)

    assert (await run.consume(9))["messages"] == 7

    assert bodies(await a.peek("orders;journal")) == [
        each for index, each in enumerate(numbered(9)) if index not in (2, 5)
    ]
    assert await a.receive("orders") == []
    places = await a.storage.read(lambda db: db.execute("SELECT place FROM damaged").fetchall())
    assert places == [("message",)] * 2


@hosted
async def test_every_call_of_an_older_run_is_refused(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *numbered(4))
    old = await opened(a)
    await old.reserve(0, 2)
    new = await opened(a)
    assert new.fence > old.fence
    assert await refused(old.reserve(2)) == "reader_fenced"
    assert await refused(old.consume(2)) == "reader_fenced"
    assert (await new.consume(2))["messages"] == 2
    a = await hosts.restart(a)
    newest = await opened(a)
    assert newest.fence > new.fence
    await a.reservations.release("archive", "", dry_run=False, forget=True)
    assert (await opened(a)).fence > newest.fence  # fences are unique even then


@hosted
async def test_a_reserved_message_is_not_expired_purged_moved_or_received(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("others")
    await a.send("orders", *numbered(3), time_to_be_received_s=5)
    await a.send("orders", *numbered(3, 3))
    run = await opened(a)
    await run.reserve(0, 3)
    a.world.ahead_s += 60
    await hosts.reap(a)
    purged = await a.purger.purge(a.queue("orders"))
    assert (purged.messages, purged.taken) == (3, 3)
    moved = await a.mover.move(a.queue("orders"), "others", Choice(), Piece())
    assert (moved["messages"], moved["taken"]) == (0, 3)
    held = next(iter(a.queue("orders").reserved))
    choice = Choice(lookup_ids=[held])
    assert await refused(a.mover.move(a.queue("orders"), "others", choice, Piece())) == (
        "message_reserved"
    )
    assert await refused(a.queue_deletion.delete(a.queue("orders"))) == "messages_reserved"
    assert await a.receive("orders") == []
    assert await run.read(0, 3) == numbered(3)
    await run.consume(3)
    await a.queue_deletion.delete(a.queue("orders"))


@hosted
async def test_a_released_message_is_ready_again_at_its_old_place(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *numbered(6))
    run = await opened(a)
    await run.reserve(0, 4)
    await run.consume(1)
    dry = await a.reservations.release("archive", "", dry_run=True, forget=False)
    assert dry["messages"] == 3
    await a.reservations.release("archive", "", dry_run=False, forget=False)
    assert await refused(run.consume(4)) == "reader_fenced"
    run = await opened(a)
    assert (run.position, run.reserved) == (4, 4)  # the released positions are not reused
    a = await hosts.restart(a)
    run = await opened(a)
    assert (run.position, run.reserved) == (4, 4)
    assert await refused(run.read(1, 4)) == "range_consumed"
    assert (await run.reserve(4, 2))["end"] == 6
    assert await run.read(4) == numbered(2, 1)
    released = await opened(a)
    await a.reservations.release("archive", "", dry_run=False, forget=False)
    a = await hosts.restart(a)
    assert (
        await refused(a.reservations.reserve("archive", released.fence, released.queue, 6, 1, 0))
        == "reader_fenced"
    )  # the fence is durable
    assert await a.receive("orders") == numbered(5, 1)


@hosted
async def test_a_range_is_in_the_order_of_arrival_for_all_priorities(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    for number in range(12):
        await a.send("orders", b"%d" % number, priority=number % 8)
    run = await opened(a)
    await run.reserve(0, 5)
    await run.reserve(5, 100)
    assert await run.read(0) == numbered(12)
    assert (await run.consume(12))["messages"] == 12


@hosted
async def test_messages_that_return_or_are_moved_in_are_not_skipped(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *numbered(8))
    reader = Reader()
    taken = await a.take(reader, "orders", 3)  # 0, 1, 2
    await a.mover.move(
        a.queue("orders"),
        "orders;aside",
        Choice(lookup_ids=[each.lookup_id for each in await a.peek("orders", limit=1)]),
        Piece(),
    )  # 3
    run = await opened(a)
    assert (await run.reserve(0))["end"] == 4
    assert await run.read(0) == numbered(4, 4)
    await run.consume(4)
    a.give_back(reader, "orders", taken[1:])
    await a.removing(reader, "orders", taken[:1])
    assert (await run.reserve(4))["end"] == 6
    await a.mover.move(a.queue("orders;aside"), "orders", Choice(), Piece())
    assert (await run.reserve(6))["end"] == 7
    assert await run.read(4) == [b"1", b"2", b"3"]
    assert (await run.consume(7))["messages"] == 3
    assert await a.receive("orders") == []


@hosted
async def test_a_reserved_express_message_outlives_the_process(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.handed_over([NewMessage("orders", b"%d" % n, delivery=EXPRESS) for n in range(3)])
    await a.send("orders", b"3")
    run = await opened(a)
    assert (await run.reserve(0, 2))["end"] == 2
    await check_agreement(a)
    a = await hosts.restart(a)
    run = await opened(a)
    assert await run.read(0) == numbered(2)
    assert (await run.consume(2))["messages"] == 2
    assert await a.receive("orders") == [b"3"]


@hosted
async def test_shared_readers_reserve_an_express_message_at_once(hosts: Hosts) -> None:
    """Both stored it in one commit, which failed and ended the queue manager."""
    a = await hosts.start()
    await a.create("orders")
    await a.handed_over([NewMessage("orders", b"%d" % n, delivery=EXPRESS) for n in range(3)])
    runs = [await opened(a, name, shared=True) for name in ("one", "other", "third")]

    answers = await asyncio.gather(*(run.reserve(0, 2) for run in runs))
    assert [each["end"] for each in answers] == [2, 2, 2]
    await check_agreement(a)
    for run in runs:
        assert await run.read(0) == numbered(2)
        assert (await run.consume(2))["messages"] == 2
        assert (await run.reserve(2))["end"] == 3


@hosted
async def test_readers_with_different_names_compete(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *numbered(10))
    one, other = await opened(a, "one"), await opened(a, "other")
    await one.reserve(0, 3)
    await other.reserve(0, 4)
    await one.reserve(3, 100)
    assert sorted(await one.read(0) + await other.read(0), key=int) == numbered(10)
    await one.consume(6)
    await other.consume(4)
    assert a.queue("orders").messages == 0


@hosted
async def test_each_shared_reader_of_a_journal_reads_all_of_it(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.administration.create(
        "orders", transactional=False, label="", journal=True, quota_bytes=None
    )
    await a.send("orders", *numbered(5))
    await a.receive("orders")
    journal = a.queue("orders;journal").name
    one = await opened(a, "one", journal, shared=True)
    other = await opened(a, "other", journal, shared=True)
    await one.reserve(0, 3)
    await other.reserve(0)
    assert await one.read(0) == numbered(3)
    assert await other.read(0) == numbered(5)
    await other.consume(5)
    assert (await a.purger.purge(a.queue(journal))).taken == 3
    a = await hosts.restart(a)
    one = await opened(a, "one", journal, shared=True)
    await a.send("orders", *numbered(2, 5))
    await a.receive("orders")
    assert await one.read(0) == numbered(3)
    assert (await one.reserve(3))["end"] == 5
    assert await one.read(3) == numbered(2, 5)  # 3 and 4 were purged meanwhile
    await one.consume(5)
    assert bodies(await a.peek(journal)) == [b"0", b"1", b"2", b"5", b"6"]
    assert await refused(opened(a, "one", journal)) == "reader_of_other_kind"


@hosted
async def test_a_recreated_queue_is_a_different_queue(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"old")
    run = await opened(a)
    await run.reserve(0)
    await run.consume(1)
    await a.queue_deletion.delete(a.queue("orders"))
    a.world.ahead_s += 2
    await a.create("orders")
    assert await refused(run.reserve(1)) == "no_such_queue"
    await a.readers.forget_gone()
    again = await opened(a)
    assert again.queue != run.queue
    assert again.position == 0
    a = await hosts.restart(a)
    assert [each["queue"] for each in a.readers.overview()] == [again.queue]


@hosted
async def test_the_rows_of_a_reader_of_a_deleted_queue_are_deleted_after_a_restart(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    await opened(a)
    await a.queue_deletion.delete(a.queue("orders"))
    a = await hosts.restart(a)
    await a.readers.forget_gone()
    rows = await a.storage.read(lambda db: db.execute("SELECT * FROM reader_queue").fetchall())
    assert rows == []


@hosted
async def test_a_queue_with_exclusive_access_cannot_be_reserved(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"one")
    run = await opened(a)
    a.selective_receiver.open(a.queue("orders"), "an application")
    assert await refused(run.reserve(0)) == "sharing_violation"
    a.selective_receiver.leave("an application")
    assert (await run.reserve(0))["end"] == 1


@hosted
async def test_a_checkpoint_of_another_reader_is_detected(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    run = await opened(a)
    assert await refused(run.reserve(17)) == "position_unknown"
    assert await refused(run.consume(17)) == "position_unknown"
    assert (
        await refused(a.reservations.reserve("nobody", 1, run.queue, 0, 1, 0)) == "no_such_reader"
    )
    await a.create("others")
    others = await opened(a, "else", "others")
    assert (
        await refused(a.reservations.reserve("archive", run.fence, others.queue, 0, 1, 0))
        == "queue_not_open"
    )


@hosted
async def test_an_idle_reader_is_logged_once(
    hosts: Hosts,
) -> None:
    a = await hosts.start(pipeline={"quiet_warning_s": -1.0})
    await a.create("orders")
    await a.send("orders", b"one")
    run = await opened(a)
    await run.reserve(0)
    reader = a.readers._by_name["archive"]
    for task in a.retention.tasks.values():  # as the maintenance loop runs them
        await task()
    assert reader.was_warned_about
    await run.reserve(0)
    assert not reader.was_warned_about


@hosted
async def test_long_queues_are_reserved_and_consumed_in_pieces(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    for first in range(0, 10_000, 2000):
        await a.send("orders", *numbered(2000, first))
    run = await opened(a)
    assert (await run.reserve(0, 9_000))["end"] == 9_000
    a = await hosts.restart(a)
    run = await opened(a)
    assert (await run.consume(8_999))["messages"] == 8_999
    assert await run.read(8_999) == numbered(1, 8_999)
    assert (await a.receive("orders"))[0] == b"9000"
    assert a.queue("orders").messages < 1000


@hosted
async def test_a_rescued_folder_keeps_readers_ranges_stages_and_epochs(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *numbered(5))
    run = await opened(a)
    await run.reserve(0, 4)
    await run.consume(1)
    rows = [NewMessage("orders", b"staged")]
    await a.staging.stage("etl", 0, 0, "a", 0, rows)
    await a.publisher.publish("etl", 0, [Attempt(0, "a", 1)])
    await a.staging.stage("etl", 1, 0, "a", 0, rows)
    folder = a.services.settings.queue_manager.data
    await hosts.stop(a)
    rescue = Rescue(folder)
    for _ in rescue.run(now_s=1, new_id=bytes(16)):
        pass
    shutil.rmtree(folder)
    rescue.fresh.rename(folder)
    a = await hosts.start()
    run = await opened(a)
    assert (run.position, run.reserved) == (1, 4)
    assert await run.read(1, 4) == numbered(3, 1)
    assert not (await a.publisher.publish("etl", 0, [Attempt(0, "a", 1)]))["published"]
    assert (await a.publisher.publish("etl", 1, [Attempt(0, "a", 1)]))["published"]
    assert await a.receive("orders") == [b"4", b"staged", b"staged"]
