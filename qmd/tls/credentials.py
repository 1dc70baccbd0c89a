"""The TLS files of this host: its certificate and key, the authorities, the revocation lists.

They are read again when one of them has changed. A file that is half-written or wrong changes
nothing: the previous content stays in use, and the fault is reported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL, crypto

from qmd.tls.certificate import Certificate, read_certificate
from qmd.tls.errors import BadCertificate, TlsFilesError

if TYPE_CHECKING:
    from qmd.config.settings import TlsSettings

FILE_BYTES_MAX = 4 * 1024 * 1024  # a revocation list may be long
OWN_VALID = timedelta(days=365)  # of the certificate that this queue manager makes itself
OTHERS_MAY_READ = 0o007
# TLS 1.3 has no other cipher suites of this strength.
CIPHERSUITES = b"TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256"

_State = tuple[tuple[int, int, int] | None, ...]


class Verifier(Protocol):
    """One handshake: it judges the certificates that OpenSSL shows to it."""

    def verify(self, shown: crypto.X509, error: int, depth: int, *, ok: bool) -> bool: ...


class _Loaded(NamedTuple):
    context: SSL.Context
    store: crypto.X509Store
    certificate: Certificate
    is_own: bool  # made by this queue manager itself
    expiring: tuple[tuple[str, datetime], ...]  # everything that expires: its name, and when


class Credentials:
    """The content of the files that was usable last."""

    def __init__(
        self,
        settings: TlsSettings,
        guid: bytes,
        make_own: Callable[[timedelta], tuple[bytes, bytes]],
    ) -> None:
        """Create it without content; `load` is the next call.

        `guid` is that of this queue manager.
        `make_own(valid)` returns a certificate and its key (PEM) for a host without files.
        """
        self._settings = settings
        self._guid = guid
        self._make_own = make_own
        self._loaded: _Loaded | None = None
        self._state: _State = ()
        self._failed_state: _State = ()
        self.fault = ""  # why the files, as they are now, are not in use

    @property
    def context(self) -> SSL.Context:
        assert self._loaded is not None, "load comes first"
        return self._loaded.context

    @property
    def certificate(self) -> Certificate:
        """The certificate of this host."""
        assert self._loaded is not None, "load comes first"
        return self._loaded.certificate

    @property
    def has_authorities(self) -> bool:
        return self._settings.authorities is not None

    @property
    def expiring(self) -> tuple[tuple[str, datetime], ...]:
        """The certificates and lists of this host that expire: name and time of each."""
        assert self._loaded is not None, "load comes first"
        return self._loaded.expiring

    def load(self) -> None:
        """Read the files.  Raises TlsFilesError, and keeps the previous content."""
        state = self._look()
        try:
            self._loaded = self._read()
        except (OSError, ValueError, SSL.Error, crypto.Error) as error:
            raise TlsFilesError(f"the files of TLS cannot be used: {error}") from error
        self._state, self.fault = state, ""

    def reload(self, now: datetime | None = None) -> bool:
        """Read the files again if they have changed; return whether their content is in use now.

        A fault is set when it is found a second time: two files are not replaced at once.
        """
        state = self._look()
        if state == self._state and not self._is_old(now or datetime.now(UTC)):
            self.fault = ""
            return False
        try:
            self.load()
        except TlsFilesError as error:
            if state == self._failed_state:
                self.fault = str(error)
            self._failed_state = state
            return False
        return True

    def check_again(self, shown: x509.Certificate, chain: tuple[x509.Certificate, ...]) -> str:
        """Return why a certificate of an authority is no longer valid, or ""."""
        assert self._loaded is not None, "load comes first"
        convert = crypto.X509.from_cryptography
        context = crypto.X509StoreContext(
            self._loaded.store, convert(shown), [convert(each) for each in chain]
        )
        try:
            context.verify_certificate()
        except crypto.X509StoreContextError as error:
            return str(error)
        return ""

    def _is_old(self, now: datetime) -> bool:
        """Whether this queue manager's own certificate is in the second half of its life."""
        loaded = self._loaded
        return loaded is None or (
            loaded.is_own and loaded.certificate.not_after - now < OWN_VALID / 2
        )

    def _look(self) -> _State:
        settings = self._settings
        files = (settings.certificate, settings.key, settings.authorities, settings.revoked)
        return tuple(map(_stat, files))

    def _read(self) -> _Loaded:
        settings = self._settings
        context = SSL.Context(SSL.TLS_METHOD)
        context.set_min_proto_version(SSL.TLS1_3_VERSION)
        context.set_max_proto_version(SSL.TLS1_3_VERSION)
        context.set_tls13_ciphersuites(CIPHERSUITES)
        context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
        context.set_options(SSL.OP_NO_TICKET | SSL.OP_NO_COMPRESSION)
        context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, _verify)
        certificate, expiring = self._use_certificate(context)
        store = context.get_cert_store()
        assert store is not None, "a context has a store"
        if settings.authorities is not None:
            for each in _certificates(settings.authorities, _content(settings.authorities)):
                store.add_cert(crypto.X509.from_cryptography(each))
                name = f"the authority {each.subject.rfc4514_string()}"
                expiring.append((name, each.not_valid_after_utc))
        if settings.revoked is not None:
            for found in _revocation_lists(settings.revoked):
                store.add_crl(found)
                if found.next_update_utc is not None:
                    name = f"the revocation list of {found.issuer.rfc4514_string()}"
                    expiring.append((name, found.next_update_utc))
            store.set_flags(crypto.X509StoreFlags.CRL_CHECK)
        is_own = not settings.certificate.exists()
        return _Loaded(context, store, certificate, is_own, tuple(expiring))

    def _use_certificate(
        self, context: SSL.Context
    ) -> tuple[Certificate, list[tuple[str, datetime]]]:
        """Load the host's certificate, its key, and the certificates up to its authority."""
        settings = self._settings
        file = settings.certificate
        if file.exists():
            certificate_pem, key_pem = _content(file), _content(settings.key, is_secret=True)
        else:
            certificate_pem, key_pem = self._make_own(OWN_VALID)
        first, *others = _certificates(file, certificate_pem)
        try:
            key = load_pem_private_key(key_pem, None)
            context.use_certificate(crypto.X509.from_cryptography(first))
            for each in others:
                context.add_extra_chain_cert(crypto.X509.from_cryptography(each))
            context.use_privatekey(crypto.PKey.from_cryptography_key(key))
            context.check_privatekey()
        except (ValueError, TypeError, SSL.Error) as error:
            # Never the text of the error of the key: it might contain a part of the file.
            raise TlsFilesError(
                f"{settings.key} is not the key of the certificate in {file}, or has a password"
            ) from error
        try:
            found = read_certificate(first)
        except BadCertificate as error:
            raise TlsFilesError(f"{file}: {error}") from error
        if found.guid != self._guid:
            raise TlsFilesError(f"{file} is the certificate of another queue manager")
        return found, [("the certificate of this host", found.not_after)]


