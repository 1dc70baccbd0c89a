"""A standalone Spark cluster on loopback: a master and workers, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.patience import END_S
from tests.process.command_line import ROOT
from tests.process.harness import free_port

START_S = END_S
WORKERS = 2


def java_options() -> str:
    """Return options for processes that end soon: they load classes, and compile little."""
    import pyspark

    from pipeline.spark.class_archive import archive_options
    from pipeline.spark.java import java_home
    from pipeline.spark.spark_home import light_home

    archive = archive_options(light_home(Path(pyspark.__file__).parent), java_home(), {})
    return " ".join(("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", *archive))


class Cluster:
    """`with Cluster(folder) as cluster:` has a master at `cluster.master`, and its workers."""

    def __init__(
        self, folder: Path, *, workers: int = WORKERS, more: Mapping[str, str] | None = None
    ) -> None:
        """`more` is added to the environment of all processes, and of drivers."""
        import pyspark

        from pipeline.spark.java import java_home
        from pipeline.spark.spark_home import light_home

        self.folder = folder
        self.workers = workers
        self.port = free_port()
        self.master = f"spark://127.0.0.1:{self.port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        home = light_home(Path(pyspark.__file__).parent)
        self._command = str(home / "bin" / "spark-class")
        self.environment = {
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_WORKER_DIR": str(folder / "work"),
            "SPARK_LOG_DIR": str(folder / "log"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": java_options(),
            "PYSPARK_PYTHON": sys.executable,
            # Executors start in folders of their own, and import the packages of the driver.
            "PYTHONPATH": str(ROOT),
            **(more or {}),
        }

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def __enter__(self) -> Cluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start("master.Master", "--host", "127.0.0.1", "--port", str(self.port))
            self._wait(self._master_listens, "the master does not listen")
            for number in range(self.workers):
                folder = str(self.folder / f"worker{number}")
                resources = ("--cores", "1", "--memory", "1g", "--work-dir", folder)
                self._start("worker.Worker", "--host", "127.0.0.1", *resources, self.master)
            self._wait(self._workers_are_there, "the workers do not register")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def _start(self, what: str, *arguments: str) -> None:
        ports = ("--webui-port", "0")
        with (self.folder / "cluster.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [self._command, f"org.apache.spark.deploy.{what}", *ports, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={**os.environ, **self.environment},
                )
            )

    def wait_until_busy(self, worker: int) -> None:
        """Wait until an executor of a worker has a Python process, which executes a task."""
        pid = self.pids[1 + worker]
        self._wait(lambda: _is_busy(pid), "the worker gets no task")

    def kill_worker(self, worker: int) -> None:
        """Kill a worker with its executors; all that these had on their disks is lost."""
        process = self._processes.pop(1 + worker)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.workers -= 1

    def executors(self) -> int:
        """Return how many executors the workers have started since the cluster began."""
        return self._log().count("Asked to launch executor")

    def _log(self) -> str:
        return (self.folder / "cluster.log").read_text(errors="replace")

    def _master_listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def _workers_are_there(self) -> bool:
        return self._log().count("Registering worker") >= self.workers

    def _wait(self, condition: object, failure: str) -> None:
        assert callable(condition)
        deadline = time.monotonic() + START_S
        while not condition():
            if time.monotonic() > deadline or any(
                one.poll() is not None for one in self._processes
            ):
                raise AssertionError(f"{failure}:\n{self._log()[-3000:]}")
            time.sleep(0.2)


def _is_busy(worker: int) -> bool:
    """Return whether an executor, a child of `worker`, has a child that is Python."""
    parents: dict[int, tuple[int, str]] = {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = each.read_text()
            name = text[text.index("(") + 1 : text.rindex(")")]
            parents[int(each.parent.name)] = int(text[text.rindex(")") + 2 :].split()[1]), name
    executors = {pid for pid, (parent, _) in parents.items() if parent == worker}
    return any(parent in executors and "python" in name for parent, name in parents.values())
