"""Outgoing sequences, by example.  Their invariants are tested in tests/simulation."""

import pytest

from qmd.core.sequence import (
    NUMBER_MAX,
    RELINK_DELAY_S,
    RESEND_INTERVALS_S,
    ImpossibleOrderAck,
    OutgoingSequence,
    SequenceExhausted,
)

ID = 0x65000000_00000001  # the time stamp of an installation, and ordinal 1


def outgoing(appended=0, *, transmitted=0, now=0.0, **settings):
    """Return a sequence with `appended` numbers, of which `transmitted` were sent."""
    sequence = OutgoingSequence(ID, **settings)
    for _ in range(appended):
        sequence.append()
    for number in range(1, transmitted + 1):
        sequence.transmit(number, now)
    return sequence


class TestPreviousNumbers:
    def test_on_first_transmission_the_previous_number_is_the_number_before(self):
        sequence = outgoing(3)

        assert [sequence.transmit(number, 0.0) for number in (1, 2, 3)] == [0, 1, 2]

    def test_after_all_acknowledgments_the_previous_number_is_the_acknowledged_number(self):
        sequence = outgoing(3, transmitted=2)

        sequence.acknowledge(ID, 2, now=0.1)

        assert sequence.transmit(3, 0.2) == 2

    def test_a_pass_begins_with_0_so_that_a_receiver_without_state_can_go_on(self):
        sequence = outgoing(5, transmitted=3)
        sequence.acknowledge(ID, 2, now=0.1)

        sequence.restart()

        assert [sequence.transmit(number, 1.0) for number in (3, 4, 5)] == [0, 3, 4]

    def test_a_pass_begins_with_0_even_if_the_message_was_never_sent(self):
        sequence = outgoing(3, transmitted=2)
        sequence.acknowledge(ID, 2, now=0.1)

        sequence.restart()

        assert sequence.transmit(3, 1.0) == 0

    def test_a_retransmission_without_predecessors_has_the_previous_number_0(self):
        sequence = outgoing(3, transmitted=3)
        sequence.restart()
        sequence.transmit(1, 1.0)
        sequence.acknowledge(ID, 1, now=1.1)

        assert sequence.transmit(2, 1.2) == 0

    def test_the_previous_number_skips_a_message_that_expired_before_it_was_sent(self):
        sequence = outgoing(4, transmitted=2)

        assert not sequence.remove(3)

        assert sequence.transmit(4, 0.1) == 2

    def test_the_previous_number_skips_a_message_that_expired_in_flight(self):
        sequence = outgoing(4, transmitted=3)

        assert not sequence.remove(3), "nothing was linked to it yet"

        assert sequence.transmit(4, 0.1) == 2

    def test_in_a_new_pass_the_previous_number_skips_all_removed_messages(self):
        sequence = outgoing(5, transmitted=4)
        assert sequence.remove(2), "3 was sent as its successor"
        sequence.remove(1)

        sequence.restart()

        assert [sequence.transmit(number, 1.0) for number in (3, 4, 5)] == [0, 3, 4]

    def test_after_a_start_only_acknowledged_numbers_are_used_as_previous_numbers(self):
        """4 expired and was never accepted, so naming it would block the receiver for ever."""
        sequence = OutgoingSequence(ID, base=0, next_number=6, outstanding=1)
        sequence.append()
        assert sequence.transmit(5, 0.0) == 0
        sequence.remove(5)

        assert sequence.transmit(6, 0.1) == 0


