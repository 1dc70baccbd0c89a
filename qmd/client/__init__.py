"""The client library: used by applications, the command line and pipelines.

    from qmd.client import connect

Read `queue_manager.py` first: it has the verbs. `blocking.py` is the same client without `await`,
and `errors.py` lists the errors.
"""

from qmd.bodies.errors import UnreadableBody
from qmd.client.ambient import current_transaction, no_transaction
from qmd.client.choice import chosen
from qmd.client.errors import (
    AccessDenied,
    BadName,
    BadRequest,
    ClientError,
    DirectoryFailed,
    DiskFull,
    LockLost,
    LoginRefused,
    MessageTaken,
    NoSuchMessage,
    NoSuchQueue,
    NotConnected,
    NotHandedOver,
    NotTaken,
    OutcomeUnknown,
    OverQuota,
    QueueExists,
    QueueManagerError,
    ReadOnly,
    Stopping,
    TooLarge,
    TransactionAborted,
    TransactionDoomed,
    WrongDelivery,
)
from qmd.client.locked import Locked
from qmd.client.message import Message, SequencePosition
from qmd.client.new_message import Acknowledge, Properties, new_message
from qmd.client.queue import Cursor, Queue
from qmd.client.queue_manager import Moved, QueueManager, connect
from qmd.client.receiver import Taken
from qmd.client.sender import Sender
from qmd.client.sent_id import SentId, copies_of
from qmd.client.signing import Signer
from qmd.client.transaction import Transaction
from qmd.client.two_phase import Database
from qmd.control_protocol.messages import UNLIMITED, Choice, RetryProperties

__all__ = [
    "UNLIMITED",
    "AccessDenied",
    "Acknowledge",
    "BadName",
    "BadRequest",
    "Choice",
    "ClientError",
    "Cursor",
    "Database",
    "DirectoryFailed",
    "DiskFull",
    "LockLost",
    "Locked",
    "LoginRefused",
    "Message",
    "MessageTaken",
    "Moved",
    "NoSuchMessage",
    "NoSuchQueue",
    "NotConnected",
    "NotHandedOver",
    "NotTaken",
    "OutcomeUnknown",
    "OverQuota",
    "Properties",
    "Queue",
    "QueueExists",
    "QueueManager",
    "QueueManagerError",
    "ReadOnly",
    "RetryProperties",
    "Sender",
    "SentId",
    "SequencePosition",
    "Signer",
    "Stopping",
    "Taken",
    "TooLarge",
    "Transaction",
    "TransactionAborted",
    "TransactionDoomed",
    "UnreadableBody",
    "WrongDelivery",
    "chosen",
    "connect",
    "copies_of",
    "current_transaction",
    "new_message",
    "no_transaction",
]
