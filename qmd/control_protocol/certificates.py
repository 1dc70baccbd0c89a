"""The principals of a verified client certificate: its common names and its fingerprint."""

from __future__ import annotations

import hashlib
import math
import ssl
from collections.abc import Mapping
from typing import Any

FINGERPRINT = "sha256:"
NAMES_MAX = 4


def expires_at_s(tls: ssl.SSLObject | None) -> float:
    """Return when the certificate of a client expires, in seconds since 1970; infinity without one.

    A connection may be open longer, and a session that TLS resumes shows no certificate again.
    """
    fields = None if tls is None else tls.getpeercert()
    return float(ssl.cert_time_to_seconds(str(fields["notAfter"]))) if fields else math.inf


def certificate_names(certificate: bytes, fields: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names of the principals `cert:NAME` of a certificate: common names first.

    `certificate` is its DER form, and `fields` the result of `SSLObject.getpeercert()`; the last
    name is `sha256:` and the fingerprint.  A common name that looks like a fingerprint is left out:
    it would be taken for another certificate.
    """
    pairs = [pair for part in (fields or {}).get("subject", ()) for pair in part]
    names = [str(value) for key, value in pairs if key == "commonName"]
    usable = [
        each
        for each in names
        if each
        and each.isprintable()
        and each == each.strip()
        and not each.casefold().startswith(FINGERPRINT)
    ]
    return (*usable[:NAMES_MAX], FINGERPRINT + hashlib.sha256(certificate).hexdigest())
