"""The audit of one large stream on a standalone cluster, whose processes share only a bucket.

    python -m benchmarks.bench_cluster [--events MILLIONS,...] [--workers N] [--heap SIZE]
                                       [--folder DIR] [--json]

A fleet of 20 hosts has 20 streams, and one of them has nine tenths of all messages.  Its logs are
put into the bucket of an S3-compatible server and deleted here.  The large stream has faults, so
each of its messages is examined.  A driver, started by spark-submit,
audits them with workers of one core each.  Every process of Java, the driver too, has the heap
`--heap`, whatever the size; the audit has to find the planted faults and nothing else.

The peak of an executor is the memory of its Java and of its Python processes at one moment, with
their parts of shared memory; it is read each second.  The processor time is that of all processes
of the cluster and of the driver, and the server's is apart.  The disk is that of Spark's files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.bench_audit import EVENTS_PER_MESSAGE, children, memory_mb

FAULTS = ",".join(
    f"{kind}=40" for kind in ("lost", "acked_not_stored", "duplicated", "reordered", "delayed",
                              "gap", "delivered_dead", "expired")
)  # fmt: skip
LARGEST_SHARE = 0.9
_BUCKET = "lake"
_TICK = os.sysconf("SC_CLK_TCK")


def make(events: int, folder: Path) -> None:
    """Write the logs of a fleet with about this many events."""
    from pipeline.generator import Fleet, generate, parse_faults

    fleet = Fleet(
        hosts=20, streams=20, messages=events // EVENTS_PER_MESSAGE, days=20, seed=11,
        largest_share=LARGEST_SHARE, faults=parse_faults(FAULTS),
    )  # fmt: skip
    generate(fleet, folder)


def put(logs: Path, system: Any) -> int:
    """Move the files below `logs` into the bucket; return their size in bytes."""
    size = 0
    for each in sorted(logs.rglob("*.parquet")):
        size += each.stat().st_size
        system.put(str(each), f"{_BUCKET}/qmd/{each.relative_to(logs)}")
        each.unlink()
    return size


class Watch:
    """The memory and the processor time of some trees of processes, within `with watch:`."""

    def __init__(self, executors: list[int], others: dict[str, int], disk: Path) -> None:
        """`executors` are the processes of workers, whose children are executors."""
        self._executors, self._others, self._disk = executors, others, disk
        self.peaks: Counter[str] = Counter()  # MB
        self._cpu: dict[tuple[str, int], float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def cpu_s(self, *names: str) -> float:
        return sum(spent for (name, _), spent in self._cpu.items() if name in names)

    def _watch(self) -> None:
        while not self._ended.wait(1):
            total = 0.0
            for worker in self._executors:
                self._note_cpu("cluster", worker)
                for executor in children(worker):
                    self._note_cpu("cluster", executor)
                for executor in _direct(worker):
                    java = memory_mb(executor)
                    python = sum(map(memory_mb, children(executor)))
                    self._peak("executor", java + python)
                    self._peak("executor_java", java)
                    self._peak("executor_python", python)
                    total += java + python
            self._peak("executors", total)
            for name, pid in self._others.items():
                tree = (pid, *children(pid))
                for each in tree:
                    self._note_cpu(name, each)
                self._peak(name, sum(map(memory_mb, tree)))
            self._peak("disk", _size_mb(self._disk))

    def _peak(self, name: str, value: float) -> None:
        self.peaks[name] = max(self.peaks[name], round(value))

    def _note_cpu(self, name: str, pid: int) -> None:
        with contextlib.suppress(OSError):  # the process has ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            self._cpu[name, pid] = (int(fields[11]) + int(fields[12])) / _TICK


def _direct(pid: int) -> list[int]:
    """Return the child processes of a process, without theirs."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _size_mb(folder: Path) -> float:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it was deleted
                total += os.stat(f"{root}/{name}").st_blocks * 512
    return total / 1e6


