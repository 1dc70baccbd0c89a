import pytest

from storage.tables.keys import (
    ARRIVAL_MAX,
    LEVEL_MAX,
    LOOKUP_MASK,
    QUEUE_ID_MAX,
    key_parts,
    level_range,
    lookup_id_of,
    message_key,
    queue_range,
)


@pytest.mark.parametrize(
    "parts", [(0, 0, 0), (1, 7, 1), (16, 8, 12345), (QUEUE_ID_MAX, LEVEL_MAX, ARRIVAL_MAX)]
)
def test_a_key_is_split_into_its_parts(parts: tuple[int, int, int]) -> None:
    assert key_parts(message_key(*parts)) == parts


def test_the_largest_key_is_a_positive_integer_of_sqlite() -> None:
    assert message_key(QUEUE_ID_MAX, LEVEL_MAX, ARRIVAL_MAX) == 2**63 - 1


def test_a_lookup_id_is_the_key_without_the_queue() -> None:
    assert lookup_id_of(message_key(9, 3, 77)) == message_key(0, 3, 77)
    assert LOOKUP_MASK == 2**48 - 1


def test_keys_sort_by_level_and_then_by_arrival() -> None:
    received = [message_key(16, level, a) for level, a in [(0, 9), (4, 1), (4, 2), (7, 0)]]

    assert received == sorted(received)


def test_the_ranges_of_neighbouring_queues_touch_and_do_not_overlap() -> None:
    _, last = queue_range(16)
    first, _ = queue_range(17)

    assert first == last + 1
    assert queue_range(16, from_lookup=5)[0] == message_key(16, 0, 5)


def test_the_ranges_of_neighbouring_levels_touch_and_do_not_overlap() -> None:
    _, last = level_range(16, 7)
    first, _ = level_range(16, 8)

    assert first == last + 1
    assert level_range(16, LEVEL_MAX)[1] == queue_range(16)[1]


@pytest.mark.parametrize(
    "parts", [(QUEUE_ID_MAX + 1, 0, 0), (0, LEVEL_MAX + 1, 0), (0, 0, ARRIVAL_MAX + 1), (0, 0, -1)]
)
def test_parts_out_of_range_are_a_bug(parts: tuple[int, int, int]) -> None:
    with pytest.raises(AssertionError):
        message_key(*parts)
