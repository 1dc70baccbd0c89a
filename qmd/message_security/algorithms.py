"""Algorithms of signatures and encryption, and the policy that allows them.  [MS-MQMQ] 2.2.19.3"""

from __future__ import annotations

from typing import NamedTuple

from protocol.message_class import MessageClass

HASHES = {
    "md2": 0x8001,
    "md4": 0x8002,
    "md5": 0x8003,
    "sha1": 0x8004,
    "sha256": 0x800C,
    "sha512": 0x800E,
}
CIPHERS = {
    "rc2": 0x6602,
    "rc4": 0x6801,
    "aes128": 0x660E,
    "aes192": 0x660F,
    "aes256": 0x6610,
}
#: Hashes and ciphers that `cryptography` has, and that a policy may allow.
HASHES_AVAILABLE = ("md5", "sha1", "sha256", "sha512")
CIPHERS_AVAILABLE = ("rc2", "rc4", "aes128", "aes192", "aes256")
RC2, RC4 = CIPHERS["rc2"], CIPHERS["rc4"]
AES_KEY_BYTES = {CIPHERS["aes128"]: 16, CIPHERS["aes192"]: 24, CIPHERS["aes256"]: 32}

# MessagePropertiesHeader.PrivacyLevel.
PRIVACY_NONE, PRIVACY_BASE, PRIVACY_ENHANCED, PRIVACY_ADVANCED = 0, 1, 3, 5
_OLD = frozenset((RC2, RC4))
#: The ciphers that each privacy level has.
CIPHERS_OF_LEVEL = {
    PRIVACY_BASE: _OLD,
    PRIVACY_ENHANCED: _OLD,
    PRIVACY_ADVANCED: frozenset(AES_KEY_BYTES),
}


class Policy(NamedTuple):
    """The hashes and ciphers that this queue manager accepts, by their values in packets."""

    hashes: frozenset[int]
    ciphers: frozenset[int]


class Unacceptable(Exception):
    """A message that its queue must refuse: the class of the refusal, and more of the reason."""

    def __init__(self, message_class: MessageClass, detail: str) -> None:
        super().__init__(message_class, detail)
        self.message_class = message_class
        self.detail = detail


class NotCheckable(Exception):
    """A message about which nothing can be decided now: files of this host are missing or old."""


def hash_name(value: int) -> str:
    """Return the name of a hash algorithm, or its number in hexadecimal."""
    return next((name for name, each in HASHES.items() if each == value), f"0x{value:04x}")


def cipher_name(value: int) -> str:
    """Return the name of an encryption algorithm, or its number in hexadecimal."""
    return next((name for name, each in CIPHERS.items() if each == value), f"0x{value:04x}")
