"""Backups of running daemons, and restorations, with the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.process import clone_life
from tests.process.backup_life import live
from tests.process.harness import Hosts, body


def test_backups_and_restorations_under_load_with_kills() -> None:
    """`make soak` runs 50 rounds of new seeds."""
    counts = live(seed=1, rounds=2)
    assert counts["backups"]


def test_a_backup_is_restored_on_another_host_while_the_original_goes_on() -> None:
    counts = clone_life.live(seed=501, rounds=2)
    assert counts["restored"] >= 1, counts


def test_a_daemon_is_backed_up_while_it_serves_and_restored(hosts: Hosts, tmp_path: Path) -> None:
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    daemon.send_all("private$\\orders", [b"1", b"2", b"3"], "--transactional")
    target = tmp_path / "backups"
    target.mkdir()
    key = tmp_path / "key"
    daemon.cli("storage", "key", str(key))

    (made,) = daemon.json("backup", str(target), "--key", str(key))
    daemon.send_all("private$\\orders", [b"4"], "--transactional")
    daemon.cli("backup", str(target), "--key", str(key))
    listed = daemon.json("restore", str(target), "--list", "--key", str(key))
    assert made["daemon_ran"]
    assert [(row["number"], row["needs"], row["encrypted"]) for row in listed] == [
        (1, 0, True),
        (2, 1, True),
    ]

    refused = daemon.cli("restore", str(target), "--key", str(key), check=False)
    assert refused.returncode == 1
    assert b"--replace" in refused.stderr
    refused = daemon.cli("restore", str(target), "--key", str(key), "--replace", check=False)
    assert b"in use" in refused.stderr, "the daemon runs"
    refused = daemon.cli("restore", str(target), "--verify", check=False)
    assert b"--key" in refused.stderr

    daemon.terminate()
    files = tmp_path / "files"
    (done,) = daemon.json(
        *("restore", str(target), "--number", "1", "--replace", "--files", str(files)),
        *("--key", str(key)),
    )
    daemon.start()

    assert [body(each) for each in daemon.peek("orders")] == [b"1", b"2", b"3"]
    shutil.rmtree(done["former_folder"])
    daemon.restart()  # the former folder is gone: what is left agrees with its log
    starts = [
        each for each in daemon.json("events", "tail") if each["kind"] in ("restored", "started")
    ]
    assert [each["kind"] for each in starts] == ["started", "restored", "started", "started"]
    assert starts[1]["reason"].startswith("a backup was restored at 2")
    (config,) = done["files"]
    assert Path(config).read_text() == daemon.config.read_text()


def test_a_stopped_daemon_is_backed_up_and_starts_again(hosts: Hosts, tmp_path: Path) -> None:
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    daemon.send_all("private$\\orders", [b"1"], "--transactional")
    for number, stop in enumerate((daemon.terminate, daemon.kill)):
        stop()
        file = tmp_path / f"{number}.qmdbackup"
        (made,) = daemon.json("backup", str(file))
        assert made["daemon_ran"] is False
        daemon.cli("check")
        daemon.start()
        assert [body(each) for each in daemon.peek("orders")] == [b"1"]
        daemon.cli("restore", str(file), "--folder", str(tmp_path / f"restored{number}"))
        daemon.cli("check", str(tmp_path / f"restored{number}"))
