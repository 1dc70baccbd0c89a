"""Values of new messages that no packet can carry."""

from __future__ import annotations

from protocol import (
    MessageClass,
)
from protocol.security_id import SENDER_ID_BYTES_MAX
from qmd.control_protocol.messages import AUTOMATIC, NewMessage
from qmd.errors import Refusal

LABEL_CHARACTERS_MAX = 249  # [MS-MQMQ] 2.2.19.3: 0xFA characters with the null
PRIORITY_MAX = 7

_CLASS_BITS = 0xE1FF  # bits that applications may use, [MS-MQMQ] 2.2.18.1.6
_ITEM_BYTES_MAX = 0xFFFF  # of a SecurityHeader


def check(new: NewMessage) -> None:
    """Raise Refusal for a value that no packet can carry."""
    if len(new.label) > LABEL_CHARACTERS_MAX or (
        not new.label.isascii() and len(new.label.encode("utf-16-le")) > 2 * LABEL_CHARACTERS_MAX
    ):
        raise Refusal(
            "label_too_long",
            f"the label has {len(new.label.encode('utf-16-le')) // 2} characters (UTF-16);"
            f" {LABEL_CHARACTERS_MAX} are allowed",
            "Shorten the label, or put the text into the body.",
        )
    if "\0" in new.label:
        raise Refusal("label_has_null", "the label contains a null character", "Leave it out.")
    if new.correlation_id and len(new.correlation_id) != 20:
        raise Refusal(
            "bad_correlation_id",
            f"the correlation id has {len(new.correlation_id)} bytes; it must have 20",
            "Give a message id, or 20 bytes in hexadecimal.",
        )
    if not 0 <= new.priority <= PRIORITY_MAX:
        raise Refusal(
            "bad_priority",
            f"priority {new.priority} is not between 0 and {PRIORITY_MAX}",
            "7 is the highest, 3 the default.",
        )
    if not 0 <= new.delivery <= AUTOMATIC:
        raise Refusal("bad_delivery", f"there is no delivery {new.delivery}", "It is 0 to 3.")
    for value, what, unit in (
        (new.time_to_reach_queue_s, "time-to-reach-queue", " s"),
        (new.time_to_be_received_s, "time-to-be-received", " s"),
        (new.body_type, "body type", ""),
        (new.application_tag, "application tag", ""),
    ):
        if value is not None and not 0 <= value <= 0xFFFFFFFF:
            raise Refusal(
                "number_out_of_range",
                f"a {what} of {value}{unit} does not fit: it must be between 0 and"
                f" {0xFFFFFFFF}{unit}",
                "For no limit, give `never`." if unit else "",
            )
    if not 0 <= new.acknowledge <= 0x0F:
        raise Refusal(
            "bad_acknowledge",
            f"{new.acknowledge} is not a combination of the four acknowledgments",
        )
    if bool(new.acknowledge) != bool(new.admin_queue):
        raise Refusal(
            "acknowledge_needs_queue",
            "acknowledgments are requested, and no administration queue is named for them"
            if new.acknowledge
            else "an administration queue is named, and no acknowledgments are requested",
            "Give both or neither.",
        )
    _check_rare(new)


def _check_rare(new: NewMessage) -> None:
    if len(new.sender_id) > SENDER_ID_BYTES_MAX:
        raise Refusal(
            "bad_sender_id",
            f"the sender id has {len(new.sender_id)} bytes; {SENDER_ID_BYTES_MAX} are allowed",
            "Give a security identifier such as S-1-5-21-1-2-1001.",
        )
    if has_security(new) or new.hash_algorithm or new.privacy_level or new.encryption_algorithm:
        _check_security(new)
    if new.connector_type and len(new.connector_type) != 16:
        raise Refusal(
            "bad_connector_type",
            f"the connector type has {len(new.connector_type)} bytes; it must have 16",
            "Give a GUID.",
        )
    if new.message_class:
        if not new.connector_type:
            raise Refusal(
                "class_needs_connector",
                "only a message of a connector can have a class of its own",
                "Name the connector type as well, or omit the class.",
            )
        # [MS-MQMQ] 2.2.18.1.6: the class of order acks is reserved for queue managers.
        if not 0 <= new.message_class <= 0xFFFF or new.message_class & ~_CLASS_BITS:
            raise Refusal(
                "bad_class",
                f"the class 0x{new.message_class:x} has bits outside of 0x{_CLASS_BITS:04x}",
                "Choose another number.",
            )
        if new.message_class == MessageClass.ORDER_ACK:
            raise Refusal(
                "bad_class",
                "the class 0x00ff belongs to queue managers",
                "Choose another number.",
            )


def _check_security(new: NewMessage) -> None:
    if max(map(len, (new.signature, new.certificate, new.encryption_key))) > _ITEM_BYTES_MAX:
        raise Refusal(
            "bad_signature_size",
            f"a signature, certificate or key has more than {_ITEM_BYTES_MAX} bytes",
        )
    for value in (new.hash_algorithm, new.privacy_level, new.encryption_algorithm):
        if not 0 <= value <= 0xFFFFFFFF:
            raise Refusal("number_out_of_range", f"an algorithm of {value} does not fit")
    if bool(new.signature) != bool(new.certificate):
        raise Refusal(
            "signature_needs_certificate",
            "a signature and the certificate of its signer require each other",
            "Give both or neither.",
        )


def has_security(new: NewMessage) -> bool:
    """Return whether the packet of a message has a SecurityHeader."""
    return bool(new.sender_id or new.signature or new.encryption_key or new.certificate)
