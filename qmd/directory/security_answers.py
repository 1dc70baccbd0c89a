"""Keys and certificates of message security, from the directory.

    encryption_keys(name)   the public keys of a queue manager, for messages to it
    certificates(sender)    the fingerprints of the certificates of a sender, and of its keys

Both answer at once from what was looked up, or raise MustAsk: a caller that may wait awaits
`answered` of that, and tries again.  Answers are valid as long as those about queues.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from protocol.errors import MalformedPacket, ProtocolError
from protocol.identifiers import guid_bytes
from protocol.security_data import parse_published_keys
from qmd.directory.interface import KIND_NONE, NotInDirectory
from qmd.directory.resolver import MustAsk
from qmd.errors import Refusal, placed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from qmd.config.settings import DirectorySettings
    from qmd.directory.resolver import Resolver

ANSWERS_MAX = 10_000
#: An answer is valid at least so long that the request which has waited for it can use it.
VALID_MIN_S = 1.0

Fingerprints = frozenset[str]


class _Answer(NamedTuple):
    """Keys, fingerprints, or the error of the look-up."""

    value: bytes | Fingerprints | Refusal
    expires_at: float
    asked_at: int = 0  # `Resolver.forgotten_count` when it was looked up


class SecurityAnswers:
    """Answers of the directory about keys and certificates."""

    def __init__(
        self, resolver: Resolver, settings: DirectorySettings, *, now: Callable[[], float]
    ) -> None:
        self._resolver, self._entries = resolver, resolver.entries
        self._settings = settings
        self._now = now  # seconds, of a clock that only moves forward
        self._keys: dict[str, _Answer] = {}
        self._certificates: dict[str, _Answer] = {}

    @property
    def can_ask(self) -> bool:
        """Return whether there is a directory."""
        return self._entries.directory.kind != KIND_NONE

    def encryption_keys(self, name: str) -> bytes:
        """Return MQDSPUBLICKEYS of a queue manager, by its GUID or the name of its computer.

        b"": the directory has none.  Raises MustAsk, and Refusal if the directory does not answer.
        """
        if not self.can_ask:
            return b""
        value = self._answer(self._keys, name, partial(self.fetch_keys, name))
        assert isinstance(value, bytes)
        return value

    def certificates(self, sender: str) -> Fingerprints:
        """Return the SHA-256 fingerprints of the certificates that are registered for a sender.

        Those of a queue manager include the fingerprints of the keys with which it signs.

        Raises MustAsk, and Refusal if the directory does not answer.
        """
        value = self._answer(self._certificates, sender, partial(self.fetch_certificates, sender))
        assert isinstance(value, frozenset)
        return value

    def last_certificates(self, sender: str) -> Fingerprints | None:
        """Return the fingerprints as they were last looked up, also if that is long ago."""
        found = self._certificates.get(sender)
        return found.value if found is not None and isinstance(found.value, frozenset) else None

    def known_certificates(self, sender: str) -> Fingerprints | None:
        """Return the fingerprints if no look-up is needed."""
        found = self._certificates.get(sender)
        return self.last_certificates(sender) if found and self._is_valid(found) else None

    async def fetch_keys(self, name: str) -> None:
        """Look up the keys of a queue manager; the next `encryption_keys` has the answer."""
        try:
            try:
                entry, until = await self._entries.machine(guid_bytes(name))
            except ProtocolError:
                entry, until = await self._entries.machine_by_name(name)
            answer = _Answer(entry.encryption_keys, until)
        except NotInDirectory:
            answer = _Answer(b"", self._now() + self._settings.negative_age_s)
        except Refusal as refusal:
            answer = self._failed(refusal)
        self._keep(self._keys, name, answer)

    async def fetch_certificates(self, sender: str) -> None:
        """Look up the certificates of a sender; the next `certificates` has the answer."""
        try:
            found, until = await self._entries.certificates(sender)
            prints = {hashlib.sha256(each).hexdigest() for each in found}
            if not sender.startswith("S-"):
                machine, keys_until = await self._entries.machine(guid_bytes(sender))
                prints |= _key_fingerprints(machine.signing_keys)
                until = min(until, keys_until)
            answer = _Answer(frozenset(prints), until)
        except NotInDirectory:
            answer = _Answer(frozenset(), self._now() + self._settings.negative_age_s)
        except Refusal as refusal:
            answer = self._failed(refusal)
        self._keep(self._certificates, sender, answer)

    def _answer(
        self, answers: dict[str, _Answer], name: str, fetch: Callable[[], Awaitable[None]]
    ) -> bytes | Fingerprints:
        found = answers.get(name)
        if found is None or not self._is_valid(found):
            raise MustAsk(name, fetch)
        if isinstance(found.value, Refusal):
            raise placed(found.value, "")
        return found.value

    def _is_valid(self, answer: _Answer) -> bool:
        is_current = answer.asked_at == self._resolver.forgotten_count
        return is_current and answer.expires_at > self._now()

    def _failed(self, refusal: Refusal) -> _Answer:
        return _Answer(refusal, self._now() + self._settings.pause_s)

    def _keep(self, answers: dict[str, _Answer], name: str, answer: _Answer) -> None:
        if len(answers) >= ANSWERS_MAX:
            answers.clear()
        until = max(answer.expires_at, self._now() + VALID_MIN_S)
        answers[name] = _Answer(answer.value, until, self._resolver.forgotten_count)


def _key_fingerprints(keys: bytes) -> set[str]:
    """Return the fingerprints of MQDSPUBLICKEYS; keys that are not RSA verify nothing here."""
    try:
        return {each.key.fingerprint for each in parse_published_keys(keys)} if keys else set()
    except MalformedPacket:
        return set()
