"""`qmd pipeline watch --from`: client certificates, and a queue manager that was restored."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

from pyarrow import parquet

from pipeline.commands.watch import LIVE
from qmd.client import blocking
from tests.patience import END_S
from tests.process.harness import Daemon
from tests.process.remote_daemon import Remote, make_certificates, make_short_client

pytestmark = [pytest.mark.process, pytest.mark.slow]

DAY_S = 86_400


def watch(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "qmd", "pipeline", "watch", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def done(*words: object) -> tuple[int, str]:
    """Watch for one round; return the exit code and the output."""
    process = watch(*words, "--rounds", 1)
    text, _ = process.communicate(timeout=END_S)
    return process.returncode, text


def copied(output: Path) -> list[Path]:
    """Return the files of the copied logs."""
    return sorted((output / LIVE).glob("events/**/*.parquet"))


def bodies(daemon: Daemon, count: int) -> None:
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        for _ in range(count):
            qm.send("orders", b"x")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_a_watch_shows_its_certificate_where_one_is_demanded(tmp_path: Path) -> None:
    remote = Remote(tmp_path, demands_certificate=True)
    try:
        with blocking.connect(tmp_path / "qmd" / "qmd.sock") as qm:
            qm.create_queue("orders")
        bodies(remote.daemon, 3)
        folders = tmp_path / "qmd", tmp_path / "stranger"  # with an authority of its own
        folders[1].mkdir()
        make_certificates(folders[1])
        known, unknown = (
            ("--certificate-file", folder / "watcher.crt", "--key-file", folder / "watcher.key")
            for folder in folders
        )
        for folder in folders:
            make_short_client(folder, "watcher", DAY_S)
        address, token = f"tls://localhost:{remote.port}", remote.token("admin", name="watch")
        given = ("--from", address, "--token-file", token, "--ca-file", remote.ca_file)
        outputs = [tmp_path / f"out-{n}" for n in range(4)]
        with_it, without, of_another, half = (
            done(*given, *more, "--output", output)
            for more, output in zip(((*known,), (), (*unknown,), known[:2]), outputs, strict=True)
        )
    finally:
        remote.daemon.terminate()

    assert (with_it[0], "not done" in with_it[1]) == (0, False), with_it[1]
    rows = [row for path in copied(outputs[0]) for row in parquet.read_table(path).to_pylist()]
    assert [row["kind"] for row in rows].count("sent") == 3
    for code, text in (without, of_another):
        assert f"not done: {address}" in text, (code, text)
    assert half[0] == 2
    assert "--certificate-file and --key-file belong together" in half[1]
    assert not any(map(copied, outputs[1:]))


def restore(daemon: Daemon, backup: Path) -> None:
    """Put the data folder of a running daemon back, as a snapshot of its disk does."""
    daemon.kill()
    shutil.rmtree(daemon.folder / "data")
    shutil.copytree(backup, daemon.folder / "data")
    daemon.start()


def wait_for(is_so: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + END_S
    while not is_so():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_watch_follows_a_restored_queue_manager_once_if_it_may(tmp_path: Path) -> None:
    daemon, output, backup = Daemon(tmp_path / "qmd"), tmp_path / "watch", tmp_path / "backup"
    daemon.start()
    given = ("--from", daemon.folder / "qmd.sock", "--output", output)

    def epochs() -> set[str]:
        return {path.name[36:39] for path in copied(output)}

    try:
        with blocking.connect(daemon.folder / "qmd.sock") as qm:
            qm.create_queue("orders")
        bodies(daemon, 3)
        daemon.terminate()
        shutil.copytree(daemon.folder / "data", backup)
        daemon.start()
        bodies(daemon, 20)
        assert done(*given)[0] == 0
        first = {path: path.read_bytes() for path in copied(output)}

        restore(daemon, backup)
        bodies(daemon, 4)
        refused = done(*given)
        assert "give --new-epoch once" in refused[1]
        assert {path: path.read_bytes() for path in copied(output)} == first
        process = watch(*given, "--new-epoch", "--every", "0.2", "--metrics", tmp_path / "prom")
        wait_for(lambda: "-e2" in epochs(), process)
        bodies(daemon, 4)
        last = [path for path in copied(output) if "-e2-" in path.name][-1]
        wait_for(lambda: copied(output)[-1] != last, process)
        # It was given for one restoration: another one may be a copy that runs.
        restore(daemon, backup)
        bodies(daemon, 4)
        wait_for(lambda: "qmd_watch_failing{" in (tmp_path / "prom").read_text(), process)
        process.terminate()
        text, _ = process.communicate(timeout=END_S)
    finally:
        daemon.terminate()

    assert "give --new-epoch once" in text, text
    assert "found: restored" in text
    assert "-e3" not in epochs()
    assert {path: path.read_bytes() for path in first} == first
