"""The same work done by two RabbitMQ brokers, measured where that can be done.

Quorum queues, publisher confirms and a shovel between the brokers: the peer that promises most like
us (nothing is confirmed before it is synced, though its link may double messages).  The scripts
that install and measure it are no part of this repository: the environment variable QMD_PEERS names
their folder, which otherwise is looked for beside the repository's parent.  They need root and apt.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

PEER = "rabbitmq-shovel-quorum"
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "bench" / "peers"
TIMEOUT_S = 1200.0  # the first time, it has to be downloaded and installed


class CannotMeasure(Exception):
    """The text says why RabbitMQ was left out."""


def script() -> Path:
    """What to run.  Raises CannotMeasure."""
    folder = Path(os.environ.get("QMD_PEERS", BESIDE))
    found = folder / "run.sh"
    if not found.is_file():
        raise CannotMeasure(f"there is no {found}: QMD_PEERS may name another folder")
    if os.geteuid() != 0:
        raise CannotMeasure("installing and running it needs root")
    if shutil.which("apt-get") is None:
        raise CannotMeasure("installing it needs apt")
    return found


async def measure(script: Path) -> dict[str, Any]:
    """The figures of one run, by the names of `bench_end_to_end`.  Raises CannotMeasure."""
    process = await asyncio.create_subprocess_exec(
        *("sh", str(script), PEER),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C comes here, and is passed on in good order
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, errors = await process.communicate()
    except (TimeoutError, asyncio.CancelledError):
        _end(process.pid)
        await process.wait()
        raise
    if process.returncode:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise CannotMeasure(f"{script} failed: {last}")
    found = json.loads(output.splitlines()[-1])["w1"]
    if found["out_of_order"] or found["dups"]:
        raise CannotMeasure("messages came twice or out of order")
    return {
        "messages_per_s": found["msg_s"],
        "daemons_cpu_s_per_1000": found["broker_cpu_s_per_1000"],
        "given_p50_ms": found["lat_p50_ms"],
        "given_p99_ms": found["lat_p99_ms"],
        "idle_rss_mb": found["idle_rss_mb"],
        "peak_rss_mb": found["peak_rss_mb"],
    }


def _end(script_pid: int) -> None:
    """The program that it runs ends its brokers; the script itself undoes its mounts then."""
    children = Path(f"/proc/{script_pid}/task/{script_pid}/children")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGTERM)
