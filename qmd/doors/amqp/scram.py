"""The server of SCRAM-SHA-256 (RFC 5802, RFC 7677), without input and output."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Callable

from qmd.doors.users import Verifier

NONCE_BYTES = 18


class Refused(Exception):
    """A login that fails; the text is for the log, not for the client."""


class Scram:
    """One exchange: `first` and `final` take the messages of the client in turn."""

    def __init__(self, find: Callable[[str], tuple[Verifier, bool]]) -> None:
        """`find(name)` returns the verifier of a user, and whether there is such a user."""
        self._find = find
        self._nonce = base64.b64encode(os.urandom(NONCE_BYTES)).decode()
        self._so_far = self._header = ""
        self._verifier: Verifier | None = None
        self._exists = False
        self.name = ""

    def first(self, message: bytes) -> bytes:
        """Return the challenge for the first message.  Raises Refused."""
        text = _decoded(message)
        flag, _, rest = text.partition(",")
        authorization, _, bare = rest.partition(",")
        if flag not in ("n", "y"):
            raise Refused("channel binding is not offered")
        fields = _fields(bare)
        self._header = f"{flag},{authorization},"
        self.name = _unescaped(fields.get("n", ""))
        nonce = fields.get("r", "")
        if not self.name or not nonce or "m" in fields:
            raise Refused("the first message is not complete")
        if authorization and _unescaped(authorization.removeprefix("a=")) != self.name:
            raise Refused("another identity was requested")
        self._nonce = nonce + self._nonce
        self._verifier, self._exists = self._find(self.name)
        salt = base64.b64encode(self._verifier.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self._so_far = f"{bare},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """Return the proof of the server, after checking that of the client.  Raises Refused."""
        text = _decoded(message)
        without_proof, _, proof_text = text.rpartition(",p=")
        fields = _fields(without_proof)
        try:
            binding = base64.b64decode(fields.get("c", ""), validate=True).decode()
            proof = base64.b64decode(proof_text, validate=True)
        except ValueError:
            raise Refused("the final message is not base64") from None
        verifier = self._verifier
        if verifier is None or binding != self._header or fields.get("r") != self._nonce:
            raise Refused("the final message does not belong to the exchange")
        signed = f"{self._so_far},{without_proof}".encode()
        signature = hmac.digest(verifier.stored_key, signed, "sha256")
        if len(proof) != len(signature):
            raise Refused("the proof has another length")
        key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        fits = hmac.compare_digest(hashlib.sha256(key).digest(), verifier.stored_key)
        if not fits or not self._exists:
            raise Refused(f"wrong password of {self.name}")
        return b"v=" + base64.b64encode(hmac.digest(verifier.server_key, signed, "sha256"))


def _decoded(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise Refused("a message is not UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    found = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or len(key) != 1 or key in found:
            raise Refused("a message has fields that are not understood")
        found[key] = value
    return found


def _unescaped(name: str) -> str:
    if "=" in name.replace("=2C", "").replace("=3D", ""):
        raise Refused("a name has characters that are not allowed")
    return name.replace("=2C", ",").replace("=3D", "=")