class TestNumbering:
    def test_numbers_count_from_1_and_positions_are_unbounded(self):
        sequence = OutgoingSequence(ID, base=70)

        assert [sequence.append() for _ in range(3)] == [1, 2, 3]
        assert (sequence.sequence_id, sequence.base, sequence.next_number) == (ID, 70, 4)
        assert sequence.outstanding == 3

    def test_a_new_sequence_begins_when_everything_was_released(self):
        sequence = outgoing(3, transmitted=3)

        assert sequence.acknowledge(ID, 3, now=0.1) == 3
        sequence.released(3)

        assert sequence.append() == 1
        assert (sequence.sequence_id, sequence.base) == (ID + 1, 3)
        assert sequence.transmit(1, 0.2) == 0

    def test_the_sequence_goes_on_until_the_release_is_durable(self):
        sequence = outgoing(3, transmitted=3)
        sequence.acknowledge(ID, 3, now=0.1)

        assert sequence.append() == 4
        assert sequence.sequence_id == ID
        assert sequence.transmit(4, 0.2) == 3

    def test_a_new_sequence_begins_when_everything_was_removed(self):
        sequence = outgoing(2, transmitted=1)

        sequence.remove(1)
        sequence.remove(2)

        assert (sequence.append(), sequence.sequence_id, sequence.base) == (1, ID + 1, 2)

    def test_an_unused_sequence_keeps_its_id(self):
        sequence = OutgoingSequence(ID)

        assert (sequence.append(), sequence.sequence_id) == (1, ID)

    def test_an_ordinal_that_overflows_carries_into_the_time_stamp(self):
        sequence = OutgoingSequence(0x65000000_FFFFFFFF, next_number=2)

        sequence.append()

        assert sequence.sequence_id == 0x65000001_00000000

    def test_a_stored_sequence_continues_at_its_position(self):
        sequence = OutgoingSequence(ID, base=10, next_number=6, outstanding=2)

        assert (sequence.append(), sequence.outstanding) == (6, 3)
        assert [sequence.transmit(number, 0.0) for number in (4, 5, 6)] == [0, 4, 5]

    def test_an_empty_stored_sequence_is_followed_by_a_new_one(self):
        sequence = OutgoingSequence(ID, base=10, next_number=6, outstanding=0)

        assert (sequence.append(), sequence.sequence_id, sequence.base) == (1, ID + 1, 15)

    def test_numbers_do_not_wrap(self):
        sequence = OutgoingSequence(ID, next_number=NUMBER_MAX, outstanding=2)

        assert sequence.append() == NUMBER_MAX
        with pytest.raises(SequenceExhausted, match="3 messages must be acknowledged"):
            sequence.append()

        sequence.acknowledge(ID, NUMBER_MAX - 1, now=0.0)
        sequence.released(3)
        assert (sequence.append(), sequence.sequence_id) == (1, ID + 1)
        assert sequence.base == NUMBER_MAX


class TestAcknowledgments:
    def test_an_order_ack_releases_everything_up_to_its_number(self):
        sequence = outgoing(5, transmitted=4)

        assert sequence.acknowledge(ID, 3, now=8.0) == 3

        assert list(sequence.in_flight) == [4]
        assert (sequence.acknowledged, sequence.outstanding) == (3, 5)
        sequence.released(3)
        assert sequence.outstanding == 2

    def test_a_repeated_order_ack_releases_nothing(self):
        sequence = outgoing(3, transmitted=3)
        sequence.acknowledge(ID, 2, now=1.0)

        assert sequence.acknowledge(ID, 2, now=2.0) is None
        assert sequence.acknowledge(ID, 1, now=3.0) is None
        assert sequence.acknowledge(ID, 0, now=4.0) is None

        assert (sequence.ack_count, sequence.last_ack_at) == (4, 4.0)
        assert sequence.last_ack_count == 2, "for the one that counts"

    @pytest.mark.parametrize("other", [ID - 1, ID + 1, 0])
    def test_an_order_ack_of_another_sequence_is_ignored(self, other):
        sequence = outgoing(3, transmitted=3)

        assert sequence.acknowledge(other, 3, now=1.0) is None

        assert (sequence.acknowledged, sequence.ack_count) == (0, 0)

    def test_an_order_ack_for_unsent_messages_is_an_error_of_the_peer(self):
        sequence = outgoing(3, transmitted=2)

        with pytest.raises(ImpossibleOrderAck, match="only 2 were sent"):
            sequence.acknowledge(ID, 3, now=1.0)

        assert (sequence.acknowledged, list(sequence.in_flight)) == (0, [1, 2])

    def test_messages_sent_in_an_older_sequence_do_not_count_for_the_new_one(self):
        sequence = outgoing(3, transmitted=3)
        sequence.acknowledge(ID, 3, now=0.1)
        sequence.released(3)
        sequence.append()

        with pytest.raises(ImpossibleOrderAck, match="only 0 were sent"):
            sequence.acknowledge(ID + 1, 1, now=0.2)

    def test_a_late_order_ack_is_accepted_in_a_new_pass(self):
        sequence = outgoing(5, transmitted=5)
        sequence.restart()
        sequence.transmit(1, 1.0)

        assert sequence.acknowledge(ID, 4, now=1.1) == 4

        assert sequence.transmit(5, 1.2) == 0

    def test_after_a_start_an_order_ack_is_accepted_for_all_stored_messages(self):
        sequence = OutgoingSequence(ID, next_number=6, outstanding=3)

        assert sequence.acknowledge(ID, 4, now=0.0) == 4
        with pytest.raises(ImpossibleOrderAck):
            sequence.acknowledge(ID, 6, now=0.0)


