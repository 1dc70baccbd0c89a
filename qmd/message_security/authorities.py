"""Authorities of the certificates of senders, and their revocation lists: files of the operator.

The chain of a certificate is verified by OpenSSL.  A certificate of one of the authorities counts
if its chain and the revocation lists allow it; any other counts if an operator or the directory has
registered it: the internal certificates of MSMQ are signed by their own keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from OpenSSL import crypto

from qmd.message_security.algorithms import NotCheckable

if TYPE_CHECKING:
    from qmd.message_security.signatures import Signer

FILE_BYTES_MAX = 16 * 1024 * 1024  # a revocation list may be long
_CRL_END = b"-----END X509 CRL-----"
#: Faults of a revocation list, and not of the certificate: X509_V_ERR_UNABLE_TO_GET_CRL,
#: CRL_SIGNATURE_FAILURE, CRL_NOT_YET_VALID, CRL_HAS_EXPIRED, and its issuer is not known.
_FAULTS_OF_LISTS = frozenset((3, 8, 11, 12, 33))

_Stamp = tuple[tuple[int, int, int] | None, ...]


class _Loaded(NamedTuple):
    store: crypto.X509Store
    subjects: frozenset[bytes]  # of the authorities, in DER


class Authorities:
    """The content of the two files that was usable last; they are read again when they change."""

    def __init__(self, file: Path, revoked: Path | None) -> None:
        """file: certificates of authorities (PEM); revoked: their revocation lists (PEM)."""
        self._file = file
        self._revoked = revoked
        self._loaded: _Loaded | None = None
        self._stamp: _Stamp = ()

    def fault(self, signer: Signer, *, is_pinned: bool) -> str:
        """Return why the certificate of a signer does not count, or "".

        is_pinned: it is registered.  The periods of authorities and lists are compared with the
        clock of the computer.  Raises NotCheckable if the files cannot be used, or a revocation
        list is missing or too old.
        """
        loaded = self._current()
        if signer.certificate.issuer.public_bytes() not in loaded.subjects:
            return "" if is_pinned else "is neither registered nor one of a known authority"
        shown = crypto.X509.from_cryptography(signer.certificate)
        try:
            crypto.X509StoreContext(loaded.store, shown).verify_certificate()
        except crypto.X509StoreContextError as error:
            number = error.errors[0] if error.errors else 0
            if number in _FAULTS_OF_LISTS:
                raise NotCheckable(f"{self._revoked}: {error}") from error
            return f"is not valid: {error}"
        return ""

    def _current(self) -> _Loaded:
        stamp = _stat(self._file), _stat(self._revoked)
        if self._loaded is None or stamp != self._stamp:
            try:
                self._loaded = self._read()
            except (OSError, ValueError, crypto.Error) as error:
                # A file that is half-written changes nothing, and is read again the next time.
                if self._loaded is None:
                    raise NotCheckable(
                        f"the authorities of senders cannot be read: {error}"
                    ) from error
            else:
                self._stamp = stamp
        return self._loaded

    def _read(self) -> _Loaded:
        store = crypto.X509Store()
        flags = crypto.X509StoreFlags.PARTIAL_CHAIN  # an intermediate authority alone counts
        found = x509.load_pem_x509_certificates(_content(self._file))
        for each in found:
            store.add_cert(crypto.X509.from_cryptography(each))
        if self._revoked is not None:
            parts = _content(self._revoked).split(_CRL_END)
            if len(parts) < 2 or parts[-1].strip():
                raise ValueError(f"{self._revoked} has no complete revocation list")
            for part in parts[:-1]:
                store.add_crl(x509.load_pem_x509_crl(part.strip() + b"\n" + _CRL_END + b"\n"))
            flags |= crypto.X509StoreFlags.CRL_CHECK
        store.set_flags(flags)
        return _Loaded(store, frozenset(each.subject.public_bytes() for each in found))


def _stat(file: Path | None) -> tuple[int, int, int] | None:
    try:
        found = None if file is None else file.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def _content(file: Path) -> bytes:
    with file.open("rb") as stream:
        content = stream.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"{file} is longer than {FILE_BYTES_MAX} bytes")
    return content
