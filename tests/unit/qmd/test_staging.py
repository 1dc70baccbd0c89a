"""What is staged is published once, all of it or nothing, by the attempts that are named."""

from __future__ import annotations

from typing import Any

import pytest

from protocol import parse_user_message
from qmd.client.pipeline import each_message
from qmd.frames import EXPRESS, TRANSACTIONAL, NewMessage
from qmd.pipeline_frames import EVERYTHING, Attempt
from qmd.refusal import Refusal
from tests.unit.qmd.managers import Host, Hosts, bodies, guid, hosted, listening, until


async def stage(
    host: Host,
    epoch: int,
    part: int,
    attempt: str,
    *rows: bytes,
    query: str = "etl",
    queue: str = "orders",
    first_row: int = 0,
    **properties: Any,
) -> Attempt:
    messages = [NewMessage(queue, row, **properties) for row in rows]
    staged = await host.staging.stage(query, epoch, part, attempt, first_row, messages)
    return Attempt(part, attempt, staged["rows"])


async def publish(
    host: Host, epoch: int, *attempts: Attempt, query: str = "etl"
) -> tuple[bool, int]:
    done = await host.staging.publish(query, epoch, list(attempts))
    return done["published"], done["messages"]


async def refused(work: Any) -> str:
    with pytest.raises(Refusal) as error:
        await work
    return error.value.code


async def contents(host: Host, queue: str = "orders") -> list[bytes]:
    rows = await host.ranges.read(
        host.queue(queue), 0, 0, limit=9999, bytes_max=1 << 24, wanted=EVERYTHING, bodies=True
    )
    return bodies([message for _, message in each_message(rows)])


@hosted
async def test_attempts_are_published_by_partition_then_row_and_only_those(hosts: Hosts) -> None:
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
    assert a.staging.overview() == []


@hosted
async def test_an_epoch_is_published_once_whatever_happens_between(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    attempt = await stage(a, 7, 0, "a", b"0", b"1")
    assert await publish(a, 7, attempt) == (True, 2)
    # The driver has not heard of it, and the batch is cut otherwise the second time.
    again = [await stage(a, 7, 0, "b", b"0"), await stage(a, 7, 1, "b", b"1")]
    a = await hosts.restart(a)
    assert await publish(a, 7, *again) == (False, 2)
    assert await contents(a) == [b"0", b"1"]
    assert a.staging.overview() == []
    following = await stage(a, 8, 0, "a", b"2")
    assert await publish(a, 8, following) == (True, 1)
    assert await publish(a, 7) == (False, 2)
    assert await contents(a) == [b"0", b"1", b"2"]


@hosted
async def test_a_new_beginning_needs_a_name_of_its_own(hosts: Hosts) -> None:
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
    unknown = await stage(a, 0, 1, "a", b"1", queue="nowhere")
    assert await refused(publish(a, 0, fitting, unknown)) == "no_such_queue"
    large = await stage(a, 0, 2, "a", bytes(5000), queue="small")
    assert await refused(publish(a, 0, fitting, large)) == "queue_full"
    assert await contents(a) == []
    await a.create("nowhere")
    assert await publish(a, 0, fitting, unknown) == (True, 2)
    assert await contents(a, "nowhere") == [b"1"]


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
async def test_what_is_published_elsewhere_is_one_sequence(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(guid(1)) as listener:
        name = listener.name("orders")
        rows = [b"%d" % number for number in range(20)]
        attempt = await stage(a, 0, 0, "a", *rows, queue=name, delivery=TRANSACTIONAL)
        assert await publish(a, 0, attempt) == (True, 20)
        remote = await listener.session()
        await until(lambda: len(remote.ordinary) == 20, "all of them")
        assert remote.ordinary == rows
        numbers = [each.message.transaction.sequence_number for each in remote.messages]  # type: ignore[union-attr]
        assert numbers == list(range(1, 21))


@hosted
async def test_express_rows_and_rows_that_are_none_are_refused_when_staged(hosts: Hosts) -> None:
    a = await hosts.start()
    assert await refused(stage(a, 0, 0, "a", b"0", delivery=EXPRESS)) == "express_not_staged"
    assert await refused(stage(a, 0, 0, "a", b"0", priority=9)) == "bad_priority"
    assert await refused(stage(a, 0, 0, "a", b"0", queue="")) == "name_not_understood"
    assert a.staging.overview() == []


@hosted
async def test_stages_count_in_the_quota_and_have_one_of_their_own(hosts: Hosts) -> None:
    a = await hosts.start(quotas={"computer_bytes": 100_000}, pipeline={"staged_bytes_max": 70_000})
    await a.create("orders")
    await stage(a, 0, 0, "a", bytes(50_000))
    assert await refused(stage(a, 0, 1, "a", bytes(50_000))) == "stages_full"
    assert await refused(a.send("orders", bytes(60_000))) == "computer_full"
    await a.check()
    a = await hosts.restart(
        a, quotas={"computer_bytes": 100_000}, pipeline={"staged_bytes_max": 70_000}
    )
    assert await refused(a.send("orders", bytes(60_000))) == "computer_full"
    assert (await a.staging.discard("etl", 0, None, "", 0))["rows"] == 1
    await a.send("orders", bytes(60_000))


@hosted
async def test_a_piece_that_comes_again_takes_the_place_of_the_one_before(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await stage(a, 0, 0, "a", b"0", b"1")
    attempt = await stage(a, 0, 0, "a", b"0", b"1")
    assert attempt.rows == 2
    await a.check()
    assert await publish(a, 0, attempt) == (True, 2)


@hosted
async def test_old_stages_go_by_age_but_no_batch_is_torn(hosts: Hosts) -> None:
    a = await hosts.start(pipeline={"stage_age_s": 100.0})
    await a.create("orders")
    await stage(a, 0, 0, "a", b"left", query="dead")
    long_ago = await stage(a, 0, 0, "a", b"0")
    a.world.ahead_s += 90
    just_now = await stage(a, 0, 1, "a", b"1")
    a.world.ahead_s += 90
    await a.staging.forget_old()
    assert {each["query"] for each in a.staging.overview()} == {"etl"}
    assert await publish(a, 0, long_ago, just_now) == (True, 2)


@hosted
async def test_a_batch_of_too_many_rows_is_refused_with_a_word(hosts: Hosts) -> None:
    a = await hosts.start(pipeline={"published_rows_max": 3})
    await a.create("orders")
    attempt = await stage(a, 0, 0, "a", *[b"x"] * 4)
    assert await refused(publish(a, 0, attempt)) == "publication_too_large"


@hosted
async def test_a_long_batch_gets_its_numbers_without_a_gap_or_a_double(hosts: Hosts) -> None:
    """More than one block of message numbers has."""
    a = await hosts.start()
    await a.create("orders")
    await a.message_numbers.ensure(400_000)
    left = a.message_numbers.left
    assert left >= 400_000
    numbers = [a.message_numbers.next() for _ in range(300_000)]
    assert numbers == sorted(set(numbers))
