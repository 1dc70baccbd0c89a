"""The key of a queue manager: signatures that only its holder can make."""

from qmd.runtime.identity_key import (
    PUBLIC_KEY_BYTES,
    SIGNATURE_BYTES,
    IdentityKey,
    fingerprint,
    verify,
)

KEY, OTHER = IdentityKey(bytes(range(32))), IdentityKey(bytes(32))


def test_a_signature_is_valid_for_its_key_and_its_message_only() -> None:
    signature = KEY.sign(b"a message")

    assert (len(KEY.public), len(signature)) == (PUBLIC_KEY_BYTES, SIGNATURE_BYTES)
    assert verify(KEY.public, signature, b"a message")
    assert not verify(KEY.public, signature, b"another message")
    assert not verify(OTHER.public, signature, b"a message")
    assert not verify(KEY.public, bytes(64), b"a message")
    assert not verify(KEY.public, signature[:-1], b"a message")
    assert not verify(KEY.public[:-1], signature, b"a message")


def test_a_known_vector() -> None:
    """RFC 8032, section 7.1, test 1."""
    key = IdentityKey(
        bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    )

    assert key.public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert key.sign(b"").hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555"
        "fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    )


def test_fingerprints_differ_and_representations_hide_the_seed() -> None:
    assert fingerprint(KEY.public) != fingerprint(OTHER.public)
    assert len(fingerprint(KEY.public)) == 32
    assert bytes(range(32)).hex() not in repr(KEY)
    assert "x01" not in repr(KEY)