class TestFirstOrderAckAfterAStart:
    """The database may be a restored backup until an order ack shows the peer's position."""

    def test_new_messages_wait_for_it(self):
        sequence = OutgoingSequence(ID, next_number=3, outstanding=1)
        sequence.append()

        assert sequence.may_transmit(2)
        sequence.transmit(2, 0.0)

        assert not sequence.may_transmit(3)

    def test_a_new_message_goes_alone_where_nothing_else_could_bring_it(self):
        sequence = OutgoingSequence(ID, next_number=5, outstanding=2, unproven_from=3)

        assert sequence.may_transmit(3)
        sequence.transmit(3, 0.0)

        assert not sequence.may_transmit(4)

    def test_new_messages_wait_until_the_disk_holds_that_it_came(self):
        """A kill before that would make a backup of the database: it sent more than it holds."""
        sequence = OutgoingSequence(ID, next_number=2, outstanding=1)
        sequence.append()
        sequence.transmit(1, 0.0)
        sequence.acknowledge(ID, 1, now=0.1)

        assert not sequence.may_transmit(2)
        sequence.is_unproven = False
        assert sequence.may_transmit(2)

    def test_it_may_be_for_the_message_that_an_earlier_run_sent_alone(self):
        sequence = OutgoingSequence(ID, next_number=5, outstanding=2, unproven_from=3)

        assert sequence.may_answer_earlier_run(ID, 3)
        assert not sequence.may_answer_earlier_run(ID, 2)
        assert not sequence.may_answer_earlier_run(ID + 1, 3)
        sequence.transmit(3, 0.0)

        assert not sequence.may_answer_earlier_run(ID, 4)
        with pytest.raises(ImpossibleOrderAck):
            sequence.acknowledge(ID, 4, now=0.1)

    def test_no_number_is_new_in_a_sequence_that_ended_before_the_start(self):
        sequence = OutgoingSequence(ID, next_number=5, outstanding=0, unproven_from=3)

        assert sequence.was_transmitted(4)


