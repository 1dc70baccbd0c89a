"""A staged outage: real daemons, doors and a real Prometheus, which must raise the alerts.

    python -m tests.process.outage

Two queue managers exchange messages; then one of them dies with its door, messages are rejected, a
queue fills up, and the other one restarts again and again and stays down.  A third one is sick
(sick_host.py), and a fourth one is put back to old data (restored_host.py).  The alerts of deploy/
must fire for the right host, none before the outage, and those of the dead host end when it is
back.  Durations and ages of the rules are shorter by FASTER, so that a minute takes three seconds.

In the end each query of the dashboards is asked for the time of the outage: one that has found
nothing in all of it names metrics or labels that do not exist.

Exit code 2: Prometheus is not installed.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

from tests.process.deaf_peer import DeafPeer
from tests.process.harness import Daemon, free_port
from tests.process.metrics_door import MetricsDoor
from tests.process.restored_host import RestoredHost
from tests.process.sick_host import SickHost

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/qmd-alerts.yml"
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
FASTER = 20
LOG_LARGE_BYTES, SMALLER = 1 << 30, 64
PATIENCE_S = 300.0
SETTINGS = {
    "delivery": {"heartbeat": "1s", "retry_first": "200ms", "retry_max": "1s", "resend": ["1s"]},
}
Alert = tuple[str, str]  # its name, and the host


def faster(rules: str) -> str:
    """Return the rules with shorter durations."""

    def shorter(found: re.Match[str]) -> str:
        seconds = int(found[1]) * {"m": 60, "h": 3600}[found[2]]
        return f"{max(1, seconds // FASTER)}s"

    def younger(found: re.Match[str]) -> str:
        return f"{found[1]}{int(found[2]) // FASTER}"

    changed = []
    for line in rules.splitlines(keepends=True):
        if line.lstrip()[:4] in ("expr", "for:"):
            line = re.sub(r"\b(\d+)([mh])\b", shorter, line)
            line = line.replace("* 3600", f"* {3600 // FASTER}")
            line = re.sub(r"(_age_seconds.* > )(\d+)", younger, line)
            line = line.replace(str(LOG_LARGE_BYTES), str(LOG_LARGE_BYTES // SMALLER))
        changed.append(line)
    return "".join(changed)


class Prometheus:
    """A server that scrapes the doors each second."""

    def __init__(self, folder: Path, doors: dict[str, MetricsDoor]) -> None:
        folder.mkdir()
        # Rules that add up buckets keep the instance only.
        self._hosts = {f"127.0.0.1:{door.port}": name for name, door in doors.items()}
        (folder / "rules.yml").write_text(faster(RULES.read_text()))
        targets = [{"targets": list(self._hosts)}]
        (folder / "prometheus.yml").write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": ["rules.yml"],
                    "scrape_configs": [{"job_name": "qmd", "static_configs": targets}],
                }
            )
        )
        self._port = free_port()
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdout=log,
                stderr=log,
            )

    def firing(self) -> set[Alert]:
        """Return the alerts that fire; none while it starts."""
        address = f"http://127.0.0.1:{self._port}/api/v1/alerts"
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
            return {
                (each["labels"]["alertname"], self._hosts[each["labels"]["instance"]])
                for each in json.load(answer)["data"]["alerts"]
                if each["state"] == "firing"
            }
        return set()

    def wait(self, holds: Callable[[set[Alert]], object], what: str) -> float:
        """Wait for a condition of the alerts; return after how many seconds it held."""
        began = time.monotonic()
        while not holds(found := self.firing()):
            assert time.monotonic() < began + PATIENCE_S, f"{what}: {sorted(found)}"
            time.sleep(0.2)
        return time.monotonic() - began

    def has_found(self, query: str) -> bool:
        """Return whether a query has a result at any time of the last ten minutes."""
        now = time.time()
        values = {"query": query, "start": now - 600, "end": now, "step": 2}
        address = f"http://127.0.0.1:{self._port}/api/v1/query_range?{urlencode(values)}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            return bool(json.load(answer)["data"]["result"])

    def dead_queries(self) -> list[str]:
        """Return the queries of the dashboards that have found nothing, with their panels."""
        dead = []
        for file in DASHBOARDS:
            for panel in json.loads(file.read_text())["panels"]:
                for target in panel.get("targets", ()):
                    query = target["expr"].replace("$__rate_interval", "10s")
                    query = query.replace('="$instance"', '=~".+"')
                    query = re.sub(r'=~"\$\w+"', '=~".+"', query)
                    if not self.has_found(query):
                        dead.append(f"{file.stem}: {panel['title']}: {query}")
        return dead

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


Stages = Iterator[tuple[str, float]]


class Outage:
    """The hosts, their doors, and the server that watches them."""

    def __init__(self, folder: Path) -> None:
        self.east, self.west = (
            Daemon(folder / name, settings={"queue_manager": {"name": name}, **SETTINGS})
            for name in ("east", "west")
        )
        self.sick = SickHost(folder, SETTINGS, self.east)
        self.east.start()
        self.restored = RestoredHost(folder, SETTINGS, self.east)
        self.daemons = self.east, self.west, self.sick.daemon, self.restored.daemon
        self.doors = {daemon.folder.name: MetricsDoor(daemon) for daemon in self.daemons}
        self.deaf = DeafPeer(self.west)
        self.prometheus = Prometheus(folder / "prometheus", self.doors)

    def run(self) -> Stages:
        """Run the outage; yield the name of each stage, and the seconds until its alerts."""
        try:
            self._begin()
            yield from self._accidents()
            yield from self._an_old_copy()
            yield from self._illness()
            yield from self._restarts()
        finally:
            self._end()

    def _begin(self) -> None:
        for daemon in (self.west, self.sick.daemon, self.restored.daemon):
            daemon.start()
        for door in self.doors.values():
            door.start()
        self.west.create("inbox")
        self.east.create("orders", "small")
        self.east.send(self._inbox, b"hello")
        time.sleep(10)
        assert self.prometheus.firing() == set(), "alerts before the outage"

    def _end(self) -> None:
        self.sick.recover()
        self.deaf.close()
        self.prometheus.stop()
        for door in self.doors.values():
            door.kill()
        for daemon in self.daemons:
            daemon.kill()
        self.sick.close()
        self.restored.close()

    @property
    def _inbox(self) -> str:
        return f"DIRECT=TCP:127.0.0.1:{self.west.port}\\private$\\inbox"

    def _raised(self, stage: str, *alerts: Alert) -> tuple[str, float]:
        """Wait until the alerts of a stage fire."""
        return stage, self.prometheus.wait(lambda found: set(alerts) <= found, stage)

    def _accidents(self) -> Stages:
        """Kill one host, reject messages, fill a queue; then start the host again."""
        east, west = self.east, self.west
        west.kill()
        self.doors["west"].kill()
        east.send(self._inbox, b"late")
        of_the_dead = {
            ("QmdDoorDown", "west"),
            ("QmdDestinationStuck", "east"),
            ("QmdHeartbeatMissed", "east"),
        }
        yield self._raised("a dead host", *of_the_dead)

        east.send("orders", b"x", "--dead-letter")
        east.cli("reject", "orders", "--yes")
        yield self._raised("dead letters", ("QmdDeadLetters", "east"))

        east.cli("queue", "set", "small", "--quota", "100kB")
        east.send_all("private$\\small", [b"x" * 10_000] * 9)
        yield self._raised("a full queue", ("QmdQueueQuotaNearlyUsed", "east"))

        west.start()
        self.doors["west"].start()
        stage = "the host is back"
        yield stage, self.prometheus.wait(lambda found: not of_the_dead & found, stage)

    def _an_old_copy(self) -> Stages:
        """Put a host back to old data; then fill its disk."""
        self.deaf.begin()
        self.restored.put_back()
        yield self._raised("an old copy runs", ("QmdIdentityConflict", "east"))
        self.restored.end_conflict()
        yield self._raised("a sequence in doubt", ("QmdSequenceInDoubt", "north"))
        if self.restored.has_small_disk:
            self.restored.fill_disk()
            yield self._raised("no commit", ("QmdCommitsWait", "north"))
        yield self._raised("a deaf peer", ("QmdResends", "west"))

    def _illness(self) -> Stages:
        self.sick.fall_ill()
        for alert in self.sick.alerts:
            self.sick.cause(alert[0])
            yield self._raised(f"{alert[0]} of {alert[1]}", alert)
        self.sick.recover()
        dead = self.prometheus.dead_queries()
        assert not dead, "\n".join(dead)

    def _restarts(self) -> Stages:
        for _ in range(4):
            self.east.restart()
            time.sleep(3)
        yield self._raised("restarts", ("QmdRestarts", "east"))
        self.east.kill()
        yield self._raised("a daemon is down", ("QmdDown", "east"))


def main() -> int:
    if shutil.which("prometheus") is None:
        print("prometheus is not installed")
        return 2
    with tempfile.TemporaryDirectory(prefix="qmd-outage-") as folder:
        for name, seconds in Outage(Path(folder)).run():
            print(f"{name}: its alerts fire or end after {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
