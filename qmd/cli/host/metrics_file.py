"""Counters of a process, in a file for Prometheus' text file collector."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

INTERVAL_S = 10.0

Metrics = Callable[[], Mapping[str, tuple[float, str]]]


@asynccontextmanager
async def written(file: Path | None, metrics: Metrics, label: str) -> AsyncIterator[None]:
    """Write counters every 10 seconds while the block runs, and at its end; None: nowhere.

    `metrics()` returns value and description of each, by name; `label` is `name="value"`.
    """
    if file is None:
        yield
        return
    writing = asyncio.create_task(_write_again(file, metrics, label))
    try:
        yield
    finally:
        writing.cancel()
        write(file, metrics, label)


async def _write_again(file: Path, metrics: Metrics, label: str) -> None:
    while True:
        write(file, metrics, label)
        await asyncio.sleep(INTERVAL_S)


def write(file: Path, metrics: Metrics, label: str) -> None:
    """Replace the file at once, so that a collector never reads a part."""
    lines = []
    for name, (value, meaning) in metrics().items():
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} counter"]
        lines.append(f"{name}{{{label}}} {value:g}" if label else f"{name} {value:g}")
    temporary = file.with_name(f".{file.name}.new")
    temporary.unlink(missing_ok=True)  # of a run that was killed; or a link to another file
    with temporary.open("x", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")
    temporary.replace(file)
