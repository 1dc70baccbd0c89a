"""Keys and certificates inside packets and directory attributes, as bytes."""

from __future__ import annotations

import pytest

from protocol.errors import MalformedPacket
from protocol.security_data import (
    AES_PROVIDER,
    BASE_PROVIDER,
    ProviderInfo,
    PublishedKey,
    RsaPublicKey,
    SessionKey,
    UserCertificate,
    build_provider,
    build_public_key,
    build_published_keys,
    build_session_key,
    build_user_certificates,
    parse_provider,
    parse_public_key,
    parse_published_keys,
    parse_session_key,
    parse_user_certificates,
)

# Made by OpenSSL 3.0: openssl rsa -pubout -outform MSBLOB, and openssl rsa -modulus.
BLOB = bytes.fromhex(
    "0602000000a40000525341310004000001000100ffe5ebc228d62a62274a8c1ad73077f1d4ca405724b64cbca91df7"
    "3cbb63030a7fcf426627a451e69debcb082cbc890a3371c771eef5893a257dd1881e728271534a7749b9348f9503ab"
    "7116b56cda9aed9dfbd2c9731bb457d4a87532de1c5e2e6cd4c835ce35b62df5d75c2cf1c6b6bd978a36fe8e090643"
    "7832597e7556c1"
)
MODULUS = int(
    "C156757E5932784306098EFE368A97BDB6C6F12C5CD7F52DB635CE35C8D46C2E5E1CDE3275A8D457B41B73C9D2FB9D"
    "ED9ADA6CB51671AB03958F34B949774A537182721E88D17D253A89F5EE71C771330A89BC2C08CBEB9DE651A4276642"
    "CF7F0A0363BB3CF71DA9BC4CB6245740CAD4F17730D71A8C4A27622AD628C2EBE5FF",
    16,
)
KEY = RsaPublicKey(MODULUS, 65537, 1024)


def refusal(parse: object, data: bytes) -> tuple[str, int]:
    with pytest.raises(MalformedPacket) as refused:
        parse(data)  # type: ignore[operator]
    return refused.value.field, refused.value.offset


def test_a_public_key_has_the_bytes_that_openssl_writes() -> None:
    assert build_public_key(KEY) == BLOB
    assert parse_public_key(BLOB) == KEY


def test_each_wrong_field_of_a_public_key_is_refused() -> None:
    for at, field in ((0, "blob_type"), (1, "version"), (4, "key_algorithm"), (8, "magic")):
        assert refusal(parse_public_key, BLOB[:at] + b"\xff" + BLOB[at + 1 :]) == (field, at)
    assert refusal(parse_public_key, BLOB + b"\0")[0] == "modulus"
    assert refusal(parse_public_key, BLOB[:-1])[0] == "modulus"
    huge = BLOB[:12] + (1 << 20).to_bytes(4, "little") + bytes(1 << 17)
    assert refusal(parse_public_key, huge)[0] == "bit_length"


def test_a_session_key_is_reversed_after_its_header() -> None:
    item = build_session_key(SessionKey(0x6610, bytes(range(64))))

    assert item[:12] == bytes.fromhex("01020000 10660000 00A40000")
    assert item[12:] == bytes(range(64))[::-1]
    assert parse_session_key(item) == SessionKey(0x6610, bytes(range(64)))


@pytest.mark.parametrize("at", [0, 1, 8, 9, 10, 11])
def test_each_wrong_constant_of_a_session_key_is_refused(at: int) -> None:
    item = bytearray(build_session_key(SessionKey(0x6610, bytes(64))))
    item[at] ^= 0x40

    refusal(parse_session_key, bytes(item))


def test_a_session_key_without_a_key_is_refused() -> None:
    refusal(parse_session_key, build_session_key(SessionKey(0x6610, b"x"))[:12])
    refusal(parse_session_key, b"")


def test_published_keys_have_their_sizes_and_providers() -> None:
    keys = (
        PublishedKey(ProviderInfo(1, BASE_PROVIDER), KEY),
        PublishedKey(ProviderInfo(0x18, AES_PROVIDER), KEY),
    )
    data = build_published_keys(keys)

    assert int.from_bytes(data[:4], "little") == len(data)
    assert data[4:8] == b"\2\0\0\0"
    # MQDSPUBLICKEY: size of the key, size of the name with its null, type, name, key
    assert data[8:12] == len(BLOB).to_bytes(4, "little")
    assert data[12:16] == (2 * len(BASE_PROVIDER) + 2).to_bytes(4, "little")
    assert data[16:20] == b"\1\0\0\0"
    assert data[20 + 2 * len(BASE_PROVIDER) + 2 :].startswith(BLOB)
    assert parse_published_keys(data) == keys
    assert refusal(parse_published_keys, b"\0\0\0\0" + data[4:])[0] == "size"
    refusal(parse_published_keys, data[:-1])
    refusal(parse_published_keys, data + b"\0")


def test_user_certificates_are_read_and_built() -> None:
    one = UserCertificate(bytes(16), bytes(range(16)), 3, b"abc")
    data = build_user_certificates((one, one))

    assert data[:4] == b"\2\0\0\0"
    assert parse_user_certificates(data) == (one, one)
    refusal(parse_user_certificates, data + b"x")
    refusal(parse_user_certificates, b"\xff\xff\xff\xff")


def test_a_provider_is_its_type_and_its_name() -> None:
    item = build_provider(ProviderInfo(0x18, "ab"))

    assert item == bytes.fromhex("18000000 6100 6200 0000")
    assert parse_provider(item) == ProviderInfo(0x18, "ab")
    for wrong in (b"", item[:-1], item[:-2], item[:4]):
        refusal(parse_provider, wrong)
