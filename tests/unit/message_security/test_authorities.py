"""Authorities of senders: chains and revocation lists, judged by OpenSSL."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from qmd.message_security.algorithms import NotCheckable, Unacceptable
from qmd.message_security.authorities import Authorities
from qmd.message_security.signatures import Signer, signer_of
from tests.unit.message_security.secured import certificate, key

BEGINS = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
FAR = datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC)


def name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def made(
    subject: str,
    issuer: str,
    *,
    serial: int = 7,
    is_authority: bool = False,
    signing_key: str = "",
    usage: bool | None = None,
    begins: datetime.datetime = BEGINS,
    ends: datetime.datetime = FAR,
) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key(subject).public_key())
        .serial_number(serial)
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if usage is not None:
        builder = builder.add_extension(
            x509.KeyUsage(usage, False, True, False, False, False, False, False, False),
            critical=True,
        )
    return builder.sign(key(signing_key or issuer), hashes.SHA256())


def signer(found: x509.Certificate) -> Signer:
    return signer_of(found.public_bytes(Encoding.DER))


def revocation_list(issuer: str, *serials: int, ends: datetime.datetime = FAR) -> bytes:
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(name(issuer))
        .last_update(BEGINS)
        .next_update(ends)
    )
    for serial in serials:
        revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(BEGINS)
        builder = builder.add_revoked_certificate(revoked.build())
    return builder.sign(key(issuer), hashes.SHA256()).public_bytes(Encoding.PEM)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "authorities.pem"
    found.write_bytes(made("root", "root", is_authority=True).public_bytes(Encoding.PEM))
    return found


def test_a_certificate_of_an_authority_counts_and_others_only_if_registered(file: Path) -> None:
    authorities = Authorities(file, None)
    own = signer_of(certificate("sender"))

    assert authorities.fault(signer(made("alice", "root")), is_pinned=False) == ""
    assert "neither registered" in authorities.fault(own, is_pinned=False)
    assert authorities.fault(own, is_pinned=True) == ""


def test_a_name_of_an_authority_without_its_signature_does_not_count(file: Path) -> None:
    forged = signer(made("alice", "root", signing_key="mallory"))
    authorities = Authorities(file, None)

    for is_pinned in (False, True):
        assert "signature" in authorities.fault(forged, is_pinned=is_pinned)


def test_a_certificate_of_a_holder_of_a_certificate_does_not_count(file: Path) -> None:
    holder = made("alice", "root")
    file.write_bytes(file.read_bytes() + holder.public_bytes(Encoding.PEM))
    below = signer(made("bob", "alice"))

    assert "not valid" in Authorities(file, None).fault(below, is_pinned=False)


def test_the_periods_of_authority_and_certificate_count(file: Path) -> None:
    authorities = Authorities(file, None)
    short = signer(made("alice", "root", ends=BEGINS + datetime.timedelta(days=1)))

    assert "expired" in authorities.fault(short, is_pinned=True)
    early = signer(made("alice", "root", begins=FAR, ends=FAR + datetime.timedelta(days=1)))
    assert "yet" in authorities.fault(early, is_pinned=True)


def test_a_revoked_certificate_counts_no_more_although_it_is_registered(
    file: Path, tmp_path: Path
) -> None:
    revoked = tmp_path / "revoked.pem"
    revoked.write_bytes(revocation_list("root", 8))
    authorities = Authorities(file, revoked)
    alice = signer(made("alice", "root"))
    assert authorities.fault(alice, is_pinned=True) == ""

    revoked.write_bytes(revocation_list("root", 7, 8))

    assert "revoked" in authorities.fault(alice, is_pinned=True)
    assert authorities.fault(signer(made("bob", "root", serial=9)), is_pinned=False) == ""


@pytest.mark.parametrize("fault", ["old", "missing", "of another authority"])
def test_without_a_current_revocation_list_nothing_is_decided(
    file: Path, tmp_path: Path, fault: str
) -> None:
    revoked = tmp_path / "revoked.pem"
    if fault == "old":
        ends = BEGINS + datetime.timedelta(days=1)
        revoked.write_bytes(revocation_list("root", 7, ends=ends))
    elif fault == "of another authority":
        revoked.write_bytes(revocation_list("mallory", 7))

    with pytest.raises(NotCheckable):
        Authorities(file, revoked).fault(signer(made("bob", "root", serial=9)), is_pinned=True)


def test_a_half_written_file_changes_nothing(file: Path) -> None:
    authorities, alice = Authorities(file, None), signer(made("alice", "root"))
    assert authorities.fault(alice, is_pinned=False) == ""
    whole = file.read_bytes()

    file.write_bytes(whole[:100])
    assert authorities.fault(alice, is_pinned=False) == ""
    file.write_bytes(made("other", "other", is_authority=True).public_bytes(Encoding.PEM))
    assert authorities.fault(alice, is_pinned=False) != ""

    with pytest.raises(NotCheckable):
        Authorities(file.with_name("none.pem"), None).fault(alice, is_pinned=True)


def test_a_certificate_that_is_not_for_signatures_signs_no_message() -> None:
    assert signer(made("alice", "root", usage=True))
    with pytest.raises(Unacceptable, match="not one for signatures"):
        signer(made("alice", "root", usage=False))
