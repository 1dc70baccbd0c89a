"""Plans: what an action would do, the command that does the same, and the work in pieces."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from qmd.client import QueueManager
from qmd.console.choices import Form
from qmd.console.jobs import Progress, Undo, Work
from qmd.console.roles import Role
from qmd.control_protocol.messages import Piece

PIECE_MESSAGES = 1000
PREVIEW_S = 3.0  # after which the number of messages is "at least"
PREVIEW_PIECE = 5000

Verb = Callable[[QueueManager], Awaitable[Any]]


@dataclass(frozen=True)
class Forecast:
    """The result of a dry run."""

    messages: int
    bytes: int
    skipped: int
    is_complete: bool


@dataclass
class Plan:
    """An action with the fields of a form: nothing has happened yet."""

    sentence: str
    command: list[str]  # without its beginning, which depends on the host
    fields: list[tuple[str, str]]  # of the form that confirms it
    work: Work
    forecast: Callable[[QueueManager], Awaitable[Forecast]] | None = None
    undo: Undo | None = None
    is_many: bool = False  # it runs as a job
    warning: str = ""
    refine: list[tuple[str, str, str]] = field(default_factory=list)  # name, heading, value


@dataclass(frozen=True)
class Action:
    """One kind of action."""

    name: str
    title: str
    role: Role
    plan: Callable[[Form], Plan]


def asked(verb: Verb) -> Work:
    """Return the work of one request."""

    async def work(qm: QueueManager, progress: Progress) -> None:
        await verb(qm)

    return work


async def in_pieces(
    progress: Progress, size: int, do: Callable[[Piece, bytes], Awaitable[Any]]
) -> bool:
    """Repeat `do` for consecutive pieces until the end; return False if it was stopped before."""
    start: int | None = 0
    until = 0
    while start is not None:
        if progress.must_stop:
            return False
        done = await do(Piece(size, start, until), os.urandom(16))
        progress.add(done)
        start, until = done["next"], done["until"]
    return True


async def dry_run(do: Callable[[Piece, bytes], Awaitable[Any]]) -> Forecast:
    """Return what `do` would do, or the part of it that some seconds show."""
    progress = Progress()
    until = time.monotonic() + PREVIEW_S

    async def one_piece(piece: Piece, token: bytes) -> Any:
        done = await do(piece, token)
        progress.must_stop = time.monotonic() > until
        return done

    complete = await in_pieces(progress, PREVIEW_PIECE, one_piece)
    return Forecast(progress.messages, progress.bytes, progress.skipped, complete)
