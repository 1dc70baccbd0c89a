"""Positions of the headers of many packets, and which packets can be read by them.

The headers of a user message follow each other, each at a multiple of four bytes (MS-MQMQ 2.2.20),
so numpy reads one field of all packets in one step: the packets are one array of 32-bit words, and
`at` holds the position of the next header in each packet.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.source.decode.rows import Rows, Whole
from protocol import SIGNATURE, VERSION

Words = npt.NDArray[Any]  # unsigned 32-bit integers
Mask = npt.NDArray[np.bool_]

GUID_WORDS = 4
SECURITY_WORDS = 4
DIRECT = 7
_USER_FLAGS = 15  # all in words from the start of the packet
_NAMES = 16
_TRANSACTION_WORDS = 5
_PROPERTIES_WORDS = 14
# Words of a queue name by its type; a direct name contains its own length.
_NAME_WORDS = np.array([0, 0, 1, 1, 1, 4, 5, 0], np.int64)


class Flags:
    """The flags in the base header and in the UserHeader of each packet."""

    def __init__(self, base: Words, user: Words) -> None:
        self.base, self.user = base, user

    def bit(self, number: int) -> Whole:
        """Return one flag of the UserHeader, as 0 or 1."""
        return (self.user >> number & 1).astype(np.int64)

    def _name_type(self, low: int) -> Whole:
        """Return the type of a queue name, which begins at bit `low`."""
        return (self.user >> low & 7).astype(np.int64)

    @cached_property
    def destination_type(self) -> Whole:
        return self._name_type(10)

    @cached_property
    def admin_type(self) -> Whole:
        return self._name_type(13)

    @cached_property
    def response_type(self) -> Whole:
        return self._name_type(16)


class Headers:
    """Positions of the headers in each packet, in words unless stated otherwise."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        # At least one word, so that `take` also works for an empty array.
        self.words: Words = np.frombuffer(rows.packets[: len(rows.packets) & -4] or bytes(4), "<u4")
        self.start: Whole = rows.offsets[:-1] >> 2
        self.end: Whole = rows.offsets[1:] >> 2

    def word(self, at: Whole) -> Words:
        """Return the word at each position; `readable` rejects positions behind the end."""
        return self.words.take(at, mode="clip")

    def half(self, at: Whole) -> Whole:
        """Return the lower 16 bits of each word."""
        return (self.word(at) & 0xFFFF).astype(np.int64)

    @cached_property
    def flags(self) -> Flags:
        return Flags(self.word(self.start) >> 16, self.word(self.start + _USER_FLAGS))

    def _behind_name(self, kind: Whole, at: Whole) -> Whole:
        if not kind.any():
            return at
        direct = (2 + self.half(at) + 3) >> 2
        return at + np.where(kind == DIRECT, direct, _NAME_WORDS[kind])

    @cached_property
    def destination(self) -> Whole:
        return self.start + _NAMES

    @cached_property
    def admin(self) -> Whole:
        return self._behind_name(self.flags.destination_type, self.destination)

    @cached_property
    def response(self) -> Whole:
        return self._behind_name(self.flags.admin_type, self.admin)

    @cached_property
    def connector(self) -> Whole:
        return self._behind_name(self.flags.response_type, self.response)

    @cached_property
    def transaction(self) -> Whole:
        given = self.flags.bit(22)
        return self.connector + GUID_WORDS * given if given.any() else self.connector

    @cached_property
    def security(self) -> Whole:
        given = self.flags.bit(20)
        if not given.any():
            return self.transaction
        connector = self.word(self.transaction) & 1
        return self.transaction + given * (
            _TRANSACTION_WORDS + GUID_WORDS * connector.astype(np.int64)
        )

    @cached_property
    def sender_id_bytes(self) -> Whole:
        given = self.flags.bit(19)
        if not given.any():
            return given
        return (self.word(self.security) >> 16).astype(np.int64) * given

    @cached_property
    def properties(self) -> Whole:
        given = self.flags.bit(19)
        if not given.any():
            return self.security
        sizes = self.word(self.security + 1)
        # Limit the sizes: sums of unlimited sizes would exceed 64 bits; real sizes are small.
        certificate = np.minimum(self.word(self.security + 2), 1 << 20).astype(np.int64)
        provider = np.minimum(self.word(self.security + 3), 1 << 24).astype(np.int64)
        words = (
            SECURITY_WORDS
            + (self.sender_id_bytes + 3 >> 2)
            + ((sizes & 0xFFFF).astype(np.int64) + 3 >> 2)
            + ((sizes >> 16).astype(np.int64) + 3 >> 2)
            + (certificate + 3 >> 2)
            + (provider + 3 >> 2)
        )
        at: Whole = self.security + given * words
        return at

    def properties_word(self, number: int) -> Words:
        return self.word(self.properties + number)

    @cached_property
    def label(self) -> Whole:
        """Position of the label in bytes; all properties below are in bytes too."""
        return 4 * (self.properties + _PROPERTIES_WORDS)

    @cached_property
    def extension(self) -> Whole:
        characters = (self.properties_word(0) >> 8 & 0xFF).astype(np.int64)
        return self.label + 2 * characters

    @cached_property
    def body(self) -> Whole:
        return self.extension + self.properties_word(13).astype(np.int64)

    @cached_property
    def body_bytes(self) -> Whole:
        return self.properties_word(8).astype(np.int64)

    def readable(self, columns: frozenset[str]) -> Mask:
        """Return which packets give the same values here and in the parser, for these columns."""
        ends = self.body if self.rows.headers_only else self.body + self.body_bytes
        good: Mask = (
            ((self.word(self.start) & 0xFF) == VERSION)
            & (self.word(self.start + 1) == SIGNATURE)
            & (self.start + _NAMES < self.end)
            & (self.properties + _PROPERTIES_WORDS <= self.end)
            & (ends <= self.rows.offsets[1:])
            # Reject session headers, HTTP packets and unknown kinds of delivery.
            & ((self.flags.base & 0b10000) == 0)
            & ((self.flags.user & 1 << 25) == 0)
            & ((self.flags.user >> 5 & 3) <= 1)
        )
        if "report_queue" in columns:
            good &= (self.flags.base & 0b100000) == 0  # no debug header
        if columns & {"destinations", "admin_queues", "response_queues"}:
            good &= self.flags.bit(23) == 0  # no multi-queue header
        for kind, names in (
            (self.flags.destination_type, {"destination"}),
            (self.flags.admin_type, {"admin_queue", "admin_queues"}),
            (self.flags.response_type, {"response_queue", "response_queues"}),
        ):
            if columns & names:
                good &= (kind == DIRECT) | (kind == 0)
        return good
