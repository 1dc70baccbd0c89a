"""Requests of transactions: begin, settle, commit, abort, and branches of databases."""

from __future__ import annotations

from qmd.control_protocol.messages import (
    LookupIds,
    Request,
    RetryProperties,
    TransactionId,
    add_verbs,
)


class Begin(Request, tag="begin", frozen=True):
    """Begin a transaction of this connection; the caller chooses its id.

    It is aborted after `idle_s` seconds without a request for it (0: the daemon's limit).
    """

    transaction: TransactionId
    idle_s: float = 0.0


class Settle(Request, tag="settle", frozen=True):
    """Set how the transaction's commit settles messages that it received. -> their number

    Instead of removing the messages, the commit moves them to the queue `target` or, without one,
    rejects them; the history of each records the reason.
    """

    transaction: TransactionId
    queue: str
    lookup_ids: LookupIds
    target: str = ""
    reason: str = ""


class Commit(Request, tag="commit", frozen=True):
    """Commit everything of the transaction atomically. -> [message id of each sent message, ...]

    Later, `Outcome` with its id returns the same, or None: nothing of it was executed, and never
    will be.
    """

    transaction: TransactionId


class Abort(Request, tag="abort", frozen=True):
    """Abort the transaction. -> how many messages went back to their queues

    `unread`: the application has not looked at the received messages, so this is no failed attempt:
    their abort counts stay unchanged. `retry` replaces the retry policies of their queues.
    """

    transaction: TransactionId
    reason: str = ""
    unread: bool = False
    retry: RetryProperties | None = None


class Enlist(Request, tag="enlist", frozen=True):
    """Register a database, under a permanent name, that is about to join the transaction."""

    transaction: TransactionId
    resource: str


class ForgetBranch(Request, tag="forget_branch", frozen=True):
    """Forget a branch after its database has committed or rolled back as decided.

    -> 1, or 0: it was forgotten before
    """

    transaction: TransactionId
    resource: str


class ListBranches(Request, tag="list_branches", frozen=True):
    """List the branches of databases that may not know the decision.

    -> [{transaction, resource, decision, age_s}, ...]
    """


class ListTransactions(Request, tag="list_transactions", frozen=True):
    """List the transactions in progress.

    -> [{transaction, age_s, idle_s, sent, received, ...}, ...]
    """


TransactionRequest = (
    Begin | Settle | Commit | Abort | Enlist | ForgetBranch | ListBranches | ListTransactions
)

add_verbs(TransactionRequest)
