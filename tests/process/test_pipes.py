"""The command line in pipes and at a terminal: readers that end, and Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import END_S
from tests.process.command_line import environment_of_commands, run
from tests.process.harness import Cleaner, Daemon, Hosts, empty_queues

OUTPUT_CLOSED = 141
INTERRUPTED = 130


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain")
    return daemon


@pytest.fixture
def daemon(shared: Daemon, clean: Cleaner) -> Daemon:
    daemon = clean(shared)
    empty_queues(daemon)
    return daemon


def command(daemon: Daemon) -> list[str]:
    return [sys.executable, "-m", "qmd", "--config", str(daemon.config)]


def into_head(daemon: Daemon, lines: int, *arguments: str) -> tuple[list[str], int, str]:
    """Run `qmd ... | head -LINES`: return the lines, and the exit code and errors of qmd."""
    with subprocess.Popen(
        [*command(daemon), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment_of_commands(),
    ) as qmd:
        assert qmd.stdout is not None
        assert qmd.stderr is not None
        with subprocess.Popen(
            ["head", f"-{lines}"], stdin=qmd.stdout, stdout=subprocess.PIPE, text=True
        ) as head:
            qmd.stdout.close()
            shown, _ = head.communicate(timeout=END_S)
        errors = qmd.stderr.read().decode()
        return shown.splitlines(), qmd.wait(END_S), errors


def texts(daemon: Daemon) -> list[str]:
    return [body.decode() for body in daemon.bodies("plain")]


@pytest.mark.parametrize("count", [1, 5, 130])
def test_receive_removes_the_messages_that_the_reader_of_its_output_has_read(
    daemon: Daemon, count: int
):
    daemon.send_all("plain", [b"%d" % number for number in range(400)])

    shown, code, errors = into_head(daemon, count, "receive", "plain", "--all", "--body-only")

    assert shown == [str(number) for number in range(count)]
    assert (code, errors) == (OUTPUT_CLOSED, "")
    assert texts(daemon) == [str(number) for number in range(count, 400)]


def test_a_transaction_is_aborted_when_the_reader_of_the_output_has_ended(daemon: Daemon):
    daemon.send_all("plain", [b"x" * 100_000, b"y" * 100_000])

    with daemon.spawn_cli("receive", "plain", "--all", "--transaction", "--body-only") as qmd:
        assert qmd.stdout is not None
        qmd.stdout.close()
        code = qmd.wait(END_S)

    assert code == OUTPUT_CLOSED
    assert daemon.count("plain") == 2


def test_a_reader_that_has_seen_enough_ends_peek_without_a_complaint(daemon: Daemon):
    daemon.send_all("plain", [b"x" * 1000 for _ in range(400)])

    shown, code, errors = into_head(daemon, 1, "peek", "plain", "--all", "--json")

    assert len(shown) == 1
    assert (code, errors) == (OUTPUT_CLOSED, "")
    assert daemon.count("plain") == 400


def test_a_full_output_file_loses_no_message(daemon: Daemon):
    daemon.send_all("plain", [b"%d" % number for number in range(10)])

    with Path("/dev/full").open("wb") as full:
        receive = [*command(daemon), "receive", "plain", "--all"]
        done = subprocess.run(receive, stdout=full, stderr=subprocess.PIPE, timeout=END_S)

    assert done.returncode != 0
    assert b"No space left on device" in done.stderr
    assert texts(daemon) == [str(number) for number in range(10)]


@pytest.mark.parametrize(
    "arguments", [("send", "plain", "--file", "-"), ("import", "plain")], ids=["send", "import"]
)
def test_one_interrupt_ends_a_command_that_reads_from_a_terminal(
    daemon: Daemon, arguments: tuple[str, ...]
):
    ours, terminal = pty.openpty()
    try:
        with subprocess.Popen(
            [*command(daemon), *arguments],
            stdin=terminal,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # Whatever has started the tests may ignore it, as a shell does for `&`.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as qmd:
            try:
                wait_until_it_reads(qmd.pid)
                qmd.send_signal(signal.SIGINT)
                assert qmd.wait(END_S) == INTERRUPTED
            finally:
                qmd.kill()
    finally:
        os.close(ours)
        os.close(terminal)


def wait_until_it_reads(pid: int) -> None:
    """Wait until the event loop of a process watches its standard input, or a thread reads it."""
    while Path(f"/proc/{pid}").exists():
        with contextlib.suppress(OSError):
            watched = [
                line.split()[:2]
                for entry in Path(f"/proc/{pid}/fdinfo").iterdir()
                for line in entry.read_text().splitlines()
            ]
            if ["tfd:", "0"] in watched:
                return
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                if (task / "syscall").read_text().startswith("0 0x0 "):  # read(0, ...)
                    return


def test_a_dry_run_lists_the_messages(daemon: Daemon):
    daemon.send_all("plain", [b"a", b"b"], "--label", "old")
    daemon.send("plain", b"c", "--label", "new")

    text = daemon.cli("queue", "purge", "plain", "--label", "old", "--dry-run").stdout.decode()
    (would,) = daemon.json("queue", "purge", "plain", "--label", "old", "--dry-run")

    listed = [message["lookup_id"] for message in daemon.peek("plain")[:2]]
    assert [line.split()[0] for line in text.splitlines()[:-1]] == [str(each) for each in listed]
    assert "2 messages" in text.splitlines()[-1]
    assert would["lookup_ids"] == listed


def test_peek_and_receive_look_for_some_messages(daemon: Daemon):
    daemon.send("plain", b"1", "--label", "red one")
    daemon.send("plain", b"2", "--label", "blue")
    daemon.send("plain", b"3", "--label", "red two")

    peeked = daemon.json("peek", "plain", "--all", "--label", "red")
    (second,) = daemon.json("receive", "plain", "--label", "blue")
    (in_transaction,) = daemon.json("receive", "plain", "--label", "two", "--transaction")

    assert [message["label"] for message in peeked] == ["red one", "red two"]
    assert (second["label"], in_transaction["label"]) == ("blue", "red two")
    assert texts(daemon) == ["1"]


def test_queues_are_listed_by_name_and_state(daemon: Daemon):
    daemon.create("other")
    try:
        daemon.send("plain", b"1")

        def names(*options: str) -> list[str]:
            found = daemon.cli("queue", "list", *options, "--json").stdout.splitlines()
            return [json.loads(line)["name"] for line in found]

        assert names("OTH*") == ["private$\\other"]
        assert names("--not-empty") == ["private$\\plain"]
        assert names("plain", "--transactional") == []
    finally:
        daemon.cli("queue", "delete", "other", "--yes")


def test_a_terminal_without_unicode_gets_escapes(daemon: Daemon) -> None:
    daemon.cli("send", "plain", "Füße ☃", "--label", "Bücher 日本")
    for words in (["peek"], ["receive"]):
        done = run(
            ["--config", str(daemon.config), *words, "plain"],
            environment={"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
        )
        assert r"Bücher \u65e5\u672c" in done.stdout.decode("latin-1")
        assert r"Füße \u2603" in done.stdout.decode("latin-1")


@pytest.mark.parametrize("arguments", ["receive plain", "receive plain --json --count 2", "status"])
def test_a_message_that_cannot_be_printed_stays(daemon: Daemon, arguments: str) -> None:
    """The program that starts the command has closed its standard output."""
    daemon.send("private$\\plain", b"1")
    daemon.send("private$\\plain", b"2")

    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command(daemon), *arguments.split()]
    done = subprocess.run(closed, capture_output=True, text=True, timeout=END_S, check=False)

    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "the standard input or output of this command is closed" in done.stderr
    assert daemon.count("private$\\plain") == 2


def test_a_body_is_not_read_from_a_closed_standard_input(daemon: Daemon) -> None:
    words = ["send", "private$\\plain", "--file", "-"]
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *command(daemon), *words]
    done = subprocess.run(closed, capture_output=True, text=True, timeout=END_S, check=False)

    assert done.returncode == 1
    assert "the standard input or output of this command is closed" in done.stderr
    assert daemon.count("private$\\plain") == 0


def test_a_working_folder_that_was_removed_is_named(daemon: Daemon, tmp_path: Path) -> None:
    script = 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@"'
    qmd = [sys.executable, "-I", "-c", "from qmd.cli import main; main()"]
    words = ["--config", "qmd.toml", "status"]
    done = subprocess.run(
        ["sh", "-c", script, str(tmp_path / "gone"), *qmd, *words],
        capture_output=True, text=True, timeout=END_S, check=False,
    )  # fmt: skip

    assert "the working folder of this command was removed" in done.stderr
