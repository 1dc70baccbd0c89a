"""The outcome of a message (acknowledgments, dead letter, journal): the table, row by row."""

from itertools import product

import pytest

from protocol import (
    INFINITE,
    SIGNATURE,
    VERSION,
    BaseFlags,
    BaseHeader,
    DirectQueueName,
    MessageClass,
    MessagePropertiesHeader,
    PropertyFlags,
    TransactionFlags,
    TransactionHeader,
    UserFlags,
    UserHeader,
    UserMessage,
    build_user_message,
    wide_text,
)
from qmd.core.disposition import (
    INSECURE,
    NOTHING,
    Consequences,
    EndsAtDestination,
    consequences,
    reason_text,
)

NAME = wide_text("OS:hostb\\private$\\orders")
ARRIVAL_NACKS = sorted(each for each in MessageClass if each & 0xC000 == 0x8000)
RECEPTION_NACKS = sorted(each for each in MessageClass if each & 0xC000 == 0xC000)


def message(*, transactional=False, acks="", jn=False, jp=False, fa=False, message_class=0):
    """Return a message; `acks` names the bits of the specification: PA PR NA NR."""
    wanted = PropertyFlags.of(
        positive_arrival="PA" in acks,
        positive_receive="PR" in acks,
        negative_arrival="NA" in acks,
        negative_receive="NR" in acks,
    )
    flags = UserFlags.of(
        delivery=1,
        negative_journal=jn,
        positive_journal=jp,
        destination_type=7,
        transaction_header=transactional,
        properties_header=1,
    )
    user = UserHeader(
        b"s" * 16,
        bytes(16),
        INFINITE,
        0,
        7,
        flags,
        DirectQueueName(len(NAME), NAME),
        None,
        None,
        None,
    )
    transaction = None
    if transactional:
        transaction = TransactionHeader(TransactionFlags.of(final_ack=fa), 1, 1, 0, None)
    properties = MessagePropertiesHeader(
        wanted, 0, message_class, bytes(20), 0, 0, 0, 0, 0, 0, 0, 0, b"", b"", b""
    )
    base = BaseHeader(VERSION, 0, BaseFlags(0), SIGNATURE, 0, INFINITE)
    return UserMessage(base, user, transaction, None, properties, None, None, None, None)


def at_destination(message, message_class, *, insecure_nacks=False, is_local=False):
    return consequences(
        message,
        message_class,
        at_source=False,
        insecure_nacks=insecure_nacks,
        is_local=is_local,
    )


def at_source(message, message_class, *, by_final_ack=False, insecure_nacks=False):
    return consequences(
        message,
        message_class,
        at_source=True,
        insecure_nacks=insecure_nacks,
        by_final_ack=by_final_ack,
    )


@pytest.mark.parametrize("own_id", [b"s" * 16, b"o" * 16], ids=["local", "elsewhere"])
def test_messages_that_end_together_have_the_outcome_of_each_alone(own_id):
    asked = ["", "PA", "PR", "NA", "NR", "PA PR", "NA NR", "PA PR NA NR"]
    yes = False, True
    every = [
        message(
            transactional=transactional, acks=acks, jn=jn, jp=jp, fa=fa, message_class=message_class
        )
        for transactional, acks, jn, jp, fa, message_class in product(
            yes, asked, yes, yes, yes, (0, MessageClass.ACK_RECEIVE)
        )
    ]
    packets = [build_user_message(each) for each in every]
    is_local = own_id == every[0].user.source_queue_manager
    for message_class in MessageClass:
        ends = EndsAtDestination(message_class, own_id=own_id, insecure_nacks=False)
        found = [ends.of(packet) for packet in packets]
        alone = [at_destination(each, message_class, is_local=is_local) for each in every]
        assert found == alone
        assert [ends.of(packet) for packet in packets] == alone


