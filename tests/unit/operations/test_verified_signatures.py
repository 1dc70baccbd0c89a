"""Signatures that were verified just now: for one message, one queue and one minute."""

from __future__ import annotations

import msgspec
import pytest

from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, NewMessage
from qmd.operations import verified_signatures
from qmd.operations.verified_signatures import VALID_S, VerifiedSignatures, signature_key

NEW = NewMessage("orders", b"body", signature=b"signature", certificate=b"certificate")


def test_a_verified_signature_is_known_for_a_minute() -> None:
    now = [10.0]
    verified = VerifiedSignatures(lambda: now[0])
    key = signature_key(NEW, 16, EXPRESS)

    assert not verified.has(key)
    verified.add(key)
    now[0] += VALID_S - 1
    assert verified.has(key)
    verified.add(key)
    now[0] += 2
    assert verified.has(key)
    now[0] += VALID_S
    assert not verified.has(key)


def test_another_content_queue_or_delivery_is_not_verified() -> None:
    others = [
        (msgspec.structs.replace(NEW, body=b"other"), 16, EXPRESS),
        (msgspec.structs.replace(NEW, label="other"), 16, EXPRESS),
        (msgspec.structs.replace(NEW, certificate=b"other"), 16, EXPRESS),
        (NEW, 17, EXPRESS),
        (NEW, 16, RECOVERABLE),
    ]

    assert signature_key(NEW, 16, EXPRESS) not in {signature_key(*each) for each in others}


def test_the_oldest_signatures_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified_signatures, "SIGNATURES_MAX", 3)
    verified = VerifiedSignatures(lambda: 0.0)
    keys = [bytes([each]) for each in range(5)]

    for key in keys:
        verified.add(key)

    assert [verified.has(each) for each in keys] == [False, False, True, True, True]
