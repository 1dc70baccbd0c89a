"""The names of the principals of a client certificate."""

import hashlib

from qmd.control_protocol.certificates import certificate_names

FINGERPRINT = "sha256:" + hashlib.sha256(b"der").hexdigest()


def subject(*names: str) -> dict[str, object]:
    return {"subject": tuple((("commonName", name),) for name in names)}


def test_the_common_name_comes_before_the_fingerprint():
    assert certificate_names(b"der", subject("billing")) == ("billing", FINGERPRINT)


def test_a_certificate_without_a_name_has_its_fingerprint():
    assert certificate_names(b"der", None) == (FINGERPRINT,)


def test_a_name_that_looks_like_a_fingerprint_is_not_taken_for_another_certificate():
    other = "SHA256:" + "0" * 64
    assert certificate_names(b"der", subject(other, " padded", "a\nb", "")) == (FINGERPRINT,)
