"""Errors between an application and the queue manager.

    ClientError
    ├── QueueManagerError    the queue manager refused; nothing of the request was done
    │   ├── BadRequest  BadName  NoSuchQueue  QueueExists  WrongDelivery
    │   ├── AccessDenied  OverQuota  TooLarge  DiskFull  ReadOnly
    │   ├── NoSuchMessage  MessageTaken
    │   ├── NotTaken  Stopping
    │   ├── TransactionAborted
    │   │   └── TransactionDoomed
    │   └── DirectoryFailed
    ├── NotConnected         the daemon does not answer; nothing of the request was done
    │   └── LoginRefused     another release, or a token that the daemon does not know
    ├── OutcomeUnknown       the connection broke while a change was under way
    └── NotHandedOver        closed while received messages were still waiting to be read

Every text says what happened and why; `remedy`, where there is one, says what to do; `code` stands
for one cause, and `id` is its name for readers ("QM-1201", see `qmd explain` and docs/errors.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.catalogue import find_by_code, id_of
from qmd.control_protocol import messages as frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qmd.client.message import Message


class ClientError(Exception):
    """The base class of all errors; `str()` is the text and the remedy in one line."""

    code = ""

    def __init__(self, text: str, remedy: str = "", *, code: str = "", id: str = "") -> None:
        super().__init__(text, remedy)
        self.text = text
        self.remedy = remedy
        if code:
            self.code = code
        self._id = id

    @property
    def id(self) -> str:
        """Return the id, such as "QM-1201"; empty when a daemon of another release gave none."""
        return self._id or id_of(self.code)

    def __str__(self) -> str:
        if not self.remedy:
            return self.text
        return f"{self.text.rstrip('.')}; {_continued(self.remedy)}"


def _continued(sentence: str) -> str:
    """Return a sentence as it continues after a semicolon; a leading name keeps its capitals."""
    return sentence[0].lower() + sentence[1:] if sentence[1:2].islower() else sentence


class QueueManagerError(ClientError):
    """A refusal.  Its class is a family of causes, its `code` the exact one (`qmd.catalogue`)."""

    code = "refused"


class BadRequest(QueueManagerError):
    code = "bad_request"


class BadName(QueueManagerError):
    code = "bad_name"


class NoSuchQueue(QueueManagerError):
    code = "no_such_queue"


class QueueExists(QueueManagerError):
    code = "queue_exists"


class WrongDelivery(QueueManagerError):
    """A transactional message for a non-transactional queue, or the reverse."""

    code = "wrong_delivery"


class AccessDenied(QueueManagerError):
    code = "access_denied"


class OverQuota(QueueManagerError):
    """A quota is used up; `code` says which: "queue_full", "computer_full", "express_full"..."""

    code = "over_quota"


class TooLarge(QueueManagerError):
    code = "too_large"


class DiskFull(QueueManagerError):
    code = "disk_full"


class ReadOnly(QueueManagerError):
    code = "read_only"


class NoSuchMessage(QueueManagerError):
    """A named message is not, or no longer, in that queue."""

    code = "no_such_message"


class MessageTaken(QueueManagerError):
    """A named message has been taken by an application, which may remove it."""

    code = "message_taken"


class NotTaken(QueueManagerError):
    """A message to be settled is not (or no longer) taken by this connection."""

    code = "not_taken"


class LockLost(QueueManagerError):
    """The messages of a lock were settled before, or they are in their queue again."""

    code = "lock_lost"


class Stopping(QueueManagerError):
    """The daemon is about to end; the next daemon will answer."""

    code = "stopping"


class TransactionAborted(QueueManagerError):
    """Nothing of the transaction was done or will be done: its work can be repeated."""

    code = "transaction_aborted"


class TransactionDoomed(TransactionAborted):
    """A send in the transaction failed, so it cannot be committed.

    `__cause__` is the error of the first send that failed, if this client made that send.
    """

    code = "transaction_doomed"


class DirectoryFailed(QueueManagerError):
    """The directory is unavailable or refuses; `code` says which.

    A missing entry raises NoSuchQueue instead.
    """

    code = "directory"


class NotConnected(ClientError):
    """The daemon does not answer at its address.  The request was not done."""


class LoginRefused(NotConnected):
    """The daemon answers and refuses this client."""


class OutcomeUnknown(ClientError):
    """The connection broke while a change was under way, which may or may not have been done.

    `safe_to_retry`: repeating the change does no harm even if it was done before.
    `token`: if the request had one, `QueueManager.outcome(token)` returns the outcome later.
    `messages`: of a removal, the messages that belong to the application if it was done.
    """

    def __init__(self, text: str, *, safe_to_retry: bool, token: bytes = b"") -> None:
        super().__init__(
            text,
            "it can be repeated safely"
            if safe_to_retry
            else "ask for its outcome, or inspect the queue, before repeating it",
            code="outcome_unknown",
        )
        self.safe_to_retry = safe_to_retry
        self.token = token
        self.messages: Sequence[Message] = ()


class NotHandedOver(ClientError):
    """`messages` were removed from their queue and never read by the application."""

    def __init__(self, messages: Sequence[Message]) -> None:
        super().__init__(
            f"the connection was closed before {len(messages)} received messages were read",
            "they are in the `messages` of this error; read to the end, or use smaller batches",
            code="not_handed_over",
        )
        self.messages = messages


_BY_FAMILY = {kind.code: kind for kind in QueueManagerError.__subclasses__()}


def refusal(reply: frames.Refused) -> QueueManagerError:
    """Return the error that `reply` stands for; an unknown code gives a plain QueueManagerError."""
    entry = find_by_code(reply.code)
    family = entry.family if entry is not None and entry.family else reply.code
    kind = _BY_FAMILY.get(family, QueueManagerError)
    if reply.code == TransactionDoomed.code:
        kind = TransactionDoomed
    return kind(reply.text, reply.remedy, code=reply.code, id=reply.id)
