"""The files of the keyring."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from qmd.message_security.keyring import (
    BadKey,
    Keyring,
    load_private_key,
    load_receiver_key,
    private_pem,
    published,
)
from tests.unit.message_security.secured import SID, certificate, key

GUID = "01020304-0506-0708-090a-0b0c0d0e0f10"


def test_the_key_of_a_host_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    ring = Keyring(tmp_path)
    assert ring.private_key() is None

    assert ring.make_private_key(1024)

    first = ring.private_key()
    assert first is not None
    assert not ring.make_private_key(1024)
    assert ring.private_key() is first
    path = ring.folder / "exchange.pem"
    assert path.stat().st_mode & 0o777 == 0o600
    assert ring.folder.stat().st_mode & 0o777 == 0o700
    assert "PRIVATE" not in repr(ring)


def test_a_receiver_is_found_by_guid_and_by_host(tmp_path: Path) -> None:
    ring = Keyring(tmp_path)
    data = published(key("receiver").public_key())

    assert ring.add_receiver(GUID.upper(), data) == ring.add_receiver(GUID, data)
    assert ring.add_receiver("Host.Example", data) == "host.example"

    for name in (GUID, "HOST.example"):
        found = ring.receiver(name)
        assert found is not None
        assert found.public_numbers() == key("receiver").public_key().public_numbers()
    assert ring.receiver("other") is None
    assert [each.kind for each in ring.entries()] == ["receiver", "receiver"]
    assert ring.remove("host.example")
    assert ring.receiver("host.example") is None
    assert not ring.remove("host.example")


@pytest.mark.parametrize("name", ["../exchange", "", "a/b", ".", "..", "a..b", "x" * 300, "a\0b"])
def test_a_name_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    ring = Keyring(tmp_path)

    with pytest.raises(BadKey):
        ring.add_receiver(name, published(key().public_key()))
    with pytest.raises(BadKey):
        ring.add_sender(name, certificate())
    assert ring.receiver(name) is None


def test_a_certificate_is_registered_until_it_is_removed(tmp_path: Path) -> None:
    ring = Keyring(tmp_path)

    fingerprint = ring.add_sender(SID, certificate())

    assert ring.is_registered(SID, fingerprint)
    assert not ring.is_registered(SID, "0" * 64)
    assert not ring.is_registered("S-1-5-18", fingerprint)
    assert not ring.is_registered(SID, "../" + fingerprint)
    assert [(each.kind, each.name) for each in ring.entries()] == [("sender", SID)]
    assert ring.remove(SID, fingerprint)
    assert not ring.is_registered(SID, fingerprint)


def test_a_changed_file_counts_at_once(tmp_path: Path) -> None:
    ring = Keyring(tmp_path)
    ring.add_receiver("host", published(key("receiver").public_key()))
    assert ring.receiver("host") is not None

    path = ring.folder / "receivers" / "host.keys"
    path.write_bytes(b"broken")
    os.utime(path, (1, 1))

    assert ring.receiver("host") is None


def test_keys_of_other_kinds_are_refused() -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    pem = other.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = other.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for data in (pem, b"", b"junk", b"-----BEGIN PRIVATE KEY-----\n"):
        with pytest.raises(BadKey):
            load_private_key(data)
    for data in (public, b"", b"junk"):
        with pytest.raises(BadKey):
            load_receiver_key(data)
    assert load_private_key(private_pem(key())).key_size == 2048
