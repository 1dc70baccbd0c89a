"""Completion of queue names in shells, from the running daemon.

A shell waits for each completion, so nothing here reports an error: without a daemon, or with one
that does not answer in time, there are no suggestions.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from qmd.cli.configuration import Configuration

if TYPE_CHECKING:
    from qmd.client import QueueManager

#: A shell is not kept longer by a daemon that is busy.
LIMIT_S = 1.0
#: Longer lists help nobody who types.
SUGGESTIONS_MAX = 200
_DIRECT = re.compile(
    r"DIRECT=(?:OS|TCP):(?P<host>[^\\]+)\\private\$\\(?P<queue>[^\\;]+)", re.IGNORECASE
)
_BARE = re.compile(r"[\w.@%+:/-]+")


def queues(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the queues of this computer whose names begin so."""
    return _suggestions(context, incomplete, _local)


def destinations(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the queues of this computer, and the destinations of messages on their way."""
    return _suggestions(context, incomplete, _everywhere)


def outgoing(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the destinations of messages on their way."""
    return _suggestions(context, incomplete, _elsewhere)


async def _local(qm: QueueManager) -> list[str]:
    return [str(queue["name"]).removeprefix("private$\\") for queue in await qm.list_queues()]


async def _elsewhere(qm: QueueManager) -> list[str]:
    return [_short(str(queue["destination"])) for queue in await qm.list_outgoing()]


def _short(destination: str) -> str:
    """Return `orders@hostb` for a direct name of a private queue; other names are unchanged."""
    found = _DIRECT.fullmatch(destination)
    return f"{found['queue']}@{found['host']}" if found else destination


async def _everywhere(qm: QueueManager) -> list[str]:
    return [*await _local(qm), *await _elsewhere(qm)]


def _suggestions(
    context: click.Context,
    incomplete: str,
    names_of: Callable[[QueueManager], Awaitable[list[str]]],
) -> list[str]:
    import asyncio

    from qmd.client.errors import ClientError
    from qmd.config.file import ConfigError

    async def ask() -> list[str]:
        async with asyncio.timeout(LIMIT_S), _configuration(context).connect() as qm:
            return await names_of(qm)

    with suppress(ClientError, ConfigError, OSError, TimeoutError):
        begun = incomplete.casefold()
        # The scripts of shells quote nothing: a name that needs quotes is typed by hand.
        fitting = (
            name
            for name in asyncio.run(ask())
            if name.casefold().startswith(begun) and _BARE.fullmatch(name)
        )
        return sorted(set(fitting))[:SUGGESTIONS_MAX]
    return []


def _configuration(context: click.Context) -> Configuration:
    """Return the queue manager that the options before the command name."""
    given = context.find_root().params
    names = ("host", "token_file", "ca_file")
    return Configuration(given.get("config"), **{name: given.get(name) for name in names})
