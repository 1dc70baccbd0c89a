"""All slow tests, for a given time: `make soak HOURS=1`.

    hostile networks     ────────────────────────────────  real daemons, all of the time
    crash cycles, power  ────────────                      kills, losses of power, failed syncs
    transactions         ──────────────────                applications and daemons are killed
    door for AMQP        ──────                            killed, and cut at each byte
    live sessions                   ──                     any packet at any time
    relays and upgrades             ──                     killed at each of their acts
    door kills                        ──                   sends, locks and pushes meanwhile
    broker kills                       ─                   Kafka and S3, between bridges and load
    damaged folders                   ──                   findings and repairs of `qmd check`
    backups                           ──               restored and killed under load
    strict host                        ──              random walks over legal behaviour
    outage                             ─               Prometheus must raise the alerts
    take-over                          ─               keepalived moves a queue manager
    simulated worlds                  ───────────────────  new seeds, until the time is over

Prints the result of each.  Exit code 1 when any of them has found an error; parts that this machine
cannot run are skipped and named.

"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
HOUR_S = 3600.0
# Numbers per hour; a shorter time has proportionally fewer.
CYCLES = 2000
LIVES = 20
TRANSACTIONS = 10_000
SESSION_EXAMPLES = 3000
LIVE_EXAMPLES = 300
DOOR_KILLS = 100
BROKER_KILLS = 30
FOLDERS = 2000
BACKUPS = 50
RESTORES = 500
WALKS = 60
BLOCK_SEEDS = 200
KILLS = 100  # of the door for AMQP
SKIPPED = 2
SEEDS_MAX = 1 << 40


class Result(NamedTuple):
    name: str
    failed: bool
    text: str


class Part:
    """A running program; its output goes to a file of its own."""

    def __init__(self, name: str, folder: Path, *arguments: str) -> None:
        self.name = name
        self._log = folder / f"{name.replace(' ', '_')}.log"
        self._command = [sys.executable, "-m", *arguments]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()

    def wait(self) -> Result:
        """Wait until it ends; print its result."""
        code = self._process.wait()
        text = self._log.read_text(errors="replace").replace("\r\x1b[K", "").strip()
        failed = code not in (0, SKIPPED)
        print(f"--- {self.name}: {'FAILED' if failed else 'skipped' if code else 'in order'}")
        shown = text if failed else "\n".join(text.splitlines()[-12:])
        print(shown, flush=True)
        return Result(self.name, failed, text)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "soak")
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    seconds = chosen.hours * HOUR_S
    end = time.monotonic() + seconds
    network = Part(
        *("hostile networks", chosen.folder, "tests.netns"),
        *("--quiet", "--seconds", f"{seconds:g}"),
    )
    share = min(1.0, seconds / HOUR_S)
    transactions = Part(
        *("transactions", chosen.folder, "tests.process.soak_transactions"),
        *("--transactions", str(max(200, round(TRANSACTIONS * share)))),
    )
    try:
        results = [
            _crashes(chosen.folder, seconds),
            _every_act(chosen.folder),
            _live(chosen.folder, share),
            _amqp(chosen.folder, share),
            _doors(chosen.folder, share),
            _brokers(chosen.folder, share),
            _folders(chosen.folder, share),
            _backups(chosen.folder, share),
            _walks(chosen.folder, share),
            Part("outage", chosen.folder, "tests.process.outage").wait(),
            Part("take-over", chosen.folder, "tests.netns.takeover").wait(),
            _restores(chosen.folder, share),
        ]
        results += _worlds(chosen.folder, end)
        results += [transactions.wait(), network.wait()]
    finally:
        transactions.end()
        network.end()
    failed = [result.name for result in results if result.failed]
    print(f"soak: FAILED: {', '.join(failed)}" if failed else "soak: all in order")
    return 1 if failed else 0


def _crashes(folder: Path, seconds: float) -> Result:
    share = min(1.0, seconds / HOUR_S)
    cycles, lives = max(20, round(CYCLES * share)), max(1, round(LIVES * share))
    return Part(
        *("crashes", folder, "tests.crash"),
        *("--cycles", str(cycles), "--lives", str(lives)),
    ).wait()


def _every_act(folder: Path) -> Result:
    """Kill a relay, and an upgrade, at each of its acts; `make test` tries a few."""
    os.environ["CRASH"] = "full"
    files = ("tests/crash/test_relayed.py", "tests/crash/test_upgrade.py")
    arguments = ("-q", "-p", "no:cacheprovider", *files)
    return Part("every act", folder, "pytest", *arguments).wait()


def _live(folder: Path, share: float) -> Result:
    """Send any packet at any time to a session and a queue manager; `make test` tries a few."""
    os.environ["LIVE_EXAMPLES"] = str(max(10, round(LIVE_EXAMPLES * share)))
    os.environ["SESSION_EXAMPLES"] = str(max(300, round(SESSION_EXAMPLES * share)))
    machines = ("test_session_machine.py", "test_live_machine.py", "test_live_sender.py")
    files = [f"tests/properties/{file}" for file in machines]
    arguments = ("-q", "-p", "no:cacheprovider", *files)
    return Part("live sessions", folder, "pytest", *arguments).wait()


def _doors(folder: Path, share: float) -> Result:
    """Kill the HTTP door under load; `make test` does it a few times."""
    os.environ["DOOR_KILLS"] = str(max(10, round(DOOR_KILLS * share)))
    arguments = ("-q", "-p", "no:cacheprovider", "tests/process/test_http_kills.py")
    return Part("door kills", folder, "pytest", *arguments).wait()


def _brokers(folder: Path, share: float) -> Result:
    """Kill the brokers of Kafka and S3 under load; `make test` does it once."""
    os.environ["BROKER_KILLS"] = str(max(5, round(BROKER_KILLS * share)))
    arguments = ("-q", "-p", "no:cacheprovider", "tests/bridge/test_killed_brokers.py")
    return Part("broker kills", folder, "pytest", *arguments).wait()


def _folders(folder: Path, share: float) -> Result:
    """Run `qmd check` and `--repair` on folders of killed daemons and simulated worlds."""
    return Part(
        *("folders", folder, "tests.crash.folders"),
        *("--first", str(random.randrange(SEEDS_MAX))),
        *("--folders", str(max(80, round(FOLDERS * share)))),
        *("--lives", str(max(1, round(LIVES * share / 4)))),
        *("--worlds", str(max(1, round(LIVES * share)))),
    ).wait()


def _backups(folder: Path, share: float) -> Result:
    """Back up and restore daemons under load, and kill everything meanwhile."""
    rounds = max(5, round(BACKUPS * share))
    return Part("backups", folder, "tests.process.backup_life", "--rounds", str(rounds)).wait()


def _walks(folder: Path, share: float) -> Result:
    """Walk at random with the strict host; `make test` takes two short walks."""
    return Part(
        *("strict host", folder, "tests.strict_host"),
        *("--first", str(random.randrange(SEEDS_MAX))),
        *("--walks", str(max(4, round(WALKS * share)))),
    ).wait()


def _restores(folder: Path, share: float) -> Result:
    """Restore simulated hosts from old backups; `make test` tries a few."""
    os.environ["RESTORES"] = str(max(20, round(RESTORES * share)))
    arguments = ("-q", "-p", "no:cacheprovider", "tests/simulation/test_restores.py")
    return Part("restored hosts", folder, "pytest", *arguments).wait()


def _amqp(folder: Path, share: float) -> Result:
    """Kill the door for AMQP under load, cut its connections, and open many at once."""
    if importlib.util.find_spec("proton") is None:
        return Result("door for AMQP", failed=False, text="qpid-proton is not installed")
    return Part(
        *("door for AMQP", folder, "tests.amqp.soak"),
        *("--kills", str(max(10, round(KILLS * share)))),
        *("--step", str(max(1, round(1 / share)))),
    ).wait()


def _worlds(folder: Path, end: float) -> Iterator[Result]:
    """Run a block of new seeds, and another one, until the time is over."""
    number = 0
    while number == 0 or time.monotonic() < end:
        number += 1
        first = str(random.randrange(SEEDS_MAX))
        yield Part(
            *(f"worlds {number}", folder, "tests.simulation"),
            *("--first", first, "--seeds", str(BLOCK_SEEDS)),
        ).wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
