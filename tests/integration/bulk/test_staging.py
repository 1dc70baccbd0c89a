"""Staged rows: the named attempts are published once, all rows or none."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from protocol import parse_user_message
from qmd.bulk.message_shapes import NotUniform
from qmd.client.new_message import Acknowledge
from qmd.control_protocol.bulk import Attempt
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, NewMessage, StoredMessage
from qmd.errors import Refusal
from tests.integration.agreement import check_agreement
from tests.integration.bulk.refusals import refused
from tests.integration.bulk.stages import contents, publish, sent_events, stage
from tests.integration.managers import Hosts, hosted, until


@hosted
async def test_only_the_named_attempts_are_published_by_partition_and_row(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    second = await stage(a, 0, 1, "a", b"3", b"4")
    await stage(a, 0, 0, "given up", b"x", b"y", b"z")
    first = await stage(a, 0, 0, "b", b"0", b"1")
    first = await stage(a, 0, 0, "b", b"2", first_row=2)
    empty = Attempt(2, "nothing", 0)
    assert a.queue("orders").messages == 0
    assert await publish(a, 0, second, empty, first) == (True, 5)
    assert await contents(a) == [b"0", b"1", b"2", b"3", b"4"]
    assert a.stage_store.overview() == []


@hosted
async def test_an_epoch_is_published_once_even_after_retries_and_restarts(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    attempt = await stage(a, 7, 0, "a", b"0", b"1")
    assert await publish(a, 7, attempt) == (True, 2)
    # The reply to the driver was lost, and the retried batch is divided differently.
    again = [await stage(a, 7, 0, "b", b"0"), await stage(a, 7, 1, "b", b"1")]
    a = await hosts.restart(a)
    assert await publish(a, 7, *again) == (False, 2)
    assert await contents(a) == [b"0", b"1"]
    assert a.stage_store.overview() == []
    following = await stage(a, 8, 0, "a", b"2")
    assert await publish(a, 8, following) == (True, 1)
    assert await publish(a, 7) == (False, 2)
    assert await contents(a) == [b"0", b"1", b"2"]


@hosted
async def test_published_messages_can_be_delayed(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    attempt = await stage(a, 0, 0, "a", b"0", b"1", delay_ms=3_600_000)
    assert await publish(a, 0, attempt) == (True, 2)
    assert await contents(a) == []
    assert a.delayed.totals[0] == 2
    a.world.ahead_s += 3601
    while await a.delayed_release.release():
        pass
    assert await contents(a) == [b"0", b"1"]


@hosted
async def test_a_restarted_query_needs_a_new_name(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    assert await publish(a, 7, await stage(a, 7, 0, "a", b"0")) == (True, 1)
    early = await stage(a, 3, 0, "a", b"1")
    assert await refused(publish(a, 3, early)) == "epoch_out_of_order"
    other = await stage(a, 3, 0, "a", b"1", query="other")
    assert await publish(a, 3, other, query="other") == (True, 1)


@hosted
async def test_nothing_is_published_when_a_row_is_missing(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    attempt = await stage(a, 0, 0, "a", b"0", b"1")
    assert await refused(publish(a, 0, attempt, Attempt(1, "a", 3))) == "stage_incomplete"
    assert await refused(publish(a, 0, Attempt(0, "a", 3))) == "stage_incomplete"
    gap = await stage(a, 0, 1, "a", b"4", first_row=5)
    assert await refused(publish(a, 0, attempt, gap)) == "stage_incomplete"
    assert await refused(publish(a, 0, attempt, attempt)) == "attempt_twice"
    assert await contents(a) == []
    assert await publish(a, 0, attempt) == (True, 2)


@hosted
async def test_nothing_is_published_when_one_row_cannot_be_sent(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("small", quota_bytes=1000)
    fitting = await stage(a, 0, 0, "a", b"0")
    await a.create("nowhere")
    unknown = await stage(a, 0, 1, "a", b"1", queue="nowhere")
    await a.queue_deletion.delete(a.queue("nowhere"))
    assert await refused(publish(a, 0, fitting, unknown)) == "no_such_queue"
    large = await stage(a, 0, 2, "a", bytes(5000), queue="small")
    assert await refused(publish(a, 0, fitting, large)) == "queue_full"
    assert await contents(a) == []
    await a.create("nowhere")
    assert await publish(a, 0, fitting, unknown) == (True, 2)
    assert await contents(a, "nowhere") == [b"1"]


@hosted
async def test_a_missing_queue_is_reported_with_its_first_row(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    rows = [NewMessage("orders", b"1"), NewMessage("bills", b"2"), NewMessage("bills", b"3")]
    with pytest.raises(Refusal, match=r"row 8: this queue manager has no queue.*bills") as error:
        await a.staging.stage("etl", 0, 0, "a", 7, rows)
    assert (error.value.code, error.value.remedy[:10]) == ("no_such_queue", "Create it:")
    wrong = stage(a, 0, 0, "a", b"1", delivery=RECOVERABLE)
    assert await refused(wrong) == "needs_transactional"
    assert a.stage_store.overview() == []
    # A remote queue cannot be checked, and staging alone makes no outgoing queue.
    await stage(a, 0, 0, "a", b"1", queue="DIRECT=OS:elsewhere\\private$\\orders")
    assert a.outgoing.queues == []


@hosted
async def test_a_published_epoch_can_be_staged_again_after_its_queue_was_deleted(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    assert await publish(a, 0, await stage(a, 0, 0, "a", b"1")) == (True, 1)
    await a.queue_deletion.delete(a.queue("orders"))

    again = await stage(a, 0, 0, "b", b"1")

    assert await publish(a, 0, again) == (False, 1)
    assert await refused(stage(a, 1, 0, "a", b"2")) == "no_such_queue"


@hosted
async def test_rows_keep_all_of_their_properties(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    attempt = await stage(
        a, 0, 0, "a", b"body", label="Schrauben", priority=6, correlation_id=bytes(range(20)),
        application_tag=7, extension=b"more", body_type=8, sender_id=bytes(12),
    )  # fmt: skip
    await publish(a, 0, attempt)
    [stored] = await a.peek("orders")
    message = parse_user_message(stored.packet)
    assert message.properties.label.decode("utf-16-le") == "Schrauben\0"
    assert message.properties.correlation_id == bytes(range(20))
    assert (message.properties.application_tag, message.properties.body_type) == (7, 8)
    assert message.properties.extension == b"more"
    assert message.base.flags & 7 == 6
    assert message.security is not None


@hosted
async def test_express_rows_and_invalid_rows_are_refused_when_staged(hosts: Hosts) -> None:
    a = await hosts.start()
    assert await refused(stage(a, 0, 0, "a", b"0", delivery=EXPRESS)) == "express_not_staged"
    assert await refused(stage(a, 0, 0, "a", b"0", priority=9)) == "bad_priority"
    assert await refused(stage(a, 0, 0, "a", b"0", queue="")) == "name_not_understood"
    assert a.stage_store.overview() == []


@hosted
async def test_stages_count_towards_the_quota_and_have_their_own_limit(hosts: Hosts) -> None:
    a = await hosts.start(quotas={"computer_bytes": 100_000}, pipeline={"staged_bytes_max": 70_000})
    await a.create("orders")
    await stage(a, 0, 0, "a", bytes(50_000))
    assert await refused(stage(a, 0, 1, "a", bytes(50_000))) == "stages_full"
    assert await refused(a.send("orders", bytes(60_000))) == "computer_full"
    await check_agreement(a)
    a = await hosts.restart(
        a, quotas={"computer_bytes": 100_000}, pipeline={"staged_bytes_max": 70_000}
    )
    assert await refused(a.send("orders", bytes(60_000))) == "computer_full"
    assert (await a.staging.discard("etl", 0, None, "", 0))["rows"] == 1
    await a.send("orders", bytes(60_000))


@hosted
async def test_a_repeated_piece_replaces_the_earlier_one(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await stage(a, 0, 0, "a", b"0", b"1")
    attempt = await stage(a, 0, 0, "a", b"0", b"1")
    assert attempt.rows == 2
    await check_agreement(a)
    assert await publish(a, 0, attempt) == (True, 2)


@hosted
async def test_old_stages_are_deleted_by_age_and_only_in_complete_batches(hosts: Hosts) -> None:
    a = await hosts.start(pipeline={"stage_age_s": 100.0})
    await a.create("orders")
    await stage(a, 0, 0, "a", b"left", query="dead")
    long_ago = await stage(a, 0, 0, "a", b"0")
    a.world.ahead_s += 90
    just_now = await stage(a, 0, 1, "a", b"1")
    a.world.ahead_s += 90
    await a.staging.forget_old()
    assert {each["query"] for each in a.stage_store.overview()} == {"etl"}
    assert await publish(a, 0, long_ago, just_now) == (True, 2)


@hosted
async def test_a_batch_of_too_many_rows_is_refused_with_an_error(hosts: Hosts) -> None:
    a = await hosts.start(pipeline={"published_rows_max": 3})
    await a.create("orders")
    await stage(a, 0, 0, "a", b"0", b"1")
    await stage(a, 0, 0, "b", b"0", b"1")  # a task with two attempts: only one of them counts
    attempts = await stage(a, 0, 0, "c", b"0"), await stage(a, 0, 1, "a", b"2")
    # The refusal comes during staging, not at the end of the batch.
    assert await refused(stage(a, 0, 2, "a", b"3")) == "publication_too_large"
    assert await refused(stage(a, 0, 1, "b", b"2", b"3")) == "publication_too_large"
    assert await publish(a, 0, *attempts) == (True, 2)
    await stage(a, 1, 0, "a", b"0", b"1", b"2")  # another batch


@hosted
async def test_a_batch_that_was_staged_under_a_higher_limit_is_not_published(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    attempt = await stage(a, 0, 0, "a", *[b"x"] * 4)
    a = await hosts.restart(a, pipeline={"published_rows_max": 3})
    assert await refused(publish(a, 0, attempt)) == "publication_too_large"


@hosted
async def test_a_long_batch_gets_message_numbers_without_gaps_or_duplicates(hosts: Hosts) -> None:
    """There are more messages than one block of message numbers has."""
    a = await hosts.start()
    await a.create("orders")
    await a.services.ids._messages.ensure(400_000)
    left = a.services.ids._messages.left
    assert left >= 400_000
    numbers = [a.services.ids._messages.next() for _ in range(300_000)]
    assert numbers == sorted(set(numbers))


@hosted
async def test_rows_of_every_kind_are_recorded_and_stored_like_sent_messages(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("bills", transactional=True)
    rows = [
        NewMessage(
            ("orders", "bills")[number % 3 == 0],
            b"%d" % number,
            f"row {number}",
            priority=number % 4,
            correlation_id=bytes([number % 7]) * 20 if number % 5 == 0 else b"",
            time_to_be_received_s=1000 if number % 11 == 0 else None,
            application_tag=number,
        )
        for number in range(700)
    ]
    staged = await a.staging.stage("etl", 0, 0, "a", 0, rows)
    assert await publish(a, 0, Attempt(0, "a", staged["rows"])) == (True, 700)

    for queue in ("orders", "bills"):
        mine = [row for row in rows if row.destination == queue]
        found: list[StoredMessage] = []
        while some := await a.peek(queue, found[-1].lookup_id + 1 if found else 0):
            found += some
        if queue == "orders":
            mine.sort(key=lambda row: -row.priority)
        assert [parse_user_message(each.packet).properties.application_tag for each in found] == [
            row.application_tag for row in mine
        ]
        assert [each.expires_at_s is not None for each in found] == [
            row.time_to_be_received_s is not None for row in mine
        ]
    reported = [
        correlation
        for event in await sent_events(a)
        for correlation in event.correlations
        + [b""] * (len(event.numbers) - len(event.correlations))
    ]
    assert Counter(reported) == Counter(row.correlation_id for row in rows)


@hosted
async def test_rows_that_ask_for_it_are_acknowledged_as_arrived(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("acks")
    attempt = await stage(
        a, 0, 0, "a", b"1", b"2", admin_queue="acks", acknowledge=Acknowledge.POSITIVE_ARRIVAL
    )

    assert await publish(a, 0, attempt) == (True, 2)
    await until(lambda: a.queue("acks").messages == 2, "acknowledgments")


@hosted
async def test_a_queue_that_was_recreated_after_the_preparation_of_rows_is_detected(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    prepared = a.new_publication()
    rows = msgspec.msgpack.encode([NewMessage("orders", b"x")])
    await prepared.prepare(msgspec.msgpack.decode(rows, type=list[tuple[Any, ...]]))
    await a.queue_deletion.delete(a.queue("orders"))
    await a.create("orders", transactional=True)

    with pytest.raises(NotUniform):
        prepared.take_over()

    assert a.queue("orders").messages == 0
