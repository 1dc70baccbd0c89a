"""A host that moves while messages are on their way to it, and a sender that is killed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from benchmarks.pair import Daemon, free_port, run, stopped_at_end
from qmd.client import new_message
from tests.patience import END_S

MESSAGES = 2000
BATCH = 100
TIMERS = {
    "QMD_DELIVERY_RESEND": "500ms",
    "QMD_DELIVERY_RETRY_FIRST": "20ms",
    "QMD_DELIVERY_RETRY_MAX": "100ms",
}


@pytest.mark.process
def test_a_host_that_moves_accepts_each_message_once_with_any_kill(
    tmp_path: Path,
) -> None:
    async def live() -> list[int]:
        a = Daemon(tmp_path / "a", "a", environment=dict(TIMERS))
        b = Daemon(tmp_path / "b", "b", environment=dict(TIMERS))
        arrived: list[int] = []
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(stopped_at_end(a, b))
            for daemon in (a, b):
                await daemon.create()
                await daemon.start()
            old = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
            sender = await stack.enter_async_context(a.client(reconnect_s=60))
            receiver = await stack.enter_async_context(b.client(reconnect_s=60))
            await receiver.create_queue("orders", transactional=True)
            for first in range(0, MESSAGES, BATCH):
                numbers = range(first, first + BATCH)
                await sender.send_many(
                    [new_message(old, b"%d" % n, delivery="transactional") for n in numbers]
                )
                if first == MESSAGES // 2:
                    await b.kill()  # with some on their way
            port = free_port()
            b.environment["QMD_LISTEN_PORT"] = str(port)
            await b.start()
            redirected = asyncio.create_task(sender.redirect_outgoing(old, f"127.0.0.1:{port}"))
            for _ in range(3):
                await asyncio.sleep(0.05)
                await a.kill()
                await a.start()
            await redirected
            async with asyncio.timeout(END_S):
                while len(arrived) < MESSAGES or (await sender.show_outgoing(old))["messages"]:
                    async for message in receiver.receive_each("orders", timeout_s=0.2):
                        arrived.append(int(message.body))
        return arrived

    assert run(live()) == list(range(MESSAGES))
