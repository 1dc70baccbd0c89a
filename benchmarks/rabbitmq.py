"""The same load on two RabbitMQ brokers, measured where that is possible.

Quorum queues, publisher confirms and a shovel between the brokers: the configuration with the
promises closest to qmd's (nothing is confirmed before it is synced, though its link may duplicate
messages).  The scripts that install and measure it are not part of this repository: the environment
variable QMD_PEERS names their folder; the default is a folder beside the repository's parent.  They
need root and apt.
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
TIMEOUT_S = 1200.0  # the first run downloads and installs RabbitMQ


class CannotMeasure(Exception):
    """RabbitMQ cannot be measured; the text gives the reason."""


def script() -> Path:
    """Return the script to run.  Raises CannotMeasure."""
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
    """Return the figures of one run, named as in `bench_end_to_end`.  Raises CannotMeasure."""
    process = await asyncio.create_subprocess_exec(
        *("sh", str(script), PEER),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C comes to this process, which ends the script cleanly
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
    """Signal the script's program, which ends its brokers; the script then undoes its mounts."""
    children = Path(f"/proc/{script_pid}/task/{script_pid}/children")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGTERM)
