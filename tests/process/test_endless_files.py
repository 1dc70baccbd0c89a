"""Commands that read a file: devices without an end, and pipes."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import END_S
from tests.process.command_line import COMMAND, ROOT, environment_of_commands
from tests.process.harness import Daemon, Hosts

pytestmark = pytest.mark.process
MEMORY_BYTES = (
    1 << 30
)  # of a command: without a limit it fails for want of it, and not the computer
ZEROS = "/dev/zero"


@pytest.fixture(scope="module")
def daemon(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("orders")
    return daemon


def run(daemon: Daemon, *words: str, input: bytes = b"") -> tuple[int, str]:
    """Run a command with little memory; return its exit code and what it wrote on stderr."""
    most = (MEMORY_BYTES, MEMORY_BYTES)
    done = subprocess.run(
        [*COMMAND, "--config", str(daemon.config), *words],
        cwd=ROOT, env=environment_of_commands(), input=input, capture_output=True, check=False,
        timeout=END_S, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, most),
    )  # fmt: skip
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("acl", "import", ZEROS), "QM-5032"),
        (("trigger", "import", ZEROS), "QM-5032"),
        (("key", "import", "10.0.0.1", ZEROS), "QM-5032"),
        (("door", "user", "add", "vera", "--password-file", ZEROS), "QM-5032"),
        (("import", "orders", ZEROS), "QM-5012"),
        (("send", "orders", "--file", ZEROS), "QM-1308"),
        (("send", "orders", "--each-line", "--file", ZEROS), "QM-5012"),
        (("config", "check", ZEROS), "QM-3203"),
        (("directory", "check", ZEROS), "QM-"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_a_device_without_an_end_is_refused(
    daemon: Daemon, words: tuple[str, ...], error: str
) -> None:
    code, said = run(daemon, *words)

    assert (code != 0, error in said, "MemoryError" in said) == (True, True, False), said
    assert daemon.count("orders") == 0


@contextlib.contextmanager
def written(pipe: Path, content: bytes) -> Iterator[None]:
    """Write to a named pipe as soon as a command reads it."""
    os.mkfifo(pipe)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError):  # the command reads no further
            pipe.write_bytes(content)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    yield
    writer.join(END_S)


def test_pipes_with_an_end_are_read_as_files(daemon: Daemon, tmp_path: Path) -> None:
    """A shell gives such names: `qmd acl import <(...)`."""
    entry = b'{"object":"orders","principal":"everyone","effect":"allow","rights":"send"}\n'
    with written(tmp_path / "rights", entry):
        assert run(daemon, "acl", "import", str(tmp_path / "rights")) == (0, "")
    with written(tmp_path / "body", b"of a pipe"):
        assert run(daemon, "send", "orders", "--file", str(tmp_path / "body")) == (0, "")
    exported = daemon.cli("export", "orders").stdout
    with written(tmp_path / "messages", exported):
        assert run(daemon, "import", "orders", str(tmp_path / "messages")) == (0, "")

    assert daemon.count("orders") == 2
    daemon.receive("orders")


def test_a_file_whose_size_is_not_known_is_read_no_further_than_a_body(
    daemon: Daemon, tmp_path: Path
) -> None:
    """A file that grows while it is read has such a size, too."""
    grown = tmp_path / "grown"
    with written(grown, bytes(64 * 1024 * 1024)):
        code, said = run(daemon, "send", "orders", "--file", str(grown))

    assert (code != 0, "QM-1308" in said) == (True, True), said
    assert daemon.count("orders") == 0