class TestAtTheDestination:
    def test_a_message_without_requests_has_no_outcome(self):
        for message_class in (MessageClass.ACK_REACH_QUEUE, MessageClass.ACK_RECEIVE):
            assert at_destination(message(), message_class) == NOTHING

    @pytest.mark.parametrize(
        ("bit", "message_classes"),
        [
            ("PA", [MessageClass.ACK_REACH_QUEUE]),
            ("PR", [MessageClass.ACK_RECEIVE]),
            ("NA", ARRIVAL_NACKS),
            ("NR", RECEPTION_NACKS),
        ],
    )
    def test_each_acknowledgment_is_sent_for_its_own_bit_only(self, bit, message_classes):
        others = "PA PR NA NR".replace(bit, "")

        for each in message_classes:
            asked = at_destination(message(acks=bit), each, insecure_nacks=True)
            not_asked = at_destination(message(acks=others), each, insecure_nacks=True)
            assert (asked.acknowledgment, not_asked.acknowledgment) == (each, None)

    def test_the_five_insecure_classes_are_acknowledged_only_if_enabled(self):
        assert sorted(INSECURE) == [0x8000, 0x8004, 0x8006, 0x8007, 0x800B]
        asking = message(acks="NA", transactional=True)

        for each in ARRIVAL_NACKS:
            silent = at_destination(asking, each, insecure_nacks=False)
            assert silent.acknowledgment == (None if each in INSECURE else each)
            assert at_destination(asking, each, insecure_nacks=True).acknowledgment == each

    @pytest.mark.parametrize("insecure_nacks", [True, False])
    def test_a_refused_transactional_message_always_gets_its_final_ack(self, insecure_nacks):
        refused = message(transactional=True)

        for each in ARRIVAL_NACKS:
            final_ack = at_destination(refused, each, insecure_nacks=insecure_nacks).final_ack
            expired = each == MessageClass.NACK_REACH_QUEUE_TIMEOUT
            assert final_ack == (None if expired else each)

    @pytest.mark.parametrize("asking", [{"jn": True}, {"jp": True}, {"fa": True}])
    @pytest.mark.parametrize("message_class", [MessageClass.ACK_RECEIVE, *RECEPTION_NACKS])
    def test_after_arrival_a_final_ack_is_sent_to_sources_that_request_it(
        self, asking, message_class
    ):
        asked = at_destination(message(transactional=True, **asking), message_class)
        not_asked = at_destination(message(transactional=True), message_class)

        assert (asked.final_ack, not_asked.final_ack) == (message_class, None)

    def test_non_transactional_messages_get_no_final_ack(self):
        plain = message(jn=True, jp=True)

        for each in MessageClass:
            assert at_destination(plain, each).final_ack is None

    def test_storing_is_acknowledged_by_order_acks_and_not_by_final_acks(self):
        stored = message(transactional=True, jn=True, jp=True, fa=True)

        assert at_destination(stored, MessageClass.ACK_REACH_QUEUE).final_ack is None

    @pytest.mark.parametrize("jn", [True, False])
    @pytest.mark.parametrize(
        ("transactional", "message_class", "queue"),
        [
            (True, MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE, "deadxact"),
            (True, MessageClass.NACK_BAD_DESTINATION_QUEUE, "deadxact"),
            (False, MessageClass.NACK_BAD_DESTINATION_QUEUE, "deadletter"),
            (False, MessageClass.NACK_NOT_TRANSACTIONAL_MESSAGE, "deadletter"),
        ],
    )
    def test_a_message_that_no_queue_accepts_becomes_a_local_dead_letter(
        self, transactional, message_class, queue, jn
    ):
        refused = message(transactional=transactional, jn=jn)

        assert at_destination(refused, message_class).dead_letter == queue

    @pytest.mark.parametrize(
        ("transactional", "jn", "queue"),
        [
            (False, True, "deadletter"),
            (False, False, None),
            (True, True, None),  # its source still has it
            (True, False, None),
        ],
    )
    def test_a_message_refused_by_a_full_queue_is_kept_if_no_source_has_it(
        self, transactional, jn, queue
    ):
        refused = message(transactional=transactional, jn=jn)

        kept = at_destination(refused, MessageClass.NACK_QUEUE_EXCEED_QUOTA)

        assert kept.dead_letter == queue

    @pytest.mark.parametrize("transactional", [True, False])
    def test_other_messages_are_not_kept_or_journaled_at_the_destination(self, transactional):
        kept = {
            *(0x8000, 0x8002, 0x8003, 0x8005, 0x8006, 0x8007, 0x8009, 0x800A, 0x800B),
            *(0xC002, 0xC004),
        }
        asking = message(transactional=transactional, jn=True, jp=True)

        for each in MessageClass:
            found = at_destination(asking, each)
            assert not found.journal
            assert found.dead_letter is None or each in kept

    @pytest.mark.parametrize(
        ("message_class", "kept"),
        [
            (MessageClass.NACK_RECEIVE_TIMEOUT, True),
            (MessageClass.NACK_RECEIVE_REJECTED, True),
            (MessageClass.NACK_QUEUE_PURGED, False),  # an operator purged it on purpose
            (MessageClass.NACK_QUEUE_DELETED, False),
        ],
    )
    @pytest.mark.parametrize("is_local", [True, False])
    def test_a_refused_non_transactional_message_is_kept_since_its_source_has_released_it(
        self, message_class, kept, is_local
    ):
        found = at_destination(message(jn=True), message_class, is_local=is_local)

        assert found == Consequences(dead_letter="deadletter" if kept else None)
        assert at_destination(message(), message_class, is_local=is_local) == NOTHING

    @pytest.mark.parametrize("message_class", RECEPTION_NACKS)
    def test_the_source_of_a_transactional_message_keeps_its_own_copy(self, message_class):
        found = at_destination(message(transactional=True, jn=True), message_class)

        assert found == Consequences(final_ack=message_class)

    def test_a_rejected_message_is_kept_if_its_source_keeps_no_copy(self):
        rejected = MessageClass.NACK_RECEIVE_REJECTED

        silent = at_destination(message(transactional=True), rejected)
        journaling = at_destination(message(transactional=True, jp=True), rejected)

        assert silent == Consequences(dead_letter="deadxact")
        assert at_destination(message(transactional=True), rejected, is_local=True) == silent
        assert journaling == Consequences(dead_letter="deadxact", final_ack=rejected)

    @pytest.mark.parametrize("message_class", RECEPTION_NACKS)
    def test_a_destination_that_is_the_source_keeps_a_transactional_message_itself(
        self, message_class
    ):
        asking = message(transactional=True, jn=True, jp=True, fa=True)

        assert at_destination(asking, message_class, is_local=True) == Consequences(
            dead_letter="deadxact"
        )

    def test_a_destination_that_is_the_source_journals_the_receipt(self):
        asking = message(transactional=True, jn=True, jp=True, fa=True)
        received = MessageClass.ACK_RECEIVE

        assert at_destination(asking, received, is_local=True) == Consequences(journal=True)
        assert at_destination(message(jp=True), received, is_local=True) == NOTHING


