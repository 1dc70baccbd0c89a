"""Commands of a local user who is no administrator: an answer, or a refusal with its remedy."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.process.command_line import run
from tests.process.harness import Daemon, Hosts
from tests.users import needs_root

ANN = 64_001


@pytest.fixture(scope="module")
def daemon(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("orders")
    for path in (shared_hosts.folder, daemon.folder):
        os.chmod(path, 0o755)
    os.chmod(daemon.folder / "qmd.sock", 0o666)
    return daemon


def as_ann(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[bytes]:
    return run(["--config", str(daemon.config), *words], check=False, warm=True, user=ANN)


@needs_root
def test_the_status_is_the_part_that_every_user_may_see(daemon: Daemon) -> None:
    shown = as_ann(daemon, "status")
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"uptime" in shown.stdout
    assert b"messages" not in shown.stdout
    assert json.loads(as_ann(daemon, "status", "--json").stdout)["brief"]


@needs_root
@pytest.mark.parametrize(
    ("words", "right"),
    [
        (("status", "--check"), "see-status"),
        (("outgoing", "list"), "see-status"),
        (("events", "export", "/dev/null"), "read-events"),
        (("dead-letter", "list"), "peek"),
        (("peek", "orders"), "peek"),
        (("acl", "export"), "administer-access"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else each,
)
def test_a_refusal_names_the_right_and_the_command_that_grants_it(
    daemon: Daemon, words: tuple[str, ...], right: str
) -> None:
    refused = as_ann(daemon, *words)
    assert (refused.returncode, refused.stdout) == (4, b"")
    (line,) = refused.stderr.decode().splitlines()
    assert line.startswith("qmd: error QM-9001: ")
    assert f"the right {right} on " in line
    assert "qmd acl grant " in line


@needs_root
def test_a_doctor_of_another_host_says_what_the_user_may_not_see(daemon: Daemon) -> None:
    done = as_ann(daemon, "doctor", f"127.0.0.1:{daemon.port}")
    assert done.returncode == 0, done.stdout
    assert b"This user may not see what is known of other hosts" in done.stdout
    assert b"does not answer" not in done.stdout.partition(b"note    daemon")[2]
