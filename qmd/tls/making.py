"""Making certificates: of a host itself, of a small authority, and what an authority signs.

Keys are Ed25519. A host's certificate is for both ends of a session, so that it has both purposes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from qmd.tls.certificate import ENDORSEMENT, GUID_URI, endorse, guid_uri, key_digest

BEFORE = timedelta(hours=1)  # clocks differ
NAME_CHARACTERS_MAX = 64


class Host(NamedTuple):
    """The names in a host's certificate: its GUID, and the names and addresses it is dialled by."""

    guid: bytes
    names: tuple[str, ...]


def new_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def key_pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def load_key(pem: bytes) -> Ed25519PrivateKey:
    """Load a private key.  Raises ValueError if it is none, or no Ed25519 key."""
    try:
        key = load_pem_private_key(pem, None)
    except TypeError as error:  # it is encrypted
        raise ValueError("the key has a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("the key is no Ed25519 key")
    return key


def own_certificate(
    host: Host,
    key: Ed25519PrivateKey,
    identity: Ed25519PrivateKey,
    *,
    valid: timedelta,
    now: datetime | None = None,
) -> bytes:
    """Return the self-signed certificate (PEM) of a host.

    The identity key endorses `key`, unless both are the same key.
    """
    now = now or datetime.now(UTC)
    builder = _host(host, _name(host), now, valid).public_key(key.public_key())
    builder = builder.issuer_name(_name(host))
    if key.private_bytes_raw() != identity.private_bytes_raw():
        extension = endorse(identity, host.guid, key_digest(key.public_key()), int(now.timestamp()))
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, None).public_bytes(Encoding.PEM)


def make_request(host: Host, key: Ed25519PrivateKey, identity: Ed25519PrivateKey | None) -> bytes:
    """Return a request (PEM) for a certificate of an authority."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(host))
    builder = builder.add_extension(_names(host), critical=False)
    if identity is not None:
        extension = endorse(
            identity, host.guid, key_digest(key.public_key()), int(datetime.now(UTC).timestamp())
        )
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, None).public_bytes(Encoding.PEM)


def make_authority(name: str, key: Ed25519PrivateKey, *, valid: timedelta) -> bytes:
    """Return the certificate (PEM) of a new authority."""
    now = datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:NAME_CHARACTERS_MAX])])
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + valid)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, None)
        .public_bytes(Encoding.PEM)
    )


def issue(
    host: Host,
    public: x509.CertificateSigningRequest | Ed25519PrivateKey,
    authority: tuple[x509.Certificate, Ed25519PrivateKey],
    *,
    valid: timedelta,
) -> bytes:
    """Return a host's certificate (PEM), signed by an authority, for a request or for a key.

    The names are those of `host`: those of the request are for the operator to read.
    """
    certificate, key = authority
    builder = _host(host, _name(host), datetime.now(UTC), valid)
    builder = builder.issuer_name(certificate.subject).public_key(public.public_key())
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
    )
    if isinstance(public, x509.CertificateSigningRequest):
        for extension in public.extensions:
            if extension.oid == ENDORSEMENT:
                builder = builder.add_extension(extension.value, critical=False)
    return builder.sign(key, None).public_bytes(Encoding.PEM)


def revoke(
    certificates: list[int],
    authority: tuple[x509.Certificate, Ed25519PrivateKey],
    *,
    valid: timedelta,
) -> bytes:
    """Return the revocation list (PEM) of an authority for certificates with these numbers."""
    certificate, key = authority
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(certificate.subject)
    builder = builder.last_update(now - BEFORE).next_update(now + valid)
    for number in certificates:
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now).build()
        )
    return builder.sign(key, None).public_bytes(Encoding.PEM)


def read_request(pem: bytes) -> tuple[x509.CertificateSigningRequest, Host]:
    """Read a request, and check its signature.  Raises ValueError."""
    request = x509.load_pem_x509_csr(pem)
    if not request.is_signature_valid:
        raise ValueError("its signature is wrong")
    try:
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise ValueError("it names no queue manager") from None
    import uuid

    guids = [
        uuid.UUID(each.removeprefix(GUID_URI)).bytes_le
        for each in names.get_values_for_type(x509.UniformResourceIdentifier)
        if each.startswith(GUID_URI)
    ]
    if len(guids) != 1:
        raise ValueError("it must name one queue manager")
    hosts = (
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    )
    return request, Host(guids[0], hosts)


def _host(
    host: Host, subject: x509.Name, now: datetime, valid: timedelta
) -> x509.CertificateBuilder:
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + valid)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(_names(host), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: Host) -> x509.Name:
    name = next((each for each in host.names if each), guid_uri(host.guid))
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:NAME_CHARACTERS_MAX])])


def _names(host: Host) -> x509.SubjectAlternativeName:
    found: list[x509.GeneralName] = [x509.UniformResourceIdentifier(guid_uri(host.guid))]
    for each in dict.fromkeys(host.names):
        try:
            found.append(x509.IPAddress(ip_address(each)))
        except ValueError:
            if each.isascii():  # a certificate has no other names; DNS has none either
                found.append(x509.DNSName(each.casefold()))
    return x509.SubjectAlternativeName(found)
