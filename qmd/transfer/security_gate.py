"""The gate before acceptance: messages wait until their signatures and bodies are checked.

    received ──► a SecurityHeader? ──no──► decide
                        │ yes
                        └──► held ──► (another thread: verify, decrypt) ──► decide
                                              │ ▲
                                    the directory has to be asked for the
                                    certificates of a sender: others go on

The operations take up to some milliseconds, so that they run in another thread: one at a time, the
hosts in turn.  A session with held messages is not read.  All its messages keep their order, and
none of them is acknowledged before it is decided about.  Messages of a session that ends are
dropped: its peer sends them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from protocol.message_class import MessageClass
from protocol.security_marks import sender_text
from qmd.message_security.algorithms import NotCheckable
from qmd.transfer.decision import Decision, no_room, refused

if TYPE_CHECKING:
    import asyncio

    from protocol import UserMessage
    from qmd.config.settings import MessageSecuritySettings
    from qmd.core.session import MessageReceived
    from qmd.core.session_events import Received
    from qmd.directory.security_answers import SecurityAnswers
    from qmd.message_security.checking import Checked, Checker
    from qmd.message_security.keyring import Keyring
    from qmd.peers.connection import PeerConnection
    from qmd.queues.local_queue import LocalQueue
    from qmd.runtime.services import Services
    from qmd.transfer.local_destinations import LocalDestinations

CheckedMessages = Mapping[int, "Checked"]
"""The results of checks, by the index of the message among those of its turn."""

NOT_CHECKED: CheckedMessages = MappingProxyType({})
ASKING_MAX = 8  # sessions that wait for the directory at a time, each of another host


class SecurityGate:
    """Holds messages of sessions until they are checked."""

    def __init__(
        self,
        services: Services,
        local_destinations: LocalDestinations,
        keyring: Callable[[], Keyring],
        answers: SecurityAnswers,
    ) -> None:
        """`keyring` returns the keys of this host; it is called in another thread.  `answers` has
        the certificates of senders that are in the directory."""
        self._services = services
        self._local_destinations = local_destinations
        self._keyring = keyring
        self._checker: Checker | None = None  # made at the first use
        self._held: dict[PeerConnection, deque[list[MessageReceived]]] = {}
        self._turns: dict[str, deque[PeerConnection]] = {}  # sessions that wait, by host
        self._works = False
        self._answers = answers
        self._asking: set[str] = set()  # hosts with a session that waits for the directory
        self._to_ask: dict[PeerConnection, list[str]] = {}  # in turn, until there is room
        self.checked_count = 0

    def connect(
        self,
        take: Callable[[PeerConnection, list[MessageReceived], CheckedMessages], None],
    ) -> None:
        """Name the function that takes over checked messages."""
        self._take = take

    def must_hold(self, connection: PeerConnection, messages: Sequence[Received]) -> bool:
        """Return whether messages have to wait: one of them needs a check, or others wait."""
        if self._held and connection in self._held:
            return True
        return any(message.security is not None for message, _, _ in messages)

    def holds(self, connection: PeerConnection) -> bool:
        """Return whether messages of a session wait."""
        return connection in self._held

    def hold(self, connection: PeerConnection, messages: list[MessageReceived]) -> None:
        """Hold messages of a session, which the caller reads no further."""
        waiting = self._held.get(connection)
        if waiting is None:
            self._held[connection] = deque([messages])
            self._turns.setdefault(connection.host, deque()).append(connection)
        else:
            waiting.append(messages)
        self._go_on()

    def _go_on(self) -> None:
        """Start the next check, unless one runs."""
        while not self._works and self._turns:
            host, sessions = next(iter(self._turns.items()))
            del self._turns[host]  # the host is the last one from now on
            connection = sessions.popleft()
            if sessions:
                self._turns[host] = sessions
            if not connection.is_open:
                del self._held[connection]
                continue
            # The batch stays in its place until it is taken, so that later ones wait behind it.
            self._start(connection, self._held[connection][0])

    def _start(self, connection: PeerConnection, messages: list[MessageReceived]) -> None:
        """Check the messages for queues of this host in another thread."""
        find = self._local_destinations.find
        own = [
            (index, each.message, each.packet)
            for index, each in enumerate(messages)
            if each.message.security is not None and find(each.message) is not None
        ]
        if not own:  # they are for other hosts, which check them
            self._services.loop.call_soon(self._finish, connection, messages, NOT_CHECKED)
            self._works = True
            return
        self._works = True
        self.checked_count += len(own)
        settings = self._services.settings.message_security
        now, wall_s = self._services.loop.time(), self._services.environment.time()
        has_directory, host = self._answers.can_ask, connection.host
        registered = self._registered([message for _, message, _ in own])

        def check() -> CheckedMessages:
            if self._checker is None:
                self._checker = make_checker(settings, self._keyring, has_directory=has_directory)
            checker = self._checker
            return {
                index: checker.check(message, packet, now, wall_s, registered, host)
                for index, message, packet in own
            }

        future = self._services.environment.aside(self._services.loop, check)
        future.add_done_callback(partial(self._done, connection, messages))

    def _done(
        self,
        connection: PeerConnection,
        messages: list[MessageReceived],
        future: asyncio.Future[CheckedMessages],
    ) -> None:
        if future.cancelled():  # the daemon is stopping
            return
        error = future.exception()
        if error is None:
            senders = list(dict.fromkeys(each.ask for each in future.result().values() if each.ask))
            if not senders:
                self._finish(connection, messages, future.result())
                return
            self._works = False
            self._to_ask[connection] = senders
            self._ask()
        else:
            self._works = False
            self._end(connection, str(error) or "its messages could not be checked")
            if not isinstance(error, NotCheckable):
                self._services.loop.call_exception_handler(
                    {"message": "a check of messages failed", "exception": error}
                )
        self._go_on()

    def _end(self, connection: PeerConnection, reason: str) -> None:
        """End a session with messages about which nothing can be decided: its peer sends them
        again."""
        self._held.pop(connection, None)
        if connection.is_open:
            self._services.log_limited("messages_not_checked", connection.host, reason=reason)
            connection.drop(reason)

    # The directory.

    def _registered(self, messages: list[UserMessage]) -> dict[str, frozenset[str]]:
        """Return the certificates of the senders of messages that were looked up."""
        registered = {}
        if self._answers.can_ask:
            for message in messages:
                header = message.security
                sender = sender_text(header) if header is not None else None
                found = None if sender is None else self._answers.known_certificates(sender)
                if sender is not None and found is not None:
                    registered[sender] = found
        return registered

    def _ask(self) -> None:
        """Ask the directory for the sessions that wait, one of each host at a time."""
        for connection, senders in list(self._to_ask.items()):
            if len(self._asking) >= ASKING_MAX:
                return
            if connection.host in self._asking:
                continue
            del self._to_ask[connection]
            self._asking.add(connection.host)
            task = self._services.loop.create_task(self._look_up(senders))
            task.add_done_callback(partial(self._asked, connection))

    async def _look_up(self, senders: list[str]) -> str:
        """Look up the certificates of senders; return why that failed, or ""."""
        for sender in senders:
            await self._answers.fetch_certificates(sender)
            if self._answers.known_certificates(sender) is None:
                return f"the directory cannot be asked for the certificates of {sender}"
        return ""

    def _asked(self, connection: PeerConnection, task: asyncio.Task[str]) -> None:
        """Check the messages of a session again, with the answers of the directory."""
        self._asking.discard(connection.host)
        if task.cancelled():  # the daemon is stopping
            return
        if failure := task.result():
            self._end(connection, failure)
        elif connection in self._held:
            self._turns.setdefault(connection.host, deque()).append(connection)
        self._ask()
        self._go_on()

    def _finish(
        self,
        connection: PeerConnection,
        messages: list[MessageReceived],
        checked: CheckedMessages,
    ) -> None:
        """Pass messages on after their check, and start the next one."""
        self._works = False
        waiting = self._held[connection]
        if not connection.is_open:
            del self._held[connection]
        else:
            waiting.popleft()
            if waiting:
                self._turns.setdefault(connection.host, deque()).append(connection)
            else:
                del self._held[connection]
            self._take(connection, messages, checked)
        self._go_on()


def make_checker(
    settings: MessageSecuritySettings, keyring: Callable[[], Keyring], *, has_directory: bool
) -> Checker:
    """Make a checker; its library takes 30 ms to load."""
    from qmd.message_security.algorithms import CIPHERS, HASHES, Policy
    from qmd.message_security.checking import Checker
    from qmd.message_security.key_cache import RECEIVED_MAX, KeyCache

    policy = Policy(
        frozenset(HASHES[name] for name in settings.hash_algorithms),
        frozenset(CIPHERS[name] for name in settings.encryption_algorithms),
    )
    cache: KeyCache[bytes] = KeyCache(RECEIVED_MAX)
    trust = None
    if settings.authorities is not None:
        from qmd.message_security.authorities import Authorities

        trust = Authorities(settings.authorities, settings.revoked)
    return Checker(
        keyring(),
        policy,
        cache,
        old_signatures=settings.msmq_1_signatures,
        trust=trust,
        has_directory=has_directory,
    )


def security_refusal(
    queue: LocalQueue, message: UserMessage, checked: Checked | None
) -> Decision | None:
    """Return the refusal of a message by its signature or its encryption, or None.

    `checked` is None for a message without a SecurityHeader.
    """
    if checked is None:
        if message.security is not None:  # it was not checked for this queue
            return no_room("a queue was made while its message waited")
        authenticated = encrypted = False
    elif checked.message_class is not None:
        return refused(checked.message_class, queue, detail=checked.detail)
    else:
        authenticated, encrypted = checked.is_authenticated, checked.was_encrypted
    if queue.authenticate and not authenticated:
        bad_signature = MessageClass.NACK_BAD_SIGNATURE
        return refused(bad_signature, queue, detail="the queue takes signed messages only")
    if queue.privacy != "optional" and encrypted != (queue.privacy == "body"):
        taken = "no encrypted" if encrypted else "only encrypted"
        return refused(
            MessageClass.NACK_BAD_ENCRYPTION, queue, detail=f"the queue takes {taken} messages"
        )
    return None
