"""Checks of signed and encrypted messages."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from protocol import MessageClass, UserMessage, build_user_message, parse_user_message
from protocol.security_data import ProviderInfo, build_provider
from protocol.security_marks import is_authenticated, principals, unmarked, was_encrypted
from qmd.message_security.algorithms import Policy
from qmd.message_security.checking import Checked, Checker
from qmd.message_security.key_cache import KeyCache
from qmd.message_security.signatures import signer_of
from tests.unit.message_security.secured import (
    AES128,
    NOW_S,
    SHA1,
    SHA256,
    SHA512,
    SID,
    certificate,
    encrypted,
    key,
    signature,
    signed,
    with_security,
)
from tests.unit.protocol.samples import express_message

BAD_SIGNATURE = MessageClass.NACK_BAD_SIGNATURE
BAD_ENCRYPTION = MessageClass.NACK_BAD_ENCRYPTION
UNSUPPORTED = MessageClass.NACK_UNSUPPORTED_CRYPTO_PROVIDER
POLICY = Policy(frozenset((SHA256, SHA512)), frozenset((0x6610, 0x660F, 0x660E)))
OWN_BITS = 0x0F30  # AS, EB, AU of SecurityHeader.Flags


class Keys:
    """Keys in memory."""

    def __init__(self, private: rsa.RSAPrivateKey | None = None) -> None:
        self.private = private
        self.registered: set[tuple[str, str]] = set()

    def private_key(self) -> rsa.RSAPrivateKey | None:
        return self.private

    def is_registered(self, sender: str, fingerprint: str) -> bool:
        return (sender, fingerprint) in self.registered


def check(
    message: UserMessage,
    *,
    policy: Policy = POLICY,
    registered: str = "",
    private: rsa.RSAPrivateKey | None = None,
    old_signatures: bool = False,
) -> Checked:
    keys = Keys(private or key("receiver"))
    if registered:
        keys.registered.add((registered, signer_of(certificate()).fingerprint))
    checker = Checker(keys, policy, KeyCache(10), old_signatures=old_signatures)
    packet = build_user_message(message)
    return checker.check(parse_user_message(packet), packet, 0.0, NOW_S)


@pytest.mark.parametrize("algorithm", [SHA256, SHA512])
def test_a_valid_signature_authenticates_the_message(algorithm: int) -> None:
    checked = check(signed(algorithm=algorithm))

    assert checked.message_class is None
    assert checked.is_authenticated
    stored = parse_user_message(checked.packet)
    assert stored.security is not None
    assert stored.security.flags.signature_type == 3
    assert principals(stored) == (f"signer:{signer_of(certificate()).fingerprint}",)


def test_a_registered_sender_is_named() -> None:
    checked = check(signed(sid=SID), registered=SID)

    assert checked.is_authenticated
    assert principals(checked.message)[0] == f"sid:{SID}"


def test_a_certificate_of_another_sender_is_refused() -> None:
    assert check(signed(sid=SID)).message_class is BAD_SIGNATURE
    assert check(signed(sid=SID), registered="S-1-5-21-1-2-3-1002").message_class is BAD_SIGNATURE


def test_a_sender_id_without_a_signature_is_a_claim_only() -> None:
    message = signed(sid=SID)
    assert message.security is not None
    header = message.security._replace(signature=b"", certificate=b"")

    checked = check(message._replace(security=header))

    assert checked.message_class is None
    assert not checked.is_authenticated
    assert principals(checked.message) == ()


def test_the_words_of_a_peer_about_its_own_message_are_removed() -> None:
    message = signed()
    assert message.security is not None
    header = message.security._replace(
        flags=message.security.flags.replace(authenticated=1, signature_type=3),
        signature=b"",
        encryption_key=b"key",
    )

    checked = check(message._replace(security=header))

    assert checked.message_class is None
    assert not is_authenticated(checked.message)
    assert not was_encrypted(checked.message)
    assert checked.message == parse_user_message(checked.packet)._replace(
        base=checked.message.base, security=checked.message.security
    )


def test_nothing_left_of_a_security_header_leaves_no_header() -> None:
    message = signed()
    assert message.security is not None
    header = message.security._replace(
        flags=message.security.flags.replace(signature_type=5),
        signature=b"",
        certificate=b"",
        encryption_key=b"key",
    )

    checked = check(message._replace(security=header))

    assert checked.message_class is None
    assert parse_user_message(checked.packet).security is None


SIGNED_FIELDS = {
    "body": lambda m: m._replace(properties=m.properties._replace(body=b"ABD")),
    "label": lambda m: m._replace(properties=m.properties._replace(label=b"x\0\0\0")),
    "correlation": lambda m: m._replace(
        properties=m.properties._replace(correlation_id=bytes(19) + b"\1")
    ),
    "tag": lambda m: m._replace(properties=m.properties._replace(application_tag=1)),
    "class": lambda m: m._replace(properties=m.properties._replace(message_class=0x4000)),
    "body_type": lambda m: m._replace(properties=m.properties._replace(body_type=8)),
    "acknowledgments": lambda m: m._replace(
        properties=m.properties._replace(flags=m.properties.flags.replace(positive_arrival=1))
    ),
    "source": lambda m: m._replace(user=m.user._replace(source_queue_manager=bytes(16))),
    "delivery": lambda m: m._replace(user=m.user._replace(flags=m.user.flags.replace(delivery=1))),
    "journal": lambda m: m._replace(
        user=m.user._replace(flags=m.user.flags.replace(positive_journal=1))
    ),
    "dead_letter": lambda m: m._replace(
        user=m.user._replace(flags=m.user.flags.replace(negative_journal=1))
    ),
    "priority": lambda m: m._replace(base=m.base._replace(flags=m.base.flags.replace(priority=7))),
    "destination": lambda m: m._replace(
        user=m.user._replace(
            destination_queue=m.user.destination_queue._replace(
                name=m.user.destination_queue.name.replace(b"q", b"p")
            )
        )
    ),
    "signature": lambda m: m._replace(
        security=m.security._replace(signature=b"\0" + m.security.signature[1:])
    ),
    "signature_size": lambda m: m._replace(
        security=m.security._replace(signature=m.security.signature[:-1])
    ),
    "certificate": lambda m: m._replace(
        security=m.security._replace(certificate=certificate("another"))
    ),
    "no_certificate": lambda m: m._replace(security=m.security._replace(certificate=b"")),
    "no_x509": lambda m: m._replace(security=m.security._replace(certificate=b"0")),
    "hash": lambda m: m._replace(properties=m.properties._replace(hash_algorithm=SHA256)),
    "unknown_hash": lambda m: m._replace(properties=m.properties._replace(hash_algorithm=7)),
}


@pytest.mark.parametrize("field", SIGNED_FIELDS)
def test_each_changed_field_makes_the_signature_bad(field: str) -> None:
    assert check(signed()).message_class is None

    changed = check(SIGNED_FIELDS[field](signed()))

    assert changed.message_class is BAD_SIGNATURE
    assert not changed.is_authenticated


def test_a_weak_hash_needs_a_setting() -> None:
    weak = signed(algorithm=SHA1)

    assert check(weak).message_class is UNSUPPORTED
    allowed = POLICY._replace(hashes=POLICY.hashes | {SHA1})
    assert check(weak, policy=allowed).is_authenticated


def test_an_expired_certificate_is_refused() -> None:
    message = signed()
    assert message.security is not None
    header = message.security._replace(certificate=certificate("sender", days=1))

    assert check(message._replace(security=header)).message_class is BAD_SIGNATURE


def test_a_provider_that_does_not_sign_with_rsa_is_not_supported() -> None:
    message = signed()
    assert message.security is not None
    header = message.security._replace(
        flags=message.security.flags.replace(default_provider=0),
        provider=build_provider(ProviderInfo(13, "DSS")),
    )

    assert check(message._replace(security=header)).message_class is UNSUPPORTED
    broken = message._replace(security=header._replace(provider=b"x"))
    assert check(broken).message_class is BAD_SIGNATURE


def test_a_signature_of_msmq_1_needs_a_setting() -> None:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    message = signed()
    properties = message.properties
    covered = bytes(24) + properties.body + properties.label
    made = key("sender").sign(covered, padding.PKCS1v15(), hashes.SHA512())[::-1]
    assert message.security is not None
    message = message._replace(security=message.security._replace(signature=made))

    assert check(message).message_class is BAD_SIGNATURE
    checked = check(message, old_signatures=True)
    assert checked.is_authenticated
    assert checked.message.security is not None
    assert checked.message.security.flags.signature_type == 1


@pytest.mark.parametrize("algorithm", [0x6610, AES128])
def test_an_encrypted_body_is_stored_plain(algorithm: int) -> None:
    checked = check(encrypted(algorithm=algorithm))

    assert checked.message_class is None
    assert checked.was_encrypted
    assert not checked.is_authenticated
    stored = parse_user_message(checked.packet)
    assert stored.properties.body == b"ABC"
    assert stored.properties.message_size == stored.properties.allocation_body_size == 3
    assert stored.security is not None
    assert not stored.security.flags.body_encrypted
    assert stored.properties.privacy_level == 5


def test_a_signature_covers_the_plain_body() -> None:
    checked = check(encrypted(signed()))

    assert checked.is_authenticated
    assert checked.was_encrypted
    # A signature over the encrypted body would let others encrypt something else under it.
    message = encrypted(signed())
    assert message.security is not None
    over_cipher = message.security._replace(signature=signature(message))
    assert check(message._replace(security=over_cipher)).message_class is BAD_SIGNATURE


ENCRYPTED_FIELDS = {
    "last_block": lambda m: m._replace(
        properties=m.properties._replace(body=m.properties.body[:-1])
    ),
    "empty": lambda m: m._replace(properties=m.properties._replace(body=b"")),
    "key": lambda m: m._replace(
        security=m.security._replace(
            encryption_key=m.security.encryption_key[:20]
            + bytes(8)
            + m.security.encryption_key[28:]
        )
    ),
    "blob_type": lambda m: m._replace(
        security=m.security._replace(encryption_key=b"\2" + m.security.encryption_key[1:])
    ),
    "no_key": lambda m: m._replace(security=m.security._replace(encryption_key=b"")),
    "short_key": lambda m: m._replace(
        security=m.security._replace(encryption_key=m.security.encryption_key[:-1])
    ),
    "algorithm": lambda m: m._replace(
        properties=m.properties._replace(encryption_algorithm=AES128)
    ),
    "unknown_algorithm": lambda m: m._replace(
        properties=m.properties._replace(encryption_algorithm=1)
    ),
    "old_algorithm": lambda m: m._replace(
        properties=m.properties._replace(encryption_algorithm=0x6801)
    ),
    "level": lambda m: m._replace(properties=m.properties._replace(privacy_level=3)),
    "no_level": lambda m: m._replace(properties=m.properties._replace(privacy_level=0)),
    "unknown_level": lambda m: m._replace(properties=m.properties._replace(privacy_level=4)),
}


@pytest.mark.parametrize("field", ENCRYPTED_FIELDS)
def test_each_changed_field_makes_the_encryption_bad(field: str) -> None:
    message = encrypted()
    if message.security is not None and field == "no_key":
        message = message._replace(security=message.security._replace(provider=b"p"))

    assert check(ENCRYPTED_FIELDS[field](message)).message_class is BAD_ENCRYPTION


def test_another_key_cannot_decrypt() -> None:
    assert check(encrypted(), private=key("sender")).message_class is BAD_ENCRYPTION
    checker = Checker(Keys(None), POLICY, KeyCache(10))
    packet = build_user_message(encrypted())
    checked = checker.check(parse_user_message(packet), packet, 0.0, NOW_S)
    assert checked.message_class is BAD_ENCRYPTION
    assert "qmd key init" in checked.detail


def test_old_ciphers_need_a_setting() -> None:
    message = encrypted()
    old = message._replace(
        properties=message.properties._replace(privacy_level=3, encryption_algorithm=0x6801)
    )

    assert check(old).message_class is UNSUPPORTED


def test_a_known_session_key_is_not_decrypted_again() -> None:
    keys = Keys(key("receiver"))
    cache: KeyCache[bytes] = KeyCache(10)
    checker = Checker(keys, POLICY, cache)
    packet = build_user_message(encrypted())
    message = parse_user_message(packet)

    assert checker.check(message, packet, 0.0, NOW_S).was_encrypted
    assert len(cache) == 1
    assert checker.check(message, packet, 1.0, NOW_S).was_encrypted
    assert len(cache) == 1
    # Another source cannot use the cached key without the private one.
    other = message._replace(user=message.user._replace(source_queue_manager=bytes(16)))
    keys.private = key("sender")
    checked = checker.check(other, packet, 1.0, NOW_S)
    # With a wrong key the padding is right by chance once in some hundred times.
    is_refused = checked.message_class is BAD_ENCRYPTION
    assert is_refused or checked.message.properties.body != express_message().properties.body


def test_a_message_that_needs_no_change_keeps_its_packet() -> None:
    plain = express_message()
    header = signed().security
    assert header is not None
    message = with_security(plain, header._replace(signature=b""))
    packet = build_user_message(message)
    parsed = parse_user_message(packet)

    assert Checker(Keys(), POLICY, KeyCache(1)).check(parsed, packet, 0.0, NOW_S).packet is packet


def test_an_imported_packet_has_no_mark_of_a_signature() -> None:
    checked = check(signed())
    assert checked.is_authenticated

    imported = parse_user_message(unmarked(checked.packet))

    assert not is_authenticated(imported)
    assert imported.security is not None
    assert imported.security.signature == signed().security.signature  # type: ignore[union-attr]
    plain = build_user_message(express_message())
    assert unmarked(plain) is plain
