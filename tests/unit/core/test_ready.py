"""The window on a queue, by example.  Its invariants are tested in tests/properties."""

import pytest

from qmd.core.ready_window import LEVEL_SHIFT_BITS, ReadyWindow

HIGH, NORMAL, LAST = 0, 4 << LEVEL_SHIFT_BITS, 8 << LEVEL_SHIFT_BITS


def window(*keys, entries_max=3, bytes_max=100):
    one = ReadyWindow(entries_max=entries_max, bytes_max=bytes_max)
    for key in keys:
        add(one, key)
    return one


def add(window, key, *, size=1, stored=True):
    window.add(key, f"m{key}", size, stored=stored)


def rows(*keys, size=1):
    return [(key, f"m{key}", size) for key in keys]


def read(window, *keys, complete=True):
    window.begin_refill()
    window.refill(rows(*keys), complete=complete)


def drain(window):
    found = []
    while (entry := window.pop()) is not None:
        assert entry[1] == f"m{entry[0]}"
        found.append(entry[0])
    return found


class TestOrder:
    def test_messages_leave_in_the_order_of_arrival(self):
        assert drain(window(1, 2, 3)) == [1, 2, 3]

    def test_a_higher_level_goes_first(self):
        assert drain(window(LAST | 1, NORMAL | 2, HIGH | 3)) == [HIGH | 3, NORMAL | 2, LAST | 1]

    def test_commits_of_one_priority_may_be_announced_out_of_order(self):
        assert drain(window(2, 3, 1, entries_max=9)) == [1, 2, 3]
        assert drain(window(1, 4, 2, 3, entries_max=9)) == [1, 2, 3, 4]

    def test_express_messages_are_merged_in_order(self):
        one = window(1, 3)
        add(one, 2, stored=False)
        add(one, 4, stored=False)

        assert drain(one) == [1, 2, 3, 4]

    def test_peeking_takes_no_message(self):
        one = window(1)

        assert one.peek() == one.peek() == (1, "m1")
        assert drain(one) == [1]
        assert one.peek() is None
        assert one.pop() is None

    def test_a_returned_message_is_the_first_again(self):
        one = window(1, 2, 3)
        one.pop()
        one.pop()

        one.put_back(2, "m2", 1)
        one.put_back(1, "m1", 1)

        assert drain(one) == [1, 2, 3]

    def test_a_returned_express_message_is_still_express(self):
        one = window(entries_max=1)
        for key in (1, 2, 3):
            add(one, key, stored=False)
        one.pop()

        one.put_back(1, "m1", 1)

        assert (len(one), one.bytes) == (3, 0)
        assert drain(one) == [1, 2, 3]

    def test_ready_messages_can_be_listed(self):
        one = window(1, 3, NORMAL | 4)
        add(one, 2, stored=False)
        add(one, LAST | 5)
        add(one, LAST | 6, stored=False)

        assert one.horizon == LAST | 5
        assert [key for key, _ in one.entries()] == [1, 2, 3, NORMAL | 4]


class TestHorizon:
    def test_without_an_overflow_there_is_no_horizon(self):
        assert window(1, 2, 3).horizon is None

    def test_messages_beyond_the_window_stay_on_disk(self):
        one = window(1, 2, 3, 4, 5)

        assert (one.horizon, len(one)) == (4, 3)
        assert drain(one) == [1, 2, 3]
        assert one.needs_refill

    def test_a_message_that_arrives_at_the_horizon_is_beyond_it(self):
        one = window()
        one.clear_to_disk(0)
        read(one, 1, 2, complete=False)

        add(one, 3)

        assert (one.horizon, drain(one)) == (3, [1, 2])
        read(one, 3)
        assert drain(one) == [3]

    def test_free_room_is_not_used_for_messages_beyond_the_horizon(self):
        one = window(1, 2, 3, 4)
        one.pop()

        add(one, 5)

        assert drain(one) == [2, 3]

    def test_an_urgent_message_displaces_the_last_one(self):
        one = window(NORMAL | 1, NORMAL | 2, NORMAL | 3)

        add(one, HIGH | 4)

        assert one.horizon == NORMAL | 3
        assert drain(one) == [HIGH | 4, NORMAL | 1, NORMAL | 2]

    def test_the_window_is_limited_in_bytes_as_well(self):
        one = window(bytes_max=10)
        add(one, 1, size=6)
        add(one, 2, size=4)

        add(one, 3, size=1)

        assert (one.horizon, one.bytes) == (3, 10)

    def test_a_message_larger_than_the_window_can_be_taken(self):
        one = window(bytes_max=10)

        add(one, 1, size=50)

        assert (one.horizon, drain(one)) == (None, [1])

    def test_any_number_of_express_messages_stays_in_memory(self):
        one = window(entries_max=1)
        for key in range(1, 50):
            add(one, key, stored=False, size=1000)

        assert (len(one), one.horizon) == (49, None)
        assert drain(one) == list(range(1, 50))

    def test_express_messages_wait_for_possible_predecessors_on_disk(self):
        one = window(1, 2, 3, 4)
        add(one, 5, stored=False)

        assert drain(one) == [1, 2, 3]
        assert one.needs_refill
        read(one, 4)
        assert drain(one) == [4, 5]


