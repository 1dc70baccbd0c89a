"""Certificates of an authority with odd keys, uses and sizes, shown to a live daemon."""

from __future__ import annotations

import ssl
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.attack.test_tls import _close as _close
from tests.attack.test_tls import answer, dial, tls_port
from tests.process.harness import Hosts
from tests.process.tls_hosts import Authority, tls_daemon


def _issued(authority: Authority, guid: str, kind: str) -> tuple[bytes, bytes]:
    """Return a certificate of an authority, with a key or an extension of that kind."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    keys: dict[str, Any] = {
        "an RSA key": lambda: rsa.generate_private_key(65537, 2048),
        "a weak RSA key": lambda: rsa.generate_private_key(65537, 1024),
        "an elliptic key": lambda: ec.generate_private_key(ec.SECP384R1()),
    }
    key = keys.get(kind, ed25519.Ed25519PrivateKey.generate)()
    uses = {
        "for servers only": [x509.ExtendedKeyUsageOID.SERVER_AUTH],
        "for mail": [x509.ExtendedKeyUsageOID.EMAIL_PROTECTION],
    }.get(kind, [x509.ExtendedKeyUsageOID.SERVER_AUTH, x509.ExtendedKeyUsageOID.CLIENT_AUTH])
    now = datetime.now(UTC)
    names: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier(f"urn:uuid:{guid}"),
        x509.DNSName("*" if kind == "a wildcard" else "localhost"),
    ]
    if kind == "ten thousand names":
        names += [x509.DNSName(f"host{number}.example.com") for number in range(10_000)]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=1 if kind == "not valid yet" else -1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    )
    if kind == "an unknown critical extension":
        odd = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5"), b"\x05\x00")
        builder = builder.add_extension(odd, critical=True)
    made = builder.sign(authority.key, None)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem = made.public_bytes(Encoding.PEM)
    if kind == "a chain of a thousand":
        pem += authority.certificate.public_bytes(Encoding.PEM) * 1000
    return pem, private


@pytest.mark.parametrize("kind", ["an RSA key", "an elliptic key", "a wildcard"])
def test_a_certificate_of_an_authority_may_have_any_strong_key(
    hosts: Hosts, tmp_path: Path, kind: str
):
    authority = Authority(hosts.folder)
    daemon = tls_daemon(hosts, tls={"authorities": str(authority.file)})
    guid = str(uuid.uuid4())

    made = _issued(authority, guid, kind)

    assert answer(dial(tls_port(daemon), made, tmp_path), uuid.UUID(guid).bytes_le) is not None


@pytest.mark.parametrize(
    "kind",
    [
        "a weak RSA key",
        "for servers only",
        "for mail",
        "not valid yet",
        "an unknown critical extension",
        "ten thousand names",
        "a chain of a thousand",
    ],
)
def test_a_certificate_of_an_authority_for_other_uses_gets_no_session(
    hosts: Hosts, tmp_path: Path, kind: str
):
    authority = Authority(hosts.folder)
    daemon = tls_daemon(hosts, tls={"authorities": str(authority.file)})
    guid = str(uuid.uuid4())
    try:
        found = answer(
            dial(tls_port(daemon), _issued(authority, guid, kind), tmp_path),
            uuid.UUID(guid).bytes_le,
        )
    except (ssl.SSLError, OSError):
        found = None

    assert found is None
    genuine = dial(tls_port(daemon), authority.issue(guid), tmp_path)
    assert answer(genuine, uuid.UUID(guid).bytes_le) is not None
