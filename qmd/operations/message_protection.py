"""Protection of messages that applications send: their signatures are checked, bodies encrypted.

The application signs, with a key that this queue manager never sees; `signing_parts` returns the
bytes for it.  The body is encrypted here, for the queue manager of the destination, before the
message is stored: it waits encrypted, and relays pass it on as it is.  [MS-MQQB] 3.1.7.1.4, .5
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from protocol import DirectQueueName, parse_user_message, plain_text
from protocol.identifiers import NULL_GUID, guid_text
from protocol.signed_fields import SignatureStyle, signed_parts
from qmd.control_protocol.messages import TRANSACTIONAL, NewMessage
from qmd.errors import Refusal
from qmd.queues.local_queue import LocalQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.message_security.checking import Checked, Checker
    from qmd.message_security.key_cache import KeyCache
    from qmd.message_security.keyring import Keyring
    from qmd.naming.destinations import Route
    from qmd.operations.packet_composer import PacketComposer
    from qmd.operations.send_checks import SendChecks
    from qmd.runtime.services import Services

_SINGLE = 0, True, True  # a transaction of one message, of no number yet


class MessageProtection:
    """Checks signatures and encrypts bodies of messages from applications."""

    def __init__(
        self,
        services: Services,
        checks: SendChecks,
        composer: PacketComposer,
        keyring: Callable[[], Keyring],
        make_checker: Callable[[], Checker],
    ) -> None:
        self._services = services
        self._checks = checks
        self._composer = composer
        self._keyring = keyring
        self._make_checker = make_checker
        self._checker: Checker | None = None
        self._session_keys: KeyCache[tuple[bytes, bytes]] | None = None

    def protect(
        self, messages: list[NewMessage], *, in_transaction: bool = False
    ) -> list[NewMessage]:
        """Return the messages as they are to be sent.  Raises Refusal, MustAsk."""
        if not any(new.signature or new.privacy_level for new in messages):
            return messages
        return [
            self._protected(new, in_transaction) if new.signature or new.privacy_level else new
            for new in messages
        ]

    def signing_parts(self, new: NewMessage, *, in_transaction: bool) -> tuple[bytes, bytes, int]:
        """Return the signed bytes before and after the body of a message, and its delivery.

        Raises Refusal, MustAsk.
        """
        route, delivery = self._way(new, in_transaction)
        before, _, after = signed_parts(
            parse_user_message(self._trial(new, route, delivery)), SignatureStyle.MSMQ_2
        )
        return before, after, delivery

    def authenticated(self, packet: bytes) -> bytes:
        """Return the signed packet of a message to a queue of this host, marked as authenticated.

        A packet with a signature that is not valid is returned unmarked.
        """
        checked = self._check(packet)
        return packet if checked.message_class is not None else checked.packet

    def _protected(self, new: NewMessage, in_transaction: bool) -> NewMessage:
        route, delivery = self._way(new, in_transaction)
        if new.signature:
            self._check_signature(new, route, delivery)
        if new.privacy_level and not new.encryption_key:
            if isinstance(route, LocalQueue):  # it does not leave this host
                return msgspec.structs.replace(new, privacy_level=0)
            return self._encrypted(new, route)
        return new

    def _way(self, new: NewMessage, in_transaction: bool) -> tuple[Route, int]:
        way = self._checks.way_of(new, in_transaction=in_transaction)
        if way is None:
            raise Refusal(
                "several_not_protected",
                f"{new.destination} are several queues, and a message to several is neither"
                " signed nor encrypted here",
                "Send a message to each of them.",
            )
        return way

    def _trial(self, new: NewMessage, route: Route, delivery: int) -> bytes:
        """Return the packet of a message, with its plain body, as it will be signed."""
        plain = msgspec.structs.replace(new, privacy_level=0, encryption_key=b"")
        position = (0, 0) if delivery == TRANSACTIONAL else None
        return self._composer.compose(plain, 0, route.address, 0, delivery, position, _SINGLE)

    def _check_signature(self, new: NewMessage, route: Route, delivery: int) -> None:
        """Raise Refusal unless the signature is one of this message."""
        from qmd.message_security.algorithms import Unacceptable
        from qmd.message_security.signatures import check_hash, signer_of, verify

        packet = self._trial(new, route, delivery)
        if isinstance(route, LocalQueue):
            checked = self._check(packet)
            fault = "" if checked.message_class is None else checked.detail
        else:
            from qmd.message_security.algorithms import HASHES, Policy

            try:
                check_hash(new.hash_algorithm, Policy(frozenset(HASHES.values()), frozenset()))
                signer = signer_of(new.certificate, self._services.environment.time())
                parts = signed_parts(parse_user_message(packet), SignatureStyle.MSMQ_2)
                is_valid = verify(signer, new.signature, parts, new.hash_algorithm)
                fault = "" if is_valid else "the signature is not of this message"
            except Unacceptable as error:
                fault = error.detail
        if fault:
            raise Refusal(
                "signature_not_valid",
                f"the signature of the message to {new.destination} is not valid: {fault}",
                "Sign it again: its properties, its destination or its delivery have changed.",
            )

    def _check(self, packet: bytes) -> Checked:
        if self._checker is None:
            self._checker = self._make_checker()
        services = self._services
        return self._checker.check(
            parse_user_message(packet), packet, services.loop.time(), services.environment.time()
        )

    def _encrypted(self, new: NewMessage, route: Route) -> NewMessage:
        """Return the message with its body encrypted.  Raises Refusal."""
        from qmd.message_security.algorithms import AES_KEY_BYTES, CIPHERS, PRIVACY_ADVANCED
        from qmd.message_security.encryption import encrypt, new_session_key
        from qmd.message_security.key_cache import SENT_MAX, KeyCache

        algorithm = new.encryption_algorithm or CIPHERS["aes256"]
        if new.privacy_level != PRIVACY_ADVANCED or algorithm not in AES_KEY_BYTES:
            raise Refusal(
                "bad_encryption",
                f"privacy level {new.privacy_level} with algorithm 0x{algorithm:x} is not made"
                " here",
                "Encrypt with AES: level 5, and aes128, aes192 or aes256.",
            )
        names = _receivers(route)
        ring = self._keyring()
        for name in names:
            receiver = ring.receiver(name)
            if receiver is not None:
                break
        else:
            raise Refusal(
                "no_receiver_key",
                f"the key of {' or '.join(names)} is not known, so that no message to"
                f" {new.destination} can be encrypted",
                f"There: qmd key export FILE.  Here: qmd key import {names[0]} FILE",
            )
        if self._session_keys is None:
            self._session_keys = KeyCache(SENT_MAX)
        now = self._services.loop.time()
        mark = (name, algorithm, receiver.public_numbers().n)
        session_key = self._session_keys.get(mark, now)
        if session_key is None:
            session_key = new_session_key(algorithm, receiver)
            self._session_keys.add(mark, session_key, now)
        key, item = session_key
        return msgspec.structs.replace(
            new,
            body=encrypt(new.body, key, algorithm),
            encryption_key=item,
            encryption_algorithm=algorithm,
        )


def _receivers(route: Route) -> list[str]:
    """Return the names under which the key of a destination may be known: its GUID, its host."""
    address = route.address
    if address.queue_manager != NULL_GUID:
        return [guid_text(address.queue_manager)]
    if isinstance(address.value, DirectQueueName):
        _, _, host = plain_text(address.value.name).partition(":")
        return [host.split("\\", 1)[0].lower()]
    return [guid_text(address.value)] if isinstance(address.value, bytes) else [str(route)]
