"""The bytes of a password of which its proof is made."""

from __future__ import annotations

import unicodedata


def normalized(password: str) -> bytes:
    """Return the bytes: the same for the same text, whichever way its characters are composed."""
    return unicodedata.normalize("NFKC", password).encode("utf-8", "surrogatepass")