def _verify(
    connection: SSL.Connection, shown: crypto.X509, error: int, depth: int, ok: int
) -> bool:
    verifier: Any = connection.get_app_data()
    return bool(verifier.verify(shown, error, depth, ok=bool(ok)))


def _stat(file: Path | None) -> tuple[int, int, int] | None:
    try:
        found = None if file is None else file.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def _content(file: Path, *, is_secret: bool = False) -> bytes:
    try:
        with file.open("rb") as stream:
            if is_secret and os.fstat(stream.fileno()).st_mode & OTHERS_MAY_READ:
                raise TlsFilesError(f"{file} can be read by all users: chmod 600 {file}")
            content = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TlsFilesError(f"{file} cannot be read: {error.strerror}") from error
    if len(content) > FILE_BYTES_MAX:
        raise TlsFilesError(f"{file} is longer than {FILE_BYTES_MAX} bytes")
    return content


def _certificates(file: Path, content: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise TlsFilesError(f"{file} has no complete certificate: {error}") from error


def _revocation_lists(file: Path) -> list[x509.CertificateRevocationList]:
    end = b"-----END X509 CRL-----"
    parts = _content(file).split(end)
    try:
        lists = [x509.load_pem_x509_crl(part.strip() + b"\n" + end + b"\n") for part in parts[:-1]]
    except ValueError as error:
        raise TlsFilesError(f"{file} has no complete revocation list: {error}") from error
    if not lists or parts[-1].strip():
        raise TlsFilesError(f"{file} has no complete revocation list")
    return lists
