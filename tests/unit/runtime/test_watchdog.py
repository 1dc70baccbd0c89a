"""The watchdog of systemd, while the event loop runs and while it waits for the disk."""

import asyncio
import socket
from pathlib import Path

from qmd.runtime.systemd import ServiceManager
from qmd.runtime.watchdog import Watchdog

PATIENCE_S = 20.0
PERIOD_S = 0.03


def test_the_watchdog_is_notified_while_the_loop_waits_for_the_disk(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    looks: list[bool] = []

    def waits_for_disk() -> bool:
        looks.append(len(looks) >= 2)
        return looks[-1]

    async def scenario() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(address)
            systemd.settimeout(PATIENCE_S)
            watchdog = Watchdog(
                ServiceManager({"NOTIFY_SOCKET": address}), PERIOD_S, waits_for_disk
            )
            running = asyncio.create_task(watchdog.run())
            await asyncio.sleep(0)
            assert systemd.recv(100) == b"WATCHDOG=1"  # that of the loop, which stands still now
            assert systemd.recv(100) == b"WATCHDOG=1"
            assert looks[:3] == [False, False, True]
            running.cancel()

    asyncio.run(scenario())
