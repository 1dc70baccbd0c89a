"""The bridges of one file: a loop for each, its retries, and the state that others can read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from qmd.bridge.definition import Definition
from qmd.bridge.ends import DoesNotFit, Unreachable
from qmd.bridge.inward import Inward
from qmd.bridge.kinds import sink_of, source_of
from qmd.bridge.outward import Outward
from qmd.client.errors import ClientError

if TYPE_CHECKING:
    from qmd.client import QueueManager

log = structlog.get_logger()

FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 60.0
STATE_S = 1.0  # between two writes of the state

Connect = Callable[[], "QueueManager"]


class Bridge:
    """One bridge, and what is known about it."""

    def __init__(self, name: str, definition: Definition, connect: Connect) -> None:
        self.name, self._definition, self._connect = name, definition, connect
        self.state, self.error, self.errors = "starting", "", 0
        self.messages = self.refused = 0
        self.last_at: float | None = None

    async def run(self) -> None:
        """Run until it is cancelled; every error is followed by a pause and a new start."""
        pause_s = FIRST_PAUSE_S
        while True:
            before = self.messages
            try:
                await self._session()
            except (Unreachable, DoesNotFit, ClientError, OSError) as error:
                self._failed(error)
            except Exception as error:
                log.exception("bridge_failed", bridge=self.name)
                self._failed(error)
            if self.messages > before:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))  # nosec B311: jitter
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    def _failed(self, error: Exception) -> None:
        self.state, self.error = "waiting", f"{type(error).__name__}: {error}"[:500]
        self.errors += 1
        log.warning("bridge_waits", bridge=self.name, reason=self.error)

    async def _session(self) -> None:
        """Connect both ends, and bring messages until one of them fails."""
        async with self._connect() as qm:
            loop = await self.loop_of(qm)
            started = (loop.messages, loop.refused)
            seen = self.messages, self.refused
            try:
                await loop.open(qm)
                if isinstance(loop, Inward):
                    started = (loop.messages, loop.refused)
                log.info("bridge_runs", bridge=self.name)
                self.state, self.error = "running", ""
                while True:
                    if await loop.turn(qm):
                        self.last_at = time.time()
                        self.messages = seen[0] + loop.messages - started[0]
                        self.refused = seen[1] + loop.refused - started[1]
            finally:
                await loop.close()

    async def loop_of(self, qm: QueueManager) -> Inward | Outward:
        """Return the loop of the bridge, not yet open."""
        given = self._definition
        if given.direction == "in":
            source = source_of(given, self.name)
            return Inward(self.name, given.queue, given.remote, given.batch, source)
        guid = str((await qm.status())["queue_manager"])
        return Outward(self.name, given.queue, given.batch, sink_of(given, self.name, guid))

    def facts(self) -> dict[str, Any]:
        """Return the state for `qmd bridge status`; counts are those since the start."""
        given = self._definition
        return {
            "name": self.name,
            "kind": type(given).__name__.lower(),
            "direction": given.direction,
            "queue": given.queue,
            "remote": given.remote,
            "state": self.state,
            "messages": self.messages,
            "refused": self.refused,
            "errors": self.errors,
            "error": self.error,
            "last_at": self.last_at,
        }


async def run_bridges(
    definitions: Mapping[str, Definition],
    connect: Connect,
    state_file: Path | None,
    ready: Callable[[str], None],
) -> None:
    """Run bridges until SIGTERM or SIGINT; `ready` notifies the service manager."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    bridges = [Bridge(name, given, connect) for name, given in definitions.items()]
    tasks = [asyncio.create_task(bridge.run()) for bridge in bridges]
    ready("READY=1")
    try:
        while not stopped.is_set():
            _write(state_file, bridges)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), STATE_S)
    finally:
        ready("STOPPING=1")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for bridge in bridges:
            bridge.state = "stopped"
        _write(state_file, bridges)


def _write(file: Path | None, bridges: list[Bridge]) -> None:
    """Write the state as JSON, and as metrics for a text-file collector beside it."""
    if file is None:
        return
    rows = [bridge.facts() for bridge in bridges]
    state = {"pid": os.getpid(), "at": time.time(), "bridges": rows}
    for path, text in ((file, json.dumps(state)), (file.with_suffix(".prom"), metrics(rows))):
        part = path.with_name(f"{path.name}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)


def metrics(rows: list[dict[str, Any]]) -> str:
    """Return the counts in the text format of Prometheus."""
    lines: list[str] = []
    for name, kind, help_, value in (
        ("qmd_bridge_messages_total", "counter", "Messages brought.", lambda row: row["messages"]),
        ("qmd_bridge_refused_total", "counter", "Messages refused.", lambda row: row["refused"]),
        ("qmd_bridge_errors_total", "counter", "Errors.", lambda row: row["errors"]),
        ("qmd_bridge_up", "gauge", "Whether it runs.", lambda row: int(row["state"] == "running")),
    ):
        lines += [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
        for row in rows:
            labels = f'bridge="{row["name"]}",kind="{row["kind"]}",direction="{row["direction"]}"'
            lines.append(f"{name}{{{labels}}} {value(row)}")
    return "\n".join(lines) + "\n"
