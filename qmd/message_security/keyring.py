"""The keyring: keys and certificates of message security, as files of the data folder.

    keys/exchange.pem                    the host's RSA key, which opens session keys
    keys/receivers/NAME.keys             public keys of another queue manager, by GUID or host name
    keys/senders/SENDER/FINGERPRINT.cer  a certificate of a sender, registered for its SID or GUID

Files are looked at when they are needed, so that a new, changed or removed one counts at once.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from protocol.errors import ProtocolError
from protocol.identifiers import guid_bytes, guid_text
from protocol.security_data import (
    AES_PROVIDER,
    PROVIDER_RSA_AES,
    ProviderInfo,
    PublishedKey,
    RsaPublicKey,
    build_published_keys,
    parse_published_keys,
)
from protocol.security_id import parse_security_id, security_id_text
from qmd.message_security.algorithms import Unacceptable
from qmd.message_security.encryption import public_key
from qmd.message_security.signatures import KEY_BITS_MAX, KEY_BITS_MIN, signer_of

FOLDER = "keys"
KEY_BITS = 2048
_EXCHANGE, _RECEIVERS, _SENDERS = "exchange.pem", "receivers", "senders"
_FILE_BYTES_MAX = 256 * 1024
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9._:-]{0,253}[a-z0-9_])?")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_CACHED_MAX = 1000

_Stamp = tuple[int, int, int]


class BadKey(Exception):
    """A key, a certificate or a name of one that cannot be used; the text says why."""


class KeptKey(NamedTuple):
    """One entry of the keyring, for people."""

    kind: str  # "exchange", "receiver" or "sender"
    name: str  # of the receiver or the sender
    bits: int
    fingerprint: str


class Keyring:
    """The keys of one data folder."""

    def __init__(self, data_folder: Path) -> None:
        self.folder = data_folder / FOLDER
        self._private: tuple[_Stamp, rsa.RSAPrivateKey] | None = None
        self._receivers: dict[str, tuple[_Stamp, rsa.RSAPublicKey]] = {}

    def __repr__(self) -> str:
        return f"Keyring({str(self.folder)!r})"

    # For checks and for sending.

    def private_key(self) -> rsa.RSAPrivateKey | None:
        """Return the host's key, or None if it has none that can be read."""
        path = self.folder / _EXCHANGE
        stamp = _stamp(path)
        if stamp is None:
            return None
        if self._private is None or self._private[0] != stamp:
            try:
                key = load_private_key(_read(path))
            except (OSError, BadKey):
                return None
            self._private = stamp, key
        return self._private[1]

    def receiver(self, name: str) -> rsa.RSAPublicKey | None:
        """Return the public key of a queue manager, by GUID or host name; None: not known."""
        try:
            path = self.folder / _RECEIVERS / f"{receiver_name(name)}.keys"
        except BadKey:
            return None
        stamp = _stamp(path)
        if stamp is None:
            return None
        known = self._receivers.get(path.name)
        if known is None or known[0] != stamp:
            try:
                known = stamp, load_receiver_key(_read(path))
            except (OSError, BadKey):
                return None
            if len(self._receivers) >= _CACHED_MAX:
                self._receivers.clear()
            self._receivers[path.name] = known
        return known[1]

    def is_registered(self, sender: str, fingerprint: str) -> bool:
        """Return whether a certificate is registered for a sender: a SID, or a GUID."""
        path = self.folder / _SENDERS / sender / f"{fingerprint}.cer"
        return _FINGERPRINT.fullmatch(fingerprint) is not None and path.is_file()

    def is_pinned(self, fingerprint: str) -> bool:
        """Return whether a certificate is registered for any sender, or trusted without one."""
        if _FINGERPRINT.fullmatch(fingerprint) is None:
            return False
        return any((self.folder / _SENDERS).glob(f"*/{fingerprint}.cer"))

    # For operators.

    def make_private_key(self, bits: int = KEY_BITS) -> bool:
        """Make the host's key; return False if there is one.  Raises OSError."""
        path = self.folder / _EXCHANGE
        if path.exists():
            return False
        key = rsa.generate_private_key(65537, bits)
        _write(path, private_pem(key))
        return True

    def published(self) -> bytes:
        """Return the host's public key as MQDSPUBLICKEYS.  Raises BadKey if there is none."""
        key = self.private_key()
        if key is None:
            raise BadKey("this host has no key")
        return published(key.public_key())

    def add_receiver(self, name: str, data: bytes) -> str:
        """Keep the public key of a queue manager; return its name.  Raises BadKey, OSError."""
        kept = receiver_name(name)
        key = load_receiver_key(data)
        _write(self.folder / _RECEIVERS / f"{kept}.keys", published(key))
        return kept

    def add_sender(self, sender: str, data: bytes) -> str:
        """Register a certificate for a SID or GUID; return its fingerprint.

        Raises BadKey, OSError.
        """
        kept = sender_name(sender)
        encoded = load_certificate(data)
        fingerprint = signer_of(encoded).fingerprint
        _write(self.folder / _SENDERS / kept / f"{fingerprint}.cer", encoded)
        return fingerprint

    def remove(self, name: str, fingerprint: str = "") -> bool:
        """Remove a receiver, or a certificate of a sender; return whether it was there.

        Raises BadKey, OSError.
        """
        if fingerprint:
            if _FINGERPRINT.fullmatch(fingerprint) is None:
                raise BadKey(f"{fingerprint} is no fingerprint: it has 64 hexadecimal digits")
            path = self.folder / _SENDERS / sender_name(name) / f"{fingerprint}.cer"
        else:
            path = self.folder / _RECEIVERS / f"{receiver_name(name)}.keys"
        there = path.exists()
        path.unlink(missing_ok=True)
        return there

    def entries(self) -> Iterator[KeptKey]:
        """Yield all entries; files that are not of the keyring are left out."""
        own = self.private_key()
        if own is not None:
            yield KeptKey("exchange", "", own.key_size, key_fingerprint(own.public_key()))
        for path in sorted((self.folder / _RECEIVERS).glob("*.keys")):
            key = self.receiver(path.stem)
            if key is not None:
                yield KeptKey("receiver", path.stem, key.key_size, key_fingerprint(key))
        for path in sorted((self.folder / _SENDERS).glob("*/*.cer")):
            if _FINGERPRINT.fullmatch(path.stem):
                bits = signer_of(_read(path)).key.key_size
                yield KeptKey("sender", path.parent.name, bits, path.stem)


