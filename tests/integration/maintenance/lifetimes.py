"""Helpers for tests of lifetimes."""

from __future__ import annotations

from tests.integration.managers import DEAD_LETTERS, TRANSACTIONAL_DEAD_LETTERS, Host, bodies

DAY_S = 24 * 3600
NOWHERE = "DIRECT=TCP:127.0.0.1:1\\private$\\x"


async def dead(host: Host) -> list[bytes]:
    """Return the bodies of the messages in the dead-letter queues."""
    plain, transactional = (
        await host.peek(DEAD_LETTERS),
        await host.peek(TRANSACTIONAL_DEAD_LETTERS),
    )
    return sorted(bodies(plain + transactional))
