"""The ambient transaction: the block `async with qm.transaction()` in which code runs.

It is kept in a context variable: tasks that are started within the block inherit it, and other
threads do not.  A transaction belongs to one client: verbs of another client do not see it.

    joined          returns the transaction that a verb takes part in
    refuse_inside   refuses a verb that cannot take part in a transaction
    no_transaction  runs a block outside of the transaction
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qmd.client.errors import BadRequest, ClientError

if TYPE_CHECKING:
    from qmd.client.caller import Caller
    from qmd.client.transaction import Transaction


@dataclass(slots=True, eq=False)
class Block:
    """A block `async with qm.transaction()` that has begun."""

    transaction: Transaction
    caller: Caller  # the caller of the client that began it
    outer: Block | None


_current: ContextVar[Block | None] = ContextVar("qmd_transaction", default=None)


def current_transaction() -> Transaction | None:
    """Return the innermost transaction block, of any client, in which this code runs, or None."""
    block = _current.get()
    return None if block is None else block.transaction


@contextlib.contextmanager
def no_transaction() -> Iterator[None]:
    """Run the block outside of any transaction: its sends and receives take effect at once."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def enter(transaction: Transaction, caller: Caller) -> Block:
    """Make the transaction the ambient one of this context, and return its block."""
    block = Block(transaction, caller, _current.get())
    _current.set(block)
    return block


def leave(block: Block) -> None:
    """Remove a block that has ended from this context.

    Blocks may end in any order, and in another context than the one in which they began.  That
    other context keeps the block; `joined` notices there that the transaction has ended.
    """
    innermost = _current.get()
    if innermost is block:
        _current.set(block.outer)
        return
    while innermost is not None:
        if innermost.outer is block:
            innermost.outer = block.outer
            return
        innermost = innermost.outer


def joined(caller: Caller) -> Transaction | None:
    """Return the innermost ambient transaction of a client, or None.

    Raises ClientError (transaction_over) when the transaction has ended and its block has not, or
    when this task was started in the block and has outlived it.
    """
    block = _current.get()
    while block is not None and block.caller is not caller:
        block = block.outer
    if block is None:
        return None
    if block.transaction.is_over:
        raise ClientError(
            "the transaction that this code was started in has ended, and accepts no more work",
            "do this after the block of the transaction, or wrap it in `with no_transaction()` "
            "to keep it out of the transaction",
            code="transaction_over",
        )
    return block.transaction


def refuse_inside(caller: Caller, verb: str, instead: str = "") -> None:
    """Raise BadRequest (not_part_of_a_transaction) inside a transaction of the client.

    `instead`: a sentence that names the replacement for `verb` within a transaction.
    """
    if joined(caller) is not None:
        raise BadRequest(
            f"{verb} takes effect at once, and cannot be part of the transaction in which it is "
            "called",
            f"{instead or 'Do it after the transaction'}, or wrap it in `with no_transaction()` "
            "to keep it out of the transaction",
            code="not_part_of_a_transaction",
        )