class TestAtTheSource:
    @pytest.mark.parametrize(
        ("transactional", "queue"), [(True, "deadxact"), (False, "deadletter")]
    )
    def test_an_expired_message_is_kept_on_request(self, transactional, queue):
        expired = MessageClass.NACK_REACH_QUEUE_TIMEOUT

        kept = at_source(message(transactional=transactional, jn=True), expired)
        dropped = at_source(message(transactional=transactional), expired)

        assert kept == Consequences(dead_letter=queue)
        assert dropped == NOTHING

    @pytest.mark.parametrize("message_class", [*ARRIVAL_NACKS, *RECEPTION_NACKS])
    def test_a_negative_final_ack_makes_a_dead_letter_and_no_second_acknowledgment(
        self, message_class
    ):
        refused = message(transactional=True, jn=True, jp=True, acks="PA PR NA NR")

        found = at_source(refused, message_class, by_final_ack=True, insecure_nacks=True)

        assert found == Consequences(dead_letter="deadxact")

    def test_the_source_acknowledges_the_ends_that_it_detects_itself(self):
        asking = message(acks="NA")

        for each in (MessageClass.NACK_REACH_QUEUE_TIMEOUT, MessageClass.NACK_DELETED):
            assert at_source(asking, each) == Consequences(acknowledgment=each)

    def test_the_destination_acknowledges_the_ends_in_its_queue(self):
        asking = message(transactional=True, acks="PA PR NA NR")

        for each in RECEPTION_NACKS:
            assert at_source(asking, each) == NOTHING

    def test_the_source_never_acknowledges_success(self):
        asking = message(acks="PA PR NA NR")

        for each in (MessageClass.ACK_REACH_QUEUE, MessageClass.ACK_RECEIVE):
            assert at_source(asking, each) == NOTHING

    @pytest.mark.parametrize(
        ("transactional", "message_class", "journal"),
        [
            (False, MessageClass.ACK_REACH_QUEUE, True),
            (True, MessageClass.ACK_REACH_QUEUE, False),  # a negative final ack may still return it
            (True, MessageClass.ACK_RECEIVE, True),
        ],
    )
    def test_a_delivered_message_is_journaled_on_request(
        self, transactional, message_class, journal
    ):
        asking = message(transactional=transactional, jp=True)
        silent = message(transactional=transactional, jn=True)

        assert at_source(asking, message_class) == Consequences(journal=journal)
        assert at_source(silent, message_class) == NOTHING

    def test_the_source_sends_no_final_ack(self):
        asking = message(transactional=True, jn=True, jp=True, fa=True)

        for each in MessageClass:
            assert at_source(asking, each).final_ack is None


