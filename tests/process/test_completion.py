"""Completion in real shells, with the scripts that packages install."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from release.manual import completion
from tests.patience import END_S
from tests.process.harness import Daemon, Hosts

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]
PROMPT = "ready>"


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the scripts, and with the command in `bin`."""
    prefix = tmp_path_factory.mktemp("prefix")
    for place, text in completion.scripts().items():
        (prefix / place).parent.mkdir(parents=True)
        (prefix / place).write_text(text)
    command = prefix / "bin" / "qmd"
    command.parent.mkdir()
    command.write_text(
        f"#!{sys.executable}\n"
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from qmd.cli import main; main()\n"
    )
    command.chmod(0o755)
    return prefix


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    hosts = Hosts()
    try:
        daemon = hosts.daemon()
        daemon.create("sales", "salaries", "sa$(id)", "sa*")
        daemon.send("reports@nowhere.invalid", b"x")
        yield daemon
    finally:
        hosts.close()


def environment(prefix: Path, config: Path | None = None) -> dict[str, str]:
    return {
        "HOME": str(prefix),
        "LANG": "C.UTF-8",
        "PATH": f"{prefix / 'bin'}:{os.defpath}",
        "QMD_CONFIG": str(config or prefix / "none.toml"),
        "TERM": "dumb",
    }


@contextmanager
def terminal(command: list[str], environment: dict[str, str]) -> Iterator[int]:
    """Start a shell with a terminal of its own; return the other end of it."""
    pid, end = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, environment)
    try:
        yield end
    finally:
        os.close(end)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def typed(end: int, keys: str, expected: str) -> str:
    """Type keys, and return the text of the terminal as soon as `expected` is in it.

    The last key is pressed again when nothing happens: zsh ignores a TAB that comes too early.
    """
    os.write(end, keys.encode())
    shown = ""
    deadline = time.monotonic() + END_S
    while expected not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([end], [], [], 1)[0]:
            shown += os.read(end, 65536).decode(errors="replace")
        elif keys.endswith("\t"):
            os.write(end, b"\t")
    return shown


@needs("bash")
def test_bash_completes_commands_options_and_queues(prefix: Path, daemon: Daemon) -> None:
    script = prefix / "share/bash-completion/completions/qmd"
    with terminal(["bash", "--norc", "-i"], environment(prefix, daemon.config)) as bash:
        typed(bash, f"PS1='rea''dy>'; source {script}\n", PROMPT)
        typed(bash, "qmd dead-l\t", "dead-letter ")
        typed(bash, "req\t", "requeue ")
        typed(bash, "--dry\t", "--dry-run ")
        typed(bash, "\x15qmd peek sale\t", "peek sales ")


@needs("bash")
def test_names_that_a_shell_would_change_are_not_suggested(prefix: Path, daemon: Daemon) -> None:
    for words, expected in (
        ("qmd peek ", {"salaries", "sales"}),
        ("qmd send re", {"reports@nowhere.invalid"}),
        ("qmd outgoing pause ", {"reports@nowhere.invalid"}),
        ("qmd acl show SA", {"salaries", "sales"}),
    ):
        done = complete(prefix, daemon.config, words)
        assert {line.partition(",")[2] for line in done.stdout.splitlines()} == expected, words


def test_without_a_daemon_there_are_commands_and_no_errors(prefix: Path) -> None:
    queues = complete(prefix, None, "qmd peek ")
    groups = complete(prefix, None, "qmd que")

    assert (queues.stdout.strip(), queues.stderr) == ("", "")
    assert groups.stdout.strip() == "plain,queue"


def test_the_first_word_is_completed_without_an_import_of_any_command(prefix: Path) -> None:
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, sep='\\n'))\n"
        "sys.argv = ['qmd']; from qmd.cli import main; main(prog_name='qmd')"
    )
    done = complete(prefix, None, "qmd s", command=[sys.executable, "-c", code])

    loaded = set(done.stdout.split())
    assert "plain,send" in loaded
    assert not loaded & {"qmd.cli.send", "qmd.cli.queue", "asyncio", "msgspec", "tomllib"}


def complete(
    prefix: Path, config: Path | None, words: str, command: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Ask for the completion of the last word, as the script of bash does."""
    asked = {
        "COMP_WORDS": words.replace(" ", "\n"),
        "COMP_CWORD": str(words.count(" ")),
        "_QMD_COMPLETE": "bash_complete",
    }
    return subprocess.run(
        command or [str(prefix / "bin" / "qmd")],
        env=environment(prefix, config) | asked,
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=END_S,
    )  # fmt: skip


@needs("zsh")
def test_zsh_completes_commands_and_queues(prefix: Path, daemon: Daemon) -> None:
    folder = prefix / "share/zsh/site-functions"
    with terminal(["zsh", "-f", "-i"], environment(prefix, daemon.config)) as zsh:
        typed(zsh, f"PS1='rea''dy>'; fpath=({folder} $fpath); autoload compinit\n", PROMPT)
        typed(zsh, "compinit -u -D; print do''ne\n", "done")
        typed(zsh, "qmd audit-\t", "log")
        typed(zsh, "\x15qmd peek sale\t", "s ")


@needs("fish")
def test_fish_completes_commands_with_their_help_and_queues(prefix: Path, daemon: Daemon) -> None:
    script = prefix / "share/fish/vendor_completions.d/qmd.fish"
    found = {}
    for words in ("qmd dead-", "qmd peek sal"):
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source {script}; complete -C '{words}'"],
            env=environment(prefix, daemon.config),
            capture_output=True, text=True, check=True, timeout=END_S,
        )  # fmt: skip
        found[words] = dict(line.partition("\t")[::2] for line in done.stdout.splitlines())

    assert found["qmd dead-"] == {"dead-letter": "Manage messages that could not be delivered."}
    assert found["qmd peek sal"].keys() == {"salaries", "sales"}