def measure(logs: Path, folder: Path, workers: int, heap: str) -> dict[str, Any]:
    """Return all figures by name, for existing logs, which are moved."""
    import fsspec

    from pipeline.generator.fleet import TRUTH
    from tests.pipeline.cluster import Cluster
    from tests.pipeline.s3 import S3
    from tests.process.command_line import ROOT

    truth = json.loads((logs / TRUTH).read_text())
    local = folder / "spark"
    with S3(folder / "s3") as s3:
        os.environ |= s3.environment
        system = fsspec.filesystem("s3", skip_instance_cache=True)
        system.mkdir(_BUCKET)
        figures: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 1)}
        figures["events"] = truth["events"]
        figures["parquet_mb"] = round(put(logs, system) / 1e6)
        with Cluster(local, workers=workers, more=s3.environment) as cluster:
            command = [str(Path(cluster.environment["SPARK_HOME"]) / "bin" / "spark-submit")]
            command += ["--master", cluster.master]
            command += [f"--conf={name}={value}" for name, value in _settings(heap).items()]
            command += [str(ROOT / "pipeline/submit.py"), "audit", "--json"]
            command += ["--input", f"s3://{_BUCKET}/qmd", "--output", f"s3://{_BUCKET}/audit"]
            begun = time.monotonic()
            with (
                (folder / "driver.log").open("wb") as log,
                subprocess.Popen(
                    command, cwd=ROOT, env={**os.environ, **cluster.environment},
                    stdout=subprocess.PIPE, stderr=log,
                ) as driver,
                Watch(cluster.pids[1:], {"driver": driver.pid, "server": s3.pid}, local) as watch,
            ):  # fmt: skip
                out, _ = driver.communicate()
            figures["audit_s"] = round(time.monotonic() - begun)
        if driver.returncode != 1:  # there are findings
            raise SystemExit((folder / "driver.log").read_text(errors="replace")[-5000:])
        found = _found(system)
    wanted = Counter(map(_key, truth["findings"]))
    figures["planted"] = sum(wanted.values())
    figures["planted_in_largest"] = sum(each["stream"] == 0 for each in truth["findings"])
    figures["not_found"] = sum((wanted - found).values())
    figures["false"] = sum((found - wanted).values())
    figures["open"] = json.loads(out.decode().splitlines()[-1])["open"]
    figures["cpu_s"] = round(watch.cpu_s("cluster", "driver"))
    figures["server_cpu_s"] = round(watch.cpu_s("server"))
    figures |= {f"peak_{name}_mb": most for name, most in watch.peaks.items()}
    return figures


def _settings(heap: str) -> dict[str, str]:
    """Return the settings of spark-submit; all that are not about addresses are of sizes."""
    from pipeline.commands.job import job_settings

    collector = job_settings("local[2]")["spark.driver.extraJavaOptions"]
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executor.memory": heap,
        "spark.driver.memory": heap,
        "spark.driver.extraJavaOptions": collector,
        "spark.executor.extraJavaOptions": collector,
    }


def _found(system: Any) -> Counter[Any]:
    from pyarrow import parquet

    with system.open(f"{_BUCKET}/audit/findings.parquet") as file:
        return Counter(map(_key, parquet.read_table(file).to_pylist()))


def _key(finding: dict[str, Any]) -> Any:
    """Return what a finding of the audit, or one of the truth, is about."""
    if finding["kind"] != "gap":
        return finding["kind"], finding["message_id"]
    return "gap", int(finding["sequence_id"]), int(finding["sequence_number"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", default="1", help="in millions; several with commas")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--heap", default="640m", help="of each process of Java")
    parser.add_argument("--folder", type=Path, help="where to  [default: a temporary one]")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--make", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make:
        make(given.make, given.folder)
        return
    measured: dict[str, Any] = {}
    for millions in map(float, given.events.split(",")):
        folder = Path(tempfile.mkdtemp(prefix="qmd-cluster-", dir=given.folder))
        # The server keeps large objects in temporary files.
        os.environ["TMPDIR"] = str(folder)
        try:
            # Generate in another process: its memory does not come back to this machine otherwise.
            subprocess.run(
                [sys.executable, "-m", "benchmarks.bench_cluster", "--make",
                 str(int(millions * 1e6)), "--folder", str(folder / "logs")],
                check=True,
            )  # fmt: skip
            figures = measure(folder / "logs", folder, given.workers, given.heap)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        measured[f"{millions:g}"] = figures
        print(json.dumps(figures) if given.json else f"{millions:g} million events", flush=True)
        for name, value in {} if given.json else figures.items():
            print(f"  {name:24} {value}", flush=True)
    if len(measured) > 1:
        peaks = [figures["peak_executor_mb"] for figures in measured.values()]
        print(f"largest_peak_over_smallest {peaks[-1] / peaks[0]:.2f}")


if __name__ == "__main__":
    main()
