"""The audit of the logs of real daemons that were killed: it has no findings."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("pandas", reason="the extra qmd-msmq[spark] is not installed")

from benchmarks.pair import Daemon, nothing_is_left, run, stopped_at_end
from pipeline.events import find_files
from pipeline.jobs.audit.findings import AuditSettings
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State

MESSAGES = 300

pytestmark = pytest.mark.process


async def exchange(folder: Path, logs: Path) -> int:
    """Send messages each way with a kill of each daemon; return the number of received ones."""
    a, b = Daemon(folder / "a", "A"), Daemon(folder / "b", "B")
    received = 0
    async with stopped_at_end(a, b):
        for daemon in (a, b):
            await daemon.create()
            await daemon.start()
        async with a.client(reconnect_s=30.0) as at_a, b.client(reconnect_s=30.0) as at_b:
            await at_b.create_queue("orders", transactional=True)
            await at_a.create_queue("answers")
            async with (
                at_a.sender(b.destination("orders")) as orders,
                at_b.sender(a.destination("answers")) as answers,
            ):
                for number in range(MESSAGES):
                    if number in (MESSAGES // 3, 2 * MESSAGES // 3):
                        killed = a if number == MESSAGES // 3 else b
                        await killed.kill()
                        await killed.start()
                    await orders.send(b"order", delivery="transactional")
                    await answers.send(b"answer", delivery="recoverable")
            while received < 2 * MESSAGES:
                for client, queue in ((at_b, "orders"), (at_a, "answers")):
                    async for _ in client.receive_each(queue, timeout_s=0.3):
                        received += 1
            await nothing_is_left(at_a, at_b)
        for daemon in (a, b):
            export = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "qmd", "--config", str(daemon.config), "events", "export"),
                *(str(logs / f"{daemon.name}.parquet"), "--format", "parquet"),
                stdout=asyncio.subprocess.DEVNULL,
            )
            assert await export.wait() == 0
    return received


def test_killed_daemons_leave_logs_without_findings(engine: Any, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()

    assert run(exchange(tmp_path / "hosts", logs)) == 2 * MESSAGES
    result = audit(engine, find_files([str(logs)]), State(), AuditSettings(tasks=2))

    assert result.findings.empty, result.findings.to_string()
    assert result.open.empty, result.open.to_string()
    assert result.messages == MESSAGES
