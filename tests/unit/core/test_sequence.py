"""Incoming sequences, by example.  Their invariants are tested in tests/simulation."""

import pytest

from qmd.core.sequence import IncomingSequence, OrderAckSettings, Position

ID = 0x65000000_00000001  # the time stamp of an installation, and ordinal 1
BY_TIMER = OrderAckSettings(at_once=False)
AT_ONCE = OrderAckSettings(at_once=True)


def incoming(number=0, sequence_id=ID, settings=BY_TIMER):
    return IncomingSequence(sequence_id if number else 0, number, settings=settings)


class TestAcceptance:
    @pytest.mark.parametrize(
        ("number", "previous", "accepted"),
        [
            (4, 3, True),
            (5, 3, True),  # 4 expired at the sender
            (5, 2, True),  # so did 3, after it was sent
            (4, 0, True),  # the sender has begun a new pass
            (3, 2, False),  # a duplicate
            (3, 0, False),
            (1, 0, False),
            (5, 4, False),  # 4 is missing
            (9, 7, False),
        ],
    )
    def test_within_a_sequence_every_message_that_follows_is_accepted(
        self, number, previous, accepted
    ):
        assert incoming(3).offer(ID, number, previous, now=0.0) is accepted

    @pytest.mark.parametrize(
        ("sequence_id", "number", "previous", "accepted"),
        [
            (ID + 1, 1, 0, True),
            (ID + 1, 7, 0, True),  # 1 to 6 expired, or were accepted before our state was lost
            (ID + (1 << 32), 1, 0, True),  # the sender was installed again
            (ID + 1, 2, 1, False),
            (ID + 1, 4, 3, False),
            (ID + 1, 0, 0, False),
            (ID - 1, 1, 0, False),
            (ID - 1, 4, 3, False),
        ],
    )
    def test_a_greater_sequence_is_accepted_from_its_beginning(
        self, sequence_id, number, previous, accepted
    ):
        assert incoming(3).offer(sequence_id, number, previous, now=0.0) is accepted

    def test_ids_are_compared_as_unsigned_64_bit_numbers(self):
        sequence = incoming(3, sequence_id=0x7FFFFFFF_FFFFFFFF)

        assert sequence.offer(0x80000000_00000000, 1, 0, now=0.0)

    def test_acceptance_can_be_checked_without_accepting(self):
        sequence = incoming(3)

        assert sequence.is_next(ID, 4, 3)
        assert not sequence.is_next(ID, 3, 2)

        assert (sequence.accepted_number, sequence.rejects, sequence.last_seen) == (3, 0, None)
        assert sequence.next_timer() is None

    def test_a_receiver_without_state_accepts_the_first_message_of_a_pass(self):
        sequence = incoming()

        assert not sequence.offer(ID, 41, 40, now=0.0)
        assert sequence.offer(ID, 40, 0, now=0.0)
        assert sequence.offer(ID, 41, 40, now=0.0)

    def test_an_accepted_message_counts_before_it_is_durable(self):
        sequence = incoming()

        assert sequence.offer(ID, 1, 0, now=0.0)
        assert sequence.offer(ID, 2, 1, now=0.0)
        assert not sequence.offer(ID, 2, 1, now=0.0)
        assert sequence.durable == Position(0, 0)

    def test_rejected_messages_are_counted_until_one_is_accepted(self):
        sequence = incoming(3)

        sequence.offer(ID, 3, 2, now=1.0)
        sequence.offer(ID, 5, 4, now=2.0)

        assert (sequence.accepted_id, sequence.accepted_number) == sequence.durable == (ID, 3)
        assert (sequence.rejects, sequence.last_seen) == (2, 2.0)
        sequence.offer(ID, 4, 3, now=3.0)
        assert (sequence.rejects, sequence.last_seen) == (0, 3.0)


class TestOrderAcks:
    def test_a_message_is_acknowledged_only_once_it_is_durable(self):
        sequence = incoming()

        sequence.offer(ID, 1, 0, now=0.0)
        assert sequence.next_timer() is None, "nothing is on disk yet"

        assert not sequence.mark_durable(ID, 1, now=0.1)
        assert sequence.next_timer() == pytest.approx(0.6)
        assert not sequence.handle_timer(now=0.59)
        assert sequence.handle_timer(now=0.61)
        assert sequence.durable == Position(ID, 1)
        assert sequence.next_timer() is None, "one order ack is enough"
        assert not sequence.handle_timer(now=9.0)

    def test_an_order_ack_can_leave_with_its_commit(self):
        sequence = incoming(settings=AT_ONCE)

        sequence.offer(ID, 1, 0, now=0.0)
        assert sequence.mark_durable(ID, 1, now=0.1)

        assert sequence.next_timer() is None

    def test_an_immediate_order_ack_replaces_a_waiting_one(self):
        sequence = incoming(3, settings=AT_ONCE)
        sequence.offer(ID, 3, 2, now=0.0)
        assert sequence.next_timer() == 0.5

        sequence.offer(ID, 4, 3, now=0.1)
        sequence.mark_durable(ID, 4, now=0.2)

        assert sequence.next_timer() is None

    @pytest.mark.parametrize("settings", [BY_TIMER, AT_ONCE])
    def test_a_duplicate_is_rejected_and_acknowledged_again(self, settings):
        sequence = incoming(5, settings=settings)

        assert not sequence.offer(ID, 5, 4, now=7.0)

        assert sequence.next_timer() == 7.5
        assert sequence.handle_timer(now=7.5)
        assert sequence.durable == Position(ID, 5)

    def test_number_0_is_never_acknowledged(self):
        sequence = incoming()

        sequence.offer(ID, 5, 4, now=0.0)

        assert sequence.next_timer() is None
        assert not sequence.handle_timer(now=100.0)

    def test_one_order_ack_acknowledges_a_burst(self):
        sequence = incoming(1)
        assert not sequence.offer(ID, 1, 0, now=0.0)
        assert sequence.handle_timer(now=0.5)

        for step in range(5):
            sequence.offer(ID, 1, 0, now=1.0 + 0.3 * step)

        assert sequence.next_timer() == pytest.approx(2.7), "half a second after the last one"

    def test_a_stream_that_never_pauses_is_acknowledged_after_ten_seconds(self):
        sequence = incoming(1)
        sequence.offer(ID, 1, 0, now=0.0)
        sequence.handle_timer(now=0.5)

        acknowledged_at = []
        for tenth in range(6, 300):
            now = tenth / 10
            sequence.offer(ID, 1, 0, now)
            if sequence.handle_timer(now):
                acknowledged_at.append(now)

        assert acknowledged_at == pytest.approx([10.9, 21.4], abs=0.15)

    def test_the_durable_position_may_lag_but_is_never_ahead(self):
        sequence = incoming()
        for number in (1, 2, 3):
            sequence.offer(ID, number, number - 1, now=0.0)

        sequence.mark_durable(ID, 2, now=0.1)

        assert sequence.durable == Position(ID, 2)
        with pytest.raises(AssertionError):
            sequence.mark_durable(ID, 4, now=0.2)
        with pytest.raises(AssertionError):
            sequence.mark_durable(ID, 2, now=0.2)

    def test_the_sequence_that_is_acknowledged_is_the_durable_one(self):
        sequence = incoming(5)

        sequence.offer(ID + 1, 1, 0, now=0.0)

        assert sequence.durable == Position(ID, 5)
        sequence.mark_durable(ID + 1, 1, now=0.1)
        assert sequence.durable == Position(ID + 1, 1)