class TestMessagesOfQueueManagers:
    @pytest.mark.parametrize("own", sorted(set(MessageClass) - {MessageClass.NORMAL}))
    def test_messages_of_queue_managers_are_neither_kept_nor_acknowledged(self, own):
        one = message(jn=True, jp=True, acks="PA PR NA NR", message_class=own)

        for each in MessageClass:
            assert at_destination(one, each, insecure_nacks=True) == NOTHING
            assert at_source(one, each, insecure_nacks=True) == NOTHING

    def test_a_refused_transactional_message_of_a_queue_manager_still_leaves_its_sender(self):
        one = message(transactional=True, jn=True, message_class=MessageClass.ACK_RECEIVE)
        refusal = MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE

        assert at_destination(one, refusal) == Consequences(final_ack=refusal)
        assert at_destination(one, MessageClass.ACK_RECEIVE) == NOTHING
        assert at_source(one, refusal, by_final_ack=True) == NOTHING

    def test_messages_with_classes_of_applications_are_like_normal_messages(self):
        one = message(acks="PA", message_class=0x0123)

        found = at_destination(one, MessageClass.ACK_REACH_QUEUE)

        assert found == Consequences(acknowledgment=MessageClass.ACK_REACH_QUEUE)


class TestReasons:
    @pytest.mark.parametrize("message_class", [*ARRIVAL_NACKS, *RECEPTION_NACKS])
    def test_each_reason_names_the_queue_and_a_remedy(self, message_class):
        text = reason_text(message_class, queue="hostb\\private$\\orders")

        what, _, remedy = text.partition(". ")
        assert "hostb\\private$\\orders" in what
        assert remedy.endswith(".")
        assert "{" not in text

    def test_a_detail_follows_the_reason(self):
        text = reason_text(
            MessageClass.NACK_QUEUE_EXCEED_QUOTA, queue="orders", detail="quota 500 kB"
        )

        assert text.startswith("The queue orders was full (quota 500 kB). Receive messages")

    @pytest.mark.parametrize("message_class", [*MessageClass, 0x1234, 0xC0FF])
    def test_every_class_has_a_reason(self, message_class):
        text = reason_text(message_class, queue="orders {0}")

        assert text[0].isupper() or text.startswith("orders")
        assert text.endswith(".")
        assert "  " not in text

    def test_an_undefined_class_is_named_by_its_number(self):
        assert reason_text(0x1234, queue="q") == "The message to q ended with class 0x1234."