class TestResendTimer:
    def test_the_resend_intervals_are_the_published_intervals(self):
        assert RESEND_INTERVALS_S == (30, 30, 30, 300, 300, 300, 1800, 1800, 1800, 21600)

    def test_the_timer_starts_at_the_first_transmission(self):
        sequence = outgoing(2)
        assert sequence.next_timer() is None

        sequence.transmit(1, 5.0)
        sequence.transmit(2, 6.0)

        assert sequence.next_timer() == 35.0
        assert not sequence.handle_timer(34.9)
        assert sequence.handle_timer(35.0)
        assert sequence.next_timer() is None

    def test_each_pass_without_progress_lengthens_the_wait_up_to_the_last_interval(self):
        sequence = outgoing(1, resend_intervals_s=(1.0, 2.0, 4.0))
        waits, now = [], 0.0

        for _ in range(5):
            sequence.transmit(1, now)
            due = sequence.next_timer()
            waits.append(due - now)
            now = due
            assert sequence.handle_timer(now)
            sequence.restart()

        assert waits == [1.0, 2.0, 4.0, 4.0, 4.0]
        assert sequence.resend_count == 5

    def test_progress_restarts_the_wait_without_shortening_it(self):
        sequence = outgoing(3, resend_intervals_s=(1.0, 2.0))
        sequence.transmit(1, 0.0)
        sequence.handle_timer(1.0)
        sequence.restart()
        for number in (1, 2, 3):
            sequence.transmit(number, 1.0)

        sequence.acknowledge(ID, 1, now=2.5)

        assert sequence.next_timer() == 4.5

    def test_an_order_ack_without_progress_does_not_postpone_the_timer(self):
        sequence = outgoing(2, transmitted=2)
        sequence.acknowledge(ID, 1, now=1.0)

        sequence.acknowledge(ID, 1, now=20.0)

        assert sequence.next_timer() == 31.0

    def test_the_timer_stops_and_is_reset_when_all_messages_are_acknowledged(self):
        sequence = outgoing(2, resend_intervals_s=(1.0, 2.0))
        sequence.transmit(1, 0.0)
        sequence.handle_timer(1.0)
        sequence.restart()
        sequence.transmit(1, 1.0)
        sequence.transmit(2, 1.0)

        sequence.acknowledge(ID, 2, now=1.5)
        assert sequence.next_timer() is None
        sequence.released(2)

        sequence.transmit(sequence.append(), 10.0)
        assert sequence.next_timer() == 11.0
        assert sequence.resend_count == 0

    def test_the_timer_does_not_run_for_messages_before_their_first_transmission(self):
        sequence = outgoing(3, transmitted=1)

        sequence.acknowledge(ID, 1, now=1.0)

        assert sequence.next_timer() is None

    def test_the_timer_stops_with_the_session(self):
        sequence = outgoing(3, transmitted=3)

        sequence.restart()

        assert sequence.next_timer() is None

    def test_the_timer_stops_when_the_last_message_in_flight_is_removed(self):
        sequence = outgoing(3, transmitted=1)

        sequence.remove(1)

        assert sequence.next_timer() is None

    def test_after_a_refusal_the_timer_fires_sooner_and_is_not_postponed(self):
        sequence = outgoing(5, transmitted=5)
        assert sequence.remove(2)

        sequence.hasten(now=2.0)
        sequence.hasten(now=2.5)
        sequence.acknowledge(ID, 1, now=2.7)

        assert sequence.next_timer() == 2.0 + RELINK_DELAY_S
        assert not sequence.handle_timer(now=2.9)
        assert sequence.handle_timer(now=3.0)

    def test_a_pass_after_a_refusal_does_not_lengthen_later_waits(self):
        sequence = outgoing(3, transmitted=3, resend_intervals_s=(10.0, 20.0))
        sequence.remove(1)
        sequence.hasten(now=2.0)
        assert sequence.handle_timer(now=3.0)
        sequence.restart()
        assert sequence.resend_count == 0

        sequence.transmit(2, 3.0)

        assert sequence.next_timer() == 13.0

    def test_a_refusal_never_postpones_the_timer(self):
        sequence = outgoing(3, transmitted=3, resend_intervals_s=(0.5, 0.7))
        sequence.remove(1)

        sequence.hasten(now=0.2)

        assert sequence.next_timer() == 0.5
        assert sequence.handle_timer(now=0.5)
        assert (sequence.resend_count, sequence.next_timer()) == (1, None)

    def test_a_refusal_has_no_effect_when_no_message_is_in_flight(self):
        sequence = outgoing(2, transmitted=2)
        sequence.remove(1)
        sequence.hasten(now=2.0)

        sequence.remove(2)
        assert sequence.next_timer() is None
        assert not sequence.handle_timer(now=9.0)

        sequence.hasten(now=10.0)
        sequence.transmit(sequence.append(), 11.0)
        assert sequence.next_timer() == 41.0
