"""What can go wrong between an application and the queue manager.

    ClientError
    ├── QueueManagerError    the queue manager refused; nothing of the request was done
    │   ├── BadRequest  BadName  NoSuchQueue  QueueExists  WrongDelivery
    │   ├── AccessDenied  OverQuota  TooLarge  DiskFull  ReadOnly
    │   ├── NoSuchMessage  MessageTaken
    │   ├── NotTaken  Stopping
    │   ├── TransactionAborted
    │   │   └── TransactionDoomed
    │   └── DirectoryFailed
    ├── NotConnected         nobody answers; nothing of the request was done
    │   └── LoginRefused     another release, or a token that is not known there
    ├── OutcomeUnknown       the connection broke while a change was under way
    └── NotHandedOver        closed while received messages were still waiting to be read

Every text says what happened and why; `remedy`, where there is one, what to do; `code` stands for
one cause, and `id` is its name for people ("QM-1201", see `qmd explain` and docs/errors.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.catalogue import find_by_code, id_of
from qmd.control_protocol import messages as frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qmd.client.message import Message


class ClientError(Exception):
    """The root; `str()` is the text and the remedy in one line."""

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
        """As "QM-1201"; empty where a daemon of another release gave none."""
        return self._id or id_of(self.code)

    def __str__(self) -> str:
        if not self.remedy:
            return self.text
        return f"{self.text.rstrip('.')}; {_continued(self.remedy)}"


def _continued(sentence: str) -> str:
    """A sentence as it goes on behind a semicolon; a name that it begins with stays as it is."""
    return sentence[0].lower() + sentence[1:] if sentence[1:2].islower() else sentence


class QueueManagerError(ClientError):
    """A refusal.  Its class is a family of causes, its `code` the very one (`qmd.catalogue`)."""

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
    """A transactional message for a queue that is not, or the other way round."""

    code = "wrong_delivery"


class AccessDenied(QueueManagerError):
    code = "access_denied"


class OverQuota(QueueManagerError):
    """There is no room; `code` says where: "queue_full", "computer_full", "express_full"..."""

    code = "over_quota"


class TooLarge(QueueManagerError):
    code = "too_large"


class DiskFull(QueueManagerError):
    code = "disk_full"


class ReadOnly(QueueManagerError):
    code = "read_only"


class NoSuchMessage(QueueManagerError):
    """A message that was named is not in that queue, or not any more."""

    code = "no_such_message"


class MessageTaken(QueueManagerError):
    """A message that was named has been taken by an application, which may remove it."""

    code = "message_taken"


class NotTaken(QueueManagerError):
    """A message to be settled is not (or no longer) taken by this connection."""

    code = "not_taken"


class Stopping(QueueManagerError):
    """The daemon is about to end; the next one will answer."""

    code = "stopping"


class TransactionAborted(QueueManagerError):
    """Nothing of the transaction was done, and never will be: its work can be done again."""

    code = "transaction_aborted"


class TransactionDoomed(TransactionAborted):
    """A send in the transaction failed, so it cannot be committed.

    `__cause__` is the error of the first send that failed, where this client made it.
    """

    code = "transaction_doomed"


class DirectoryFailed(QueueManagerError):
    """The directory is away, or will not do it; `code` says which.  What it has not got is
    NoSuchQueue."""

    code = "directory"


class NotConnected(ClientError):
    """Nobody answers at the control socket.  The request was not done."""


class LoginRefused(NotConnected):
    """The daemon answers, and does not let this client in."""


class OutcomeUnknown(ClientError):
    """The connection broke while a change was under way: it was done, or it was not.

    `safe_to_retry`: doing it again does no harm even if it was done before.
    `token`: where the request had one, `QueueManager.outcome(token)` tells later.
    `messages`: of a removal, those that are the application's own if it was done.
    """

    def __init__(self, text: str, *, safe_to_retry: bool, token: bytes = b"") -> None:
        super().__init__(
            text,
            "it can safely be repeated"
            if safe_to_retry
            else "ask for its outcome, or look into the queue, before repeating it",
            code="outcome_unknown",
        )
        self.safe_to_retry = safe_to_retry
        self.token = token
        self.messages: Sequence[Message] = ()


class NotHandedOver(ClientError):
    """`messages` were removed from their queue, but the application never read them."""

    def __init__(self, messages: Sequence[Message]) -> None:
        super().__init__(
            f"{len(messages)} received messages were not read before the connection was closed",
            "they are in the `messages` of this error; read to the end, or use smaller batches",
            code="not_handed_over",
        )
        self.messages = messages


_BY_FAMILY = {kind.code: kind for kind in QueueManagerError.__subclasses__()}


def refusal(reply: frames.Refused) -> QueueManagerError:
    """The error that `reply` stands for; an unknown code is a plain QueueManagerError."""
    entry = find_by_code(reply.code)
    family = entry.family if entry is not None and entry.family else reply.code
    kind = _BY_FAMILY.get(family, QueueManagerError)
    if reply.code == TransactionDoomed.code:
        kind = TransactionDoomed
    return kind(reply.text, reply.remedy, code=reply.code, id=reply.id)
