"""The ambient transaction: the block `async with qm.transaction()` that code runs in.

It is kept in a context variable, so tasks that are started within the block inherit it, and other
threads do not.  A transaction belongs to one client: verbs of another client do not see it.

    joined          the transaction that a verb is to be part of
    refuse_inside   for a verb that cannot be part of one
    no_transaction  the way out
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
    """One `async with qm.transaction()` that has begun."""

    transaction: Transaction
    caller: Caller  # of its client
    outer: Block | None


_current: ContextVar[Block | None] = ContextVar("qmd_transaction", default=None)


def current_transaction() -> Transaction | None:
    """The innermost `async with qm.transaction()` that this code is in, of any client."""
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
    """Make it the ambient one of this context."""
    block = Block(transaction, caller, _current.get())
    _current.set(block)
    return block


def leave(block: Block) -> None:
    """The block has ended.  Blocks may end in any order, and in another context than they began:
    that one keeps the block, and `joined` notices that its transaction has ended."""
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
    """The innermost ambient transaction of a client.

    Raises ClientError (transaction_over) when it has ended and its block has not, or this task was
    started in it and has outlived it.
    """
    block = _current.get()
    while block is not None and block.caller is not caller:
        block = block.outer
    if block is None:
        return None
    if block.transaction.is_over:
        raise ClientError(
            "the transaction that this code was begun in has ended, and nothing can be part of it"
            " any more",
            "do this behind the block of the transaction, or say by `with no_transaction()` that it"
            " is no part of it",
            code="transaction_over",
        )
    return block.transaction


def refuse_inside(caller: Caller, verb: str, instead: str = "") -> None:
    """Raises BadRequest (not_part_of_a_transaction) inside a transaction of the client.

    `instead`: what the transaction has in place of `verb`.
    """
    if joined(caller) is not None:
        raise BadRequest(
            f"{verb} takes effect at once, and cannot be part of the transaction that it is called"
            " in",
            f"{instead or 'Do it behind the transaction'}, or say by `with no_transaction()` that"
            " it is no part of it",
            code="not_part_of_a_transaction",
        )
