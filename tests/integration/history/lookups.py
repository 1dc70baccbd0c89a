"""Calls of the message lookup of a queue manager."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.integration.managers import Host
from tests.patience import END_S


async def why(host: Host, message: str, *, queue: str = "", ask: bool = False) -> dict[str, Any]:
    return await host.message_lookup.why(message, queue, ask=ask)


async def until_state(host: Host, message: str, state: str) -> None:
    """Look the message up until it has this state."""
    async with asyncio.timeout(END_S):
        while (await why(host, message))["state"] != state:
            pass
