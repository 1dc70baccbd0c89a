"""The hosts of a console, asked at the same time."""

from __future__ import annotations

import asyncio
from typing import Any

from qmd.client import ClientError
from qmd.config.settings import Settings
from qmd.console.fleet import Fleet, Link
from qmd.console.roles import Identity, Role


def test_a_host_that_does_not_answer_in_time_is_an_error_and_not_the_end_of_a_page() -> None:
    async def look(link: Link) -> Any:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    async def main() -> dict[str, Any]:
        fleet = Fleet(Settings())
        try:
            return await fleet.each(Identity("ann", Role.VIEWER), look)
        finally:
            await fleet.close()

    ((host, answer),) = asyncio.run(main()).items()
    assert isinstance(answer, ClientError)
    assert str(answer).startswith(f"{host} did not answer in time")
