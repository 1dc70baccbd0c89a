"""The common part of all `qmd pipeline run` jobs: options, Spark, progress, results."""

from __future__ import annotations

import errno
import fcntl
import functools
import importlib.util
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from pipeline.stores import StoreUnknown
from qmd.cli.program import ExitCode, Failure

if TYPE_CHECKING:
    from pipeline.results.runs import Draft

F = TypeVar("F", bound=Callable[..., Any])

LOCK = ".lock"  # in the folder of results
SAFE_PATH = "PYTHONSAFEPATH"  # set: Python does not put the working directory on its path
_LIBRARIES = ("duckdb", "numpy", "pandas", "pyarrow", "matplotlib", "fsspec", "sqlglot")
#: A sort reads all files to which it has spilled at once, dozens for a large stream.  To read ahead
#: takes some MB of the heap for each, which Spark does not count, as it does not count the batch of
#: its cache that is made at the same time.
_SPARING = {
    "spark.unsafe.sorter.spill.read.ahead.enabled": "false",
    "spark.sql.inMemoryColumnarStorage.batchSize": "2000",
}
#: New files of this size, some ten million events, are read by the embedded engine.
EMBEDDED_BYTES = 1 << 30


class Progress:
    """The current step, on one line of the terminal; without a terminal it prints nothing."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            line = f"{time.monotonic() - self._begun:5.0f} s  {text}"
            click.echo(f"\r\x1b[K{line[:width]}", err=True, nl=False)

    def done(self) -> None:
        if self._is_terminal:
            click.echo("\r\x1b[K", err=True, nl=False)


@dataclass(frozen=True)
class Job:
    """The common options of a job."""

    inputs: tuple[str, ...]
    output: str
    master: str
    settings: tuple[str, ...]
    dry_run: bool
    as_json: bool
    engine: str = "auto"
    progress: Progress = field(default_factory=Progress)

    def files(self) -> list[Any]:
        """Return the event logs of `inputs`.  Raises Failure if there are none."""
        from pipeline.events import NoEvents, find_files

        try:
            return find_files(self.inputs)
        except NoEvents as none:
            raise Failure(ExitCode.NOT_FOUND, str(none), "no_events") from none

    @contextmanager
    def engine_for(self, name: str, files: Sequence[Any]) -> Iterator[Any]:
        """Yield the engine for a job over `files`: the one asked for, or by their size."""
        if self.uses_spark(sum(file.size for file in files)):
            from pipeline.engines.on_spark import SparkEngine

            require_java()
            with self.spark(name) as session:
                yield SparkEngine(session)
            return
        from pipeline.engines.local import LocalEngine

        try:
            with LocalEngine() as engine:
                yield engine
        finally:
            self.progress.done()

    @contextmanager
    def session_for(self, name: str, files: Sequence[Any]) -> Iterator[Any]:
        """Yield what executes a job over `files`: a Spark session, or the embedded engine."""
        with self.session_of_size(name, sum(file.size for file in files)) as session:
            yield session

    @contextmanager
    def session_of_size(self, name: str, size: int) -> Iterator[Any]:
        """Yield what executes a job that reads `size` bytes."""
        if self.uses_spark(size):
            if importlib.util.find_spec("pyspark") is None:
                require(("pyspark",))
            require_java()
            with self.spark(name) as session:
                yield session
            return
        with self.engine_for(name, ()) as engine:
            yield engine

    def uses_spark(self, size: int) -> bool:
        """Return whether Spark executes a job.  Raises Failure if Spark is missing."""
        is_there = importlib.util.find_spec("pyspark") is not None
        asked = self.engine == "spark" or bool(self.master or self.settings)
        if self.engine != "embedded" and (asked or "PYSPARK_GATEWAY_PORT" in os.environ):
            if not is_there:
                require(("pyspark",))
            return True
        return self.engine == "auto" and size > EMBEDDED_BYTES and is_there and has_java()

    @contextmanager
    def spark(self, name: str) -> Iterator[Any]:
        """Yield a session; an existing one is reused, and not stopped."""
        from pyspark.sql import SparkSession

        from pipeline.spark.session import NoJava, spark_session

        master = self.master or submitted_master()
        conf = job_settings(master)
        for each in self.settings:
            key, equals, value = each.partition("=")
            if not equals:
                raise click.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--conf")
            conf[key] = value
        was_there = SparkSession.getActiveSession() is not None
        self.progress("starting Spark")
        try:
            with _workers_of_ours():
                session = spark_session(f"qmd {name}", master, conf)
        except NoJava as none:
            raise Failure(ExitCode.FAILED, str(none), "java_missing") from none
        session.sparkContext.setLogLevel("ERROR")
        try:
            yield session
        finally:
            self.progress.done()
            if not was_there:
                session.stop()

    @contextmanager
    def writing(self, name: str) -> Iterator[Draft]:
        """Yield the next run of job `name`, which its caller publishes.

        Raises Failure at once if the place is not writable, another run holds it, or it holds
        results of another job; and later if the disk is full, or another run has published
        meanwhile.  A dry run changes nothing and takes no lock.
        """
        from pipeline.results.runs import Results, RunSuperseded, WrongResults

        try:
            results = Results(self.output)
            folder = results.place.folder
            if self.dry_run:
                yield results.begin(name)
                return
            with self._locked(folder), self._reporting_full_disk():
                results.publish()
                draft = results.begin(name)
                try:
                    draft.check_writable()
                except OSError as error:
                    raise self._unwritable(error) from error
                try:
                    yield draft
                except BaseException:
                    draft.discard()
                    raise
        except WrongResults as error:
            raise Failure(ExitCode.USAGE, str(error), "wrong_usage") from error
        except RunSuperseded as error:
            raise Failure(ExitCode.REFUSED, str(error), "output_in_use") from error

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Keep other runs out of the output.  Raises Failure if one is at work.

        It is for jobs whose results are no runs of `writing`.
        """
        from pipeline.results.places import Place

        with self._locked(Place(self.output).folder), self._reporting_full_disk():
            yield

    @contextmanager
    def _locked(self, folder: Path | None) -> Iterator[None]:
        """Hold the lock of a local folder; a store has none: the later of two runs is discarded."""
        if folder is None:
            yield
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / LOCK).open("w")
        except OSError as error:
            raise self._unwritable(error) from error
        with lock:
            self._lock(lock)
            for left in folder.glob(".*.part"):  # left by a killed run
                left.unlink(missing_ok=True)
            yield

    def report_at(self, draft: Draft) -> str:
        """Return the address of the page."""
        return draft.place.address("report.html")

    def _lock(self, file: IO[str]) -> None:
        """Lock `file` until it is closed or this process ends in any way."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Failure(
                ExitCode.REFUSED,
                f"another run writes to {self.output}; wait for its end, or name another folder",
                "output_in_use",
            ) from error
        except OSError:
            pass  # a file system without locks: the later of two runs is discarded

    @contextmanager
    def _reporting_full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise  # errors of stores have their address and no number
            raise self._unwritable(error) from error
        except Exception as error:
            if "No space left on device" not in str(error):
                raise
            raise Failure(
                ExitCode.FAILED,
                f"a disk is full: that of {self.output}, or the one for Spark's temporary data; to"
                " use another folder for that data, give --conf"
                " spark.local.dir=FOLDER",
                "output_not_writable",
            ) from error

    def _unwritable(self, error: OSError) -> Failure:
        return Failure(
            ExitCode.FAILED,
            f"{self.output} cannot be written: {error.strerror or error}; run the job again when it"
            " can",
            "output_not_writable",
        )

    def say_plan(self, fresh: Sequence[Any], known: int, tables: Sequence[str]) -> None:
        """Print the plan of a dry run: `fresh` would be read, `known` were read before."""
        size = sum(file.size for file in fresh)
        names = [*(f"{name}.parquet" for name in tables), "report.html"]
        written = [f"{self.output.rstrip('/')}/{name}" for name in names]
        self.say(
            {"files": len(fresh), "known": known, "bytes": size, "writes": written},
            f"would read {len(fresh)} files ({size / 1e6:,.1f} MB), {known} were read before;"
            f" would write {', '.join(written)}",
        )

    def say(self, value: Mapping[str, Any], text: str) -> None:
        from qmd.cli.output import print_json

        if self.as_json:
            print_json(dict(value))
        else:
            click.echo(text)


def job_options(input_help: str, output_help: str) -> Callable[[F], F]:
    """Add `--input`, `--output`, ...; the command gets one `Job`, before its own options."""
    options = (
        click.option(
            "--input", "inputs", multiple=True, required=True, metavar="FOLDER", help=input_help
        ),
        click.option("--output", required=True, metavar="FOLDER", help=output_help),
        click.option(
            "--engine", type=click.Choice(["auto", "embedded", "spark"]), default="auto",
            show_default=True,
            help="What executes the job: auto takes Spark if the new files are large, or if"
            " --master or --conf is given.",
        ),
        click.option(
            "--master", default="",
            help="Spark's master.  [default: that of spark-submit, else local[2]]",
        ),
        click.option(
            "--conf", "settings", multiple=True, metavar="NAME=VALUE",
            help="A setting of Spark.  May be given several times.",
        ),
        click.option("--dry-run", is_flag=True, help="Only print what would be done."),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    )  # fmt: skip

    def decorated(command: F) -> F:
        @functools.wraps(command)
        def with_job(
            *args: Any, inputs: tuple[str, ...], output: str, engine: str, master: str,
            settings: tuple[str, ...], dry_run: bool, as_json: bool, **own: Any,
        ) -> Any:  # fmt: skip
            require()
            job = Job(inputs, output, master, settings, dry_run, as_json, engine)
            try:
                return command(*args, job, **own)
            except StoreUnknown as error:
                raise Failure(ExitCode.USAGE, str(error), "wrong_usage") from error

        made: Any = with_job
        for option in reversed(options):
            made = option(made)
        return made  # type: ignore[no-any-return]  # options do not change its type

    return decorated


@contextmanager
def _workers_of_ours() -> Iterator[None]:
    """Start Spark's Python workers without the working directory on their path.

    A `pipeline.py` in that directory would otherwise replace this package.
    """
    given = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = given or "1"
    try:
        yield
    finally:
        if given is None:
            del os.environ[SAFE_PATH]


def job_settings(master: str) -> dict[str, str]:
    """Return Spark settings with which a local job takes less than 2 GB.

    Java's memory besides its heap takes half of that; a Python worker of each core takes 250 MB.
    On a cluster, keep the working directory off the workers' path; the heaps are the user's.
    """
    found = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    if found is None:
        return {f"spark.executorEnv.{SAFE_PATH}": "1", **_SPARING}
    cores = os.cpu_count() or 1 if found[1] == "*" else int(found[1] or 1)
    return {
        "spark.driver.memory": f"{640 + 256 * max(cores - 2, 0)}m",
        # The default collector needs memory besides the heap, and lets the heap grow first.
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        **_SPARING,
    }


def submitted_master() -> str:
    """Return the master that spark-submit has set; without spark-submit, local."""
    from pipeline.spark.session import LOCAL

    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return LOCAL
    from pyspark import SparkConf, SparkContext

    # spark-submit leaves its settings in the Java process, which SparkConf reads once it is known.
    SparkContext._ensure_initialized()
    return str(SparkConf().get("spark.master", LOCAL))


def require(libraries: Sequence[str] = _LIBRARIES) -> None:
    """Raise Failure, with one line of text, if the extra is missing."""
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        raise Failure(
            ExitCode.FAILED,
            f"the pipeline needs {', '.join(missing)}; install the extra: pip install '.[spark]'",
            "pipeline_extra_missing",
        )


def has_java() -> bool:
    """Return whether there is a Java for Spark."""
    from pipeline.spark.java import NoJava, require_java

    try:
        require_java()
    except NoJava:
        return False
    return True


def require_java() -> None:
    """Raise Failure, with one line of text, if there is no Java for Spark."""
    from pipeline.spark.java import NoJava
    from pipeline.spark.java import require_java as find

    try:
        find()
    except NoJava as none:
        raise Failure(ExitCode.FAILED, str(none), "java_missing") from none
