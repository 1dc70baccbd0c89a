"""Errors of TLS between queue managers."""

from __future__ import annotations


class TlsFilesError(Exception):
    """A file of TLS that cannot be used; the text names the file and the fault."""


class BadCertificate(Exception):
    """A certificate that identifies no queue manager; the text is the reason."""


class TlsFailed(OSError):
    """A session over TLS with a peer that failed; the text is the reason."""