class TestRefill:
    def test_a_refill_reads_from_the_horizon_on(self):
        one = window(1, 2, 3, 4, 5)
        drain(one)

        assert one.begin_refill() == 4
        one.refill(rows(4, 5), complete=True)

        assert one.horizon is None
        assert drain(one) == [4, 5]

    def test_a_page_moves_the_horizon_after_its_last_row(self):
        one = window()
        one.clear_to_disk(0)

        read(one, 1, 5, complete=False)

        assert one.horizon == 6

    def test_the_rest_of_a_page_that_is_too_long_stays_on_disk(self):
        one = window()
        one.clear_to_disk(0)

        read(one, 1, 2, 3, 4, 5)

        assert one.horizon == 4

    def test_an_empty_page_at_the_end_removes_the_horizon(self):
        one = window(1)
        one.clear_to_disk(0)

        read(one)

        assert (one.horizon, one.needs_refill) == (None, False)

    def test_only_one_refill_is_outstanding(self):
        one = window()
        one.clear_to_disk(0)
        assert one.needs_refill

        one.begin_refill()

        assert not one.needs_refill
        assert not one.wants_refill
        with pytest.raises(AssertionError):
            one.begin_refill()

    def test_a_refill_is_requested_before_the_window_is_empty(self):
        one = window(*range(1, 12), entries_max=8)
        wanted = []
        while one.pop():
            wanted.append(one.wants_refill)

        assert wanted == [False] * 6 + [True, True]

    def test_no_refill_is_requested_while_large_messages_wait(self):
        one = window(entries_max=100, bytes_max=10)
        add(one, 1, size=9)
        add(one, 2, size=9)

        assert (one.horizon, one.wants_refill) == (2, False)

    def test_a_taken_message_is_not_read_again(self):
        one = window(NORMAL | 1, NORMAL | 2, NORMAL | 3)
        one.pop()
        for key in (HIGH | 4, HIGH | 5, HIGH | 6):
            add(one, key)
        assert one.horizon == NORMAL | 2
        drain(one)
        one.leave_on_disk(0)

        read(one, NORMAL | 1, NORMAL | 2, NORMAL | 3)

        assert drain(one) == [NORMAL | 2, NORMAL | 3]

    def test_messages_that_are_returned_to_the_disk_are_read_again(self):
        one = window(NORMAL | 1, NORMAL | 2, NORMAL | 3, NORMAL | 4)
        one.pop()
        one.hold_runs([(NORMAL | 2, NORMAL | 3)])

        one.leave_on_disk(NORMAL | 2, returned=[(NORMAL | 2, NORMAL | 3)])

        assert one.horizon == NORMAL | 2
        read(one, NORMAL | 1, NORMAL | 2, NORMAL | 3, NORMAL | 4)
        assert drain(one) == [NORMAL | 2, NORMAL | 3, NORMAL | 4]

    def test_a_message_that_left_during_a_read_does_not_return(self):
        one = window()
        one.clear_to_disk(0)
        one.begin_refill()
        one.hold(1)
        one.remove(1)

        one.refill(rows(1, 2), complete=True)

        assert drain(one) == [2]

    def test_a_message_that_is_read_before_its_announcement_comes_once(self):
        one = window()
        one.clear_to_disk(0)
        read(one, 1, 2, 3)
        one.pop()

        for key in (1, 2, 3):
            add(one, key)

        assert drain(one) == [2, 3]

    @pytest.mark.parametrize("row", [(), (9,)])
    def test_a_message_that_arrives_during_a_read_is_ready_at_once(self, row):
        """The rows that were read may have it or not; the window need not read again."""
        one = window()
        one.clear_to_disk(0)
        one.begin_refill()
        add(one, 9)

        one.refill(rows(1, *row), complete=True)

        assert one.horizon is None
        assert drain(one) == [1, 9]

    def test_a_message_that_arrives_and_leaves_during_a_read_does_not_return(self):
        one = window()
        one.clear_to_disk(0)
        one.begin_refill()
        add(one, 9)
        one.hold(9)
        one.remove(9)

        one.refill([], complete=True)

        assert drain(one) == []

    def test_the_number_of_messages_that_arrive_during_a_read_is_limited(self):
        one = window(entries_max=2)
        one.clear_to_disk(0)
        one.begin_refill()
        for key in (5, 6, 7, 8):
            add(one, key)

        one.refill([], complete=True)

        assert (one.horizon, drain(one)) == (7, [5, 6])

    def test_rows_beyond_a_lowered_horizon_are_discarded(self):
        one = window(NORMAL | 1, NORMAL | 2, NORMAL | 3, NORMAL | 4)
        assert one.begin_refill() == NORMAL | 4
        add(one, HIGH | 5)

        one.refill(rows(NORMAL | 4), complete=True)

        assert one.horizon == NORMAL | 3
        assert drain(one) == [HIGH | 5, NORMAL | 1, NORMAL | 2]

    def test_an_incomplete_page_must_have_rows(self):
        one = window()
        one.clear_to_disk(0)
        one.begin_refill()

        with pytest.raises(AssertionError):
            one.refill([], complete=False)


