"""The feed of TLS records: OpenSSL gets few at a time, and those without data are counted."""

from __future__ import annotations

import random

import pytest

from qmd.tls.record_feed import RECORDS_MAX, WITHOUT_DATA_MAX, WITHOUT_DATA_S, RecordFeed


def record(size: int) -> bytes:
    return b"\x17\x03\x03" + size.to_bytes(2) + bytes(size)


def pieces(feed: RecordFeed, data: bytes) -> list[bytes]:
    feed.add(memoryview(data))
    found = []
    while piece := bytes(feed.take()):
        found.append(piece)
    feed.keep()
    return found


@pytest.mark.parametrize("seed", range(20))
def test_all_bytes_pass_once_and_in_order_however_they_come(seed: int) -> None:
    choice = random.Random(seed)
    data = b"".join(record(choice.choice([0, 1, 22, 500, 16_401])) for _ in range(200))
    feed, passed, start = RecordFeed(), b"", 0

    while start < len(data):
        size = choice.choice([1, 3, 5, 27, 4096, 65_536])
        passed += b"".join(pieces(feed, data[start : start + size]))
        start += size

    assert passed == data


def test_openssl_gets_few_records_at_a_time() -> None:
    found = pieces(RecordFeed(), record(22) * 100)

    assert [len(each) // len(record(22)) for each in found] == [RECORDS_MAX] * 3 + [4]


def test_records_with_data_are_not_counted() -> None:
    feed = RecordFeed()

    for _ in range(10 * WITHOUT_DATA_MAX):
        pieces(feed, record(100))
        feed.had_data()
        assert not feed.has_too_many(0.0)


def test_records_without_data_are_limited_in_a_minute() -> None:
    feed = RecordFeed()

    def is_too_much(records: int, now: float) -> bool:
        pieces(feed, record(22) * records)
        return feed.has_too_many(now)

    assert not is_too_much(WITHOUT_DATA_MAX, 1.0)
    assert not is_too_much(WITHOUT_DATA_MAX, 2 + WITHOUT_DATA_S)
    assert is_too_much(1, 3 + WITHOUT_DATA_S)


def test_a_part_of_a_record_is_not_counted() -> None:
    feed = RecordFeed()
    pieces(feed, record(1000)[:500])

    assert not feed.has_too_many(0.0)

    pieces(feed, record(1000)[500:])
    feed.had_data()
    assert not feed.has_too_many(0.0)