def make_signer(name: str, key_file: Path, certificate_file: Path, *, days: int) -> str:
    """Make a key and a certificate that it signs itself, as new files in PEM.

    Returns the fingerprint of the certificate.  Raises OSError, and ValueError for a bad name.
    """
    key = rsa.generate_private_key(65537, KEY_BITS)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begins = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - datetime.timedelta(minutes=5))
        .not_valid_after(begins + datetime.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    descriptor = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(private_pem(key))
    with certificate_file.open("xb") as file:
        file.write(certificate.public_bytes(serialization.Encoding.PEM))
    return certificate.fingerprint(hashes.SHA256()).hex()


def receiver_name(name: str) -> str:
    """Return the name under which a receiver is kept: a GUID, or a host name in lower case.

    Raises BadKey.
    """
    try:
        return guid_text(guid_bytes(name))
    except ProtocolError:
        host = name.lower()
    if _HOST.fullmatch(host) is None or ".." in host:
        raise BadKey(f"{name} is neither a GUID nor the name of a host")
    return host


def sender_name(name: str) -> str:
    """Return the name under which a sender is kept: a SID, or a GUID.  Raises BadKey."""
    try:
        return guid_text(guid_bytes(name))
    except ProtocolError:
        pass
    try:
        text = security_id_text(parse_security_id(name))
    except ProtocolError as error:
        raise BadKey(f"{name} is neither a security identifier nor a GUID") from error
    assert text is not None
    return text


def load_private_key(data: bytes) -> rsa.RSAPrivateKey:
    """Read an RSA private key (PEM or DER).  Raises BadKey, without a word of its content."""
    try:
        if data.lstrip().startswith(b"-----"):
            key = serialization.load_pem_private_key(data, None)
        else:
            key = serialization.load_der_private_key(data, None)
    except (ValueError, TypeError) as error:
        raise BadKey("it is no private key in PEM or DER without a password") from error
    if not isinstance(key, rsa.RSAPrivateKey):
        raise BadKey("it is no RSA key")
    _check_size(key.key_size)
    return key


def load_receiver_key(data: bytes) -> rsa.RSAPublicKey:
    """Read a public key: MQDSPUBLICKEYS, as in mSMQEncryptKey, or PEM.  Raises BadKey.

    Of MQDSPUBLICKEYS it is the key of the provider for AES.
    """
    if data.lstrip().startswith(b"-----BEGIN CERTIFICATE"):
        return signer_of(load_certificate(data)).key
    if data.lstrip().startswith(b"-----"):
        try:
            key = serialization.load_pem_public_key(data)
        except ValueError as error:
            raise BadKey("it is no public key in PEM") from error
        if not isinstance(key, rsa.RSAPublicKey):
            raise BadKey("it is no RSA key")
    else:
        try:
            keys = parse_published_keys(data)
            chosen = next((each for each in keys if each.provider.name == AES_PROVIDER), None)
            if chosen is None:
                raise BadKey(f"it has no key for {AES_PROVIDER}: the host cannot decrypt AES")
            key = public_key(chosen.key)
        except (ProtocolError, ValueError) as error:
            raise BadKey(f"it is neither PEM nor MQDSPUBLICKEYS: {error}") from error
    _check_size(key.key_size)
    return key


@lru_cache(_CACHED_MAX)
def known_receiver_key(data: bytes) -> rsa.RSAPublicKey:
    """Return the same as `load_receiver_key`; to read a key takes longer than to encrypt a body."""
    return load_receiver_key(data)


def load_certificate(data: bytes) -> bytes:
    """Return a certificate (PEM or DER) in DER.  Raises BadKey."""
    try:
        if data.lstrip().startswith(b"-----"):
            certificate = x509.load_pem_x509_certificate(data)
        else:
            certificate = x509.load_der_x509_certificate(data)
        return certificate.public_bytes(serialization.Encoding.DER)
    except ValueError as error:
        raise BadKey(f"it is no X.509 certificate in PEM or DER: {error}") from error


def private_pem(key: rsa.RSAPrivateKey) -> bytes:
    """Return a private key in PEM (PKCS #8), without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def published(key: rsa.RSAPublicKey) -> bytes:
    """Return a public key as MQDSPUBLICKEYS, for the provider that has AES."""
    return build_published_keys((_published_key(key),))


def signing_keys(certificates: Sequence[bytes]) -> bytes:
    """Return the keys of certificates (DER) as MQDSPUBLICKEYS, each once; b"" for none.

    Certificates that cannot sign messages are left out.
    """
    found: dict[PublishedKey, None] = {}
    for each in certificates:
        with contextlib.suppress(Unacceptable):
            found[_published_key(signer_of(each).key)] = None
    return build_published_keys(tuple(found)) if found else b""


def _published_key(key: rsa.RSAPublicKey) -> PublishedKey:
    numbers = key.public_numbers()
    own = RsaPublicKey(numbers.n, numbers.e, key.key_size)
    return PublishedKey(ProviderInfo(PROVIDER_RSA_AES, AES_PROVIDER), own)


def key_fingerprint(key: rsa.RSAPublicKey) -> str:
    """Return the SHA-256 of a public key (SubjectPublicKeyInfo), in hexadecimal."""
    encoded = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(encoded).hexdigest()


def _check_size(bits: int) -> None:
    if not KEY_BITS_MIN <= bits <= KEY_BITS_MAX or bits % 8:
        raise BadKey(f"the key has {bits} bits; {KEY_BITS_MIN} to {KEY_BITS_MAX} are allowed")


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_FILE_BYTES_MAX)


def _write(path: Path, data: bytes) -> None:
    """Write a file with mode 0600, whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