class TestTaking:
    def test_a_message_in_the_middle_can_be_taken(self):
        one = window(1, 2, 3)
        add(one, 4, stored=False)

        assert one.take(2) == "m2"
        assert one.take(4) == "m4"
        assert one.take(2) is None
        assert one.take(9) is None

        assert drain(one) == [1, 3]
        one.put_back(4, "m4", 1)
        assert drain(one) == [4]

    def test_a_message_that_is_only_on_disk_can_be_taken(self):
        one = window(1, 2, 3, 4)

        assert one.hold(4)
        assert not one.hold(4)
        assert one.hold(1)

        assert drain(one) == [2, 3]
        read(one, 4)
        assert drain(one) == []

    def test_a_message_returned_beyond_the_horizon_is_read_from_the_disk(self):
        one = window(1, 2, 3, 4)
        one.hold(4)

        one.put_back(4, "m4", 1)

        assert drain(one) == [1, 2, 3]
        read(one, 4)
        assert drain(one) == [4]

    @pytest.mark.parametrize("stored", [True, False])
    def test_a_message_that_was_not_taken_cannot_be_put_back(self, stored):
        one = window()
        add(one, 1, stored=stored)
        one.pop()
        one.put_back(1, "m1", 1)
        assert drain(one) == [1]
        one.remove(1)

        one.put_back(1, "m1", 1)

        assert drain(one) == []

    def test_a_removed_message_is_forgotten_in_every_state(self):
        one = window(1, 2, 3, 4)
        add(one, 5, stored=False)
        one.pop()

        for key in (1, 2, 4, 5):
            one.remove(key)

        assert drain(one) == [3]
        assert one.bytes == 0
        one.put_back(1, "m1", 1)
        assert len(one) == 0, "nobody puts back what is gone"


class TestNewPass:
    def test_everything_stored_is_read_again_and_express_stays(self):
        one = window(1, 2, 3)
        add(one, 4, stored=False)
        one.pop()

        one.clear_to_disk(0)

        assert (one.horizon, len(one)) == (0, 1)
        read(one, 1, 2, 3)
        assert drain(one) == [1, 2, 3, 4]

    def test_messages_before_the_given_key_stay_unchanged(self):
        one = window(NORMAL | 1, NORMAL | 2, LAST | 1, LAST | 2, entries_max=9)
        one.pop()
        one.take(LAST | 1)

        one.clear_to_disk(LAST)

        assert drain(one) == [NORMAL | 2]
        assert one.begin_refill() == LAST
        one.refill(rows(LAST | 1, LAST | 2), complete=True)
        assert drain(one) == [LAST | 1, LAST | 2]

    def test_a_new_pass_never_raises_the_horizon(self):
        one = window(1, 2, 3, 4)

        one.clear_to_disk(9)

        assert one.horizon == 4
        assert drain(one) == [1, 2, 3]

    def test_rows_requested_before_a_new_pass_are_discarded(self):
        one = window(1, 2, 3, 4)
        one.begin_refill()
        one.clear_to_disk(2)

        one.refill(rows(4), complete=True)

        assert one.horizon == 2


class TestComingBack:
    """A message that was moved away, and is moved back during a read from the disk."""

    def test_the_message_is_ready_although_the_read_came_too_early_for_it(self):
        one = window()
        one.clear_to_disk(0)
        one.begin_refill()
        one.remove(2)
        add(one, 2)

        one.refill(rows(1, 3), complete=True)

        assert drain(one) == [1, 2, 3]

    def test_the_returned_message_replaces_the_row_that_was_read(self):
        one = window()
        one.clear_to_disk(0)
        one.begin_refill()
        one.remove(2)
        one.add(2, "moved twice", 1, stored=True)

        one.refill(rows(1, 2), complete=True)

        assert [one.pop(), one.pop(), one.pop()] == [(1, "m1"), (2, "moved twice"), None]


class TestManyAtOnce:
    def test_messages_that_a_refill_has_read_and_a_reader_has_taken_do_not_come_again(self):
        one = window(entries_max=10)
        one.clear_to_disk(0)
        read(one, 1, 2, 3, 4, 5)  # committed, and not added yet
        assert drain(one) == [1, 2, 3, 4, 5]

        one.add_all(rows(1, 2, 3, 4, 5))

        assert one.pop() is None

    def test_messages_that_a_refill_has_read_are_not_there_twice(self):
        one = window(entries_max=10)
        one.clear_to_disk(0)
        read(one, 1, 2, 3, 4, 5)

        one.add_all(rows(3, 4, 5, 6, 7))

        assert drain(one) == [1, 2, 3, 4, 5, 6, 7]

    def test_the_window_keeps_to_its_limits(self):
        one = window(1, 2, entries_max=4)
        one.add_all(rows(3, 4, 5, 6))
        assert (len(one), one.bytes, one.horizon) == (4, 4, 5)
        assert drain(one) == [1, 2, 3, 4]
