"""Protection of messages that applications send: their signatures are checked, bodies encrypted.

The application signs, with a key that this queue manager never sees; `signing_parts` returns the
bytes for it.  The body is encrypted here, for the queue manager of the destination, before the
message is stored: it waits encrypted, and relays pass it on as it is.  [MS-MQQB] 3.1.7.1.4, .5
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from protocol import DirectQueueName, parse_user_message, plain_text
from protocol.identifiers import NULL_GUID, guid_text
from protocol.security_marks import sender_text
from protocol.signed_fields import SignatureStyle, signed_parts
from qmd.control_protocol.messages import TRANSACTIONAL, NewMessage
from qmd.errors import Refusal
from qmd.message_security.algorithms import NotCheckable
from qmd.operations.verified_signatures import (
    VerifiedSignatures,
    list_key,
    marked,
    signature_key,
)
from qmd.queues.local_queue import LocalQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from protocol import UserMessage
    from qmd.directory.security_answers import SecurityAnswers
    from qmd.message_security.checking import Checked, Checker
    from qmd.message_security.key_cache import KeyCache
    from qmd.message_security.keyring import Keyring
    from qmd.naming.destinations import Route
    from qmd.naming.fan_out import Several
    from qmd.operations.packet_composer import PacketComposer
    from qmd.operations.send_checks import SendChecks
    from qmd.runtime.services import Services

_SINGLE = 0, True, True  # a transaction of one message, of no number yet


class _Way(NamedTuple):
    """The queues of a message, the delivery of each copy, and their list if there are several."""

    routes: Sequence[Route]
    delivery: int
    several: Several | None

    @property
    def style(self) -> SignatureStyle:
        """The style of its signature: that of MSMQ 3.0 covers the list.  [MS-MQMQ] 2.5.3"""
        return SignatureStyle.MSMQ_2 if self.several is None else SignatureStyle.MSMQ_3


class MessageProtection:
    """Checks signatures and encrypts bodies of messages from applications."""

    def __init__(
        self,
        services: Services,
        checks: SendChecks,
        composer: PacketComposer,
        keyring: Callable[[], Keyring],
        make_checker: Callable[[], Checker],
        answers: SecurityAnswers,
    ) -> None:
        self._services = services
        self._checks = checks
        self._composer = composer
        self._keyring = keyring
        self._make_checker = make_checker
        self._answers = answers
        self._checker: Checker | None = None
        self._session_keys: KeyCache[tuple[bytes, bytes]] | None = None
        self._verified = VerifiedSignatures(lambda: services.loop.time())
        self.checked_count = 0  # messages of which the signature was verified

    def protect(
        self, messages: list[NewMessage], *, in_transaction: bool = False
    ) -> list[NewMessage]:
        """Return the messages as they are to be sent.  Raises Refusal, MustAsk."""
        for new in messages:
            if new.signature or new.privacy_level:
                break
        else:
            return messages
        return [
            self._protected(new, in_transaction) if new.signature or new.privacy_level else new
            for new in messages
        ]

    def signing_parts(self, new: NewMessage, *, in_transaction: bool) -> tuple[bytes, bytes, int]:
        """Return the signed bytes before and after the body of a message, and its delivery.

        Raises Refusal, MustAsk.
        """
        way = self._way(new, in_transaction)
        before, _, after = signed_parts(parse_user_message(self._trial(new, way)), way.style)
        return before, after, way.delivery

    def authenticated(self, packet: bytes) -> bytes:
        """Return the signed packet of a message to a queue of this host, marked as authenticated.

        A packet with a signature that is not valid is returned unmarked.  A signature over a list
        of queues is verified once for all of them: their packets have the same signed bytes.
        """
        message = parse_user_message(packet)
        key = list_key(message)
        if key is not None and self._verified.has(key):
            return marked(message, SignatureStyle.MSMQ_3)
        sender = _sender(message)
        found = None if sender is None else self._answers.last_certificates(sender)
        registered = {} if sender is None or found is None else {sender: found}
        checked = self._run_check(message, packet, registered)
        is_valid = checked is not None and checked.message_class is None and not checked.ask
        if is_valid and checked is not None:
            self._keep_verdict(key, checked)
        return checked.packet if is_valid and checked is not None else packet

    def verified_style(self, new: NewMessage, queue: LocalQueue, delivery: int) -> int:
        """Return the style of a signature that `protect` has verified just now, else 0."""
        key = signature_key(new, queue.id, delivery)
        return int(SignatureStyle.MSMQ_2) if self._verified.has(key) else 0

    def own_keys(self) -> bytes:
        """Return this host's public keys for the directory, MQDSPUBLICKEYS.  Raises Refusal."""
        from qmd.message_security.keyring import BadKey

        try:
            return self._keyring().published()
        except BadKey as error:
            raise Refusal("no_own_key", f"{error}", "Make one: qmd key init") from error

    def _protected(self, new: NewMessage, in_transaction: bool) -> NewMessage:
        way = self._way(new, in_transaction)
        if new.signature:
            self._check_signature(new, way)
        if not new.privacy_level or new.encryption_key:
            return new
        if way.several is not None:
            raise Refusal(
                "several_not_protected",
                f"{new.destination} are several queues, and a message to several is not encrypted",
                "Send a message to each of them.",
            )
        (route,) = way.routes
        if isinstance(route, LocalQueue):  # it does not leave this host
            return msgspec.structs.replace(new, privacy_level=0)
        return self._encrypted(new, route)

    def _way(self, new: NewMessage, in_transaction: bool) -> _Way:
        single = self._checks.way_of(new, in_transaction=in_transaction)
        if single is not None:
            return _Way([single[0]], single[1], None)
        several, routes, delivery = self._checks.copies_of(new, in_transaction=in_transaction)
        return _Way(routes, delivery, several)

    def _trial(self, new: NewMessage, way: _Way, route: Route | None = None) -> bytes:
        """Return the packet of a message, with its plain body, as it will be signed."""
        plain = msgspec.structs.replace(new, privacy_level=0, encryption_key=b"")
        position = (0, 0) if way.delivery == TRANSACTIONAL else None
        return self._composer.compose(
            plain,
            0,
            (route or way.routes[0]).address,
            0,
            way.delivery,
            position,
            _SINGLE,
            way.several.addresses if way.several is not None else (),
        )

    def _check_signature(self, new: NewMessage, way: _Way) -> None:
        """Raise Refusal unless the signature is one of this message."""
        from qmd.message_security.algorithms import Unacceptable

        here = next((each for each in way.routes if isinstance(each, LocalQueue)), None)
        fault = ""
        if here is not None:
            trial = self._trial(new, way, here)
            checked = self._check(trial)
            self._keep_verdict(list_key(parse_user_message(trial)), checked)
            fault = "" if checked.message_class is None else checked.detail
            if _style(checked) == SignatureStyle.MSMQ_2 and not new.encryption_key:
                self._verified.add(signature_key(new, here.id, way.delivery))
        if not fault and any(not isinstance(each, LocalQueue) for each in way.routes):
            try:
                fault = self._signature_fault(new, way)
            except Unacceptable as error:
                fault = error.detail
        if fault:
            raise Refusal(
                "signature_not_valid",
                f"the signature of the message to {new.destination} is not valid: {fault}",
                "Sign it again: its properties, its destination or its delivery have changed.",
            )

    def _keep_verdict(self, key: bytes | None, checked: Checked) -> None:
        """Remember that a signature over a list of queues is valid."""
        if key is not None and _style(checked) == SignatureStyle.MSMQ_3:
            self._verified.add(key)

    def _signature_fault(self, new: NewMessage, way: _Way) -> str:
        """Return why a signature is not one of a message to other hosts, or "".

        They decide which certificates and hashes they accept.  Raises Unacceptable.
        """
        from qmd.message_security.algorithms import HASHES, Policy
        from qmd.message_security.signatures import check_hash, signer_of, verify

        check_hash(new.hash_algorithm, Policy(frozenset(HASHES.values()), frozenset()))
        signer = signer_of(new.certificate, self._services.environment.time())
        parts = signed_parts(parse_user_message(self._trial(new, way)), way.style)
        is_valid = verify(signer, new.signature, parts, new.hash_algorithm)
        return "" if is_valid else "the signature is not of this message"

    def _check(self, packet: bytes) -> Checked:
        """Check a signed packet.  Raises Refusal, MustAsk."""
        message = parse_user_message(packet)
        checked = self._run_check(message, packet, {})
        if checked is not None and checked.ask:
            registered = {checked.ask: self._answers.certificates(checked.ask)}
            checked = self._run_check(message, packet, registered)
        if checked is None:
            raise Refusal(
                "signature_not_valid",
                "signatures cannot be verified now: the files of [message_security] are not"
                " readable, or a revocation list is too old",
                "Renew the files.",
            )
        return checked

    def _run_check(
        self, message: UserMessage, packet: bytes, registered: Mapping[str, frozenset[str]]
    ) -> Checked | None:
        """Check a signed packet; None: files of this host make that impossible now."""
        if self._checker is None:
            self._checker = self._make_checker()
        now, wall_s = self._services.loop.time(), self._services.environment.time()
        self.checked_count += 1
        try:
            return self._checker.check(message, packet, now, wall_s, registered)
        except NotCheckable as error:
            self._services.log_limited("messages_not_checked", "here", reason=str(error))
            return None

    def _published_key(self, name: str) -> bytes:
        """Return MQDSPUBLICKEYS of a queue manager that the directory has, or b"".

        Raises Refusal, MustAsk.
        """
        return b"" if _is_address(name) else self._answers.encryption_keys(name)

    def _encrypted(self, new: NewMessage, route: Route) -> NewMessage:
        """Return the message with its body encrypted.  Raises Refusal."""
        from qmd.message_security.algorithms import AES_KEY_BYTES, CIPHERS, PRIVACY_ADVANCED
        from qmd.message_security.encryption import encrypt, new_session_key
        from qmd.message_security.key_cache import SENT_MAX, KeyCache
        from qmd.message_security.keyring import BadKey, known_receiver_key

        algorithm = new.encryption_algorithm or CIPHERS["aes256"]
        if new.privacy_level != PRIVACY_ADVANCED or algorithm not in AES_KEY_BYTES:
            raise Refusal(
                "bad_encryption",
                f"privacy level {new.privacy_level} with algorithm 0x{algorithm:x} is not made"
                " here",
                "Encrypt with AES: level 5, and aes128, aes192 or aes256.",
            )
        name = _receiver(route)
        receiver = self._keyring().receiver(name)
        if receiver is None and (published := self._published_key(name)):
            try:
                receiver = known_receiver_key(published)
            except BadKey as error:
                raise Refusal(
                    "no_receiver_key",
                    f"the key of {name} in the directory cannot be used: {error}",
                    "Publish another one there, or import one here: qmd key import.",
                ) from error
        if receiver is None:
            raise Refusal(
                "no_receiver_key",
                f"the key of {name} is not known, so that no message to {new.destination} can be"
                " encrypted",
                "There: qmd key publish, or qmd key export FILE.  Then here:"
                f" qmd key import {name} FILE",
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


def _style(checked: Checked) -> int:
    """Return the style of the signature of a checked message, 0 if it is not authenticated."""
    header = checked.message.security
    is_valid = checked.is_authenticated and header is not None
    return header.flags.signature_type if is_valid and header is not None else 0


def _receiver(route: Route) -> str:
    """Return the name under which the key of a destination may be known: its GUID, or its host."""
    address = route.address
    if address.queue_manager != NULL_GUID:
        return guid_text(address.queue_manager)
    if isinstance(address.value, DirectQueueName):
        _, _, host = plain_text(address.value.name).partition(":")
        return host.split("\\", 1)[0].lower()
    return guid_text(address.value) if isinstance(address.value, bytes) else str(route)


def _is_address(name: str) -> bool:
    """Return whether the host of a direct name is an address, of which no directory has keys."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _sender(message: UserMessage) -> str | None:
    return None if message.security is None else sender_text(message.security)
