"""`qmd key --own-account`: a user of this computer, without any right of the daemon's, as itself.

The program runs as another user of this computer.  pyspnego finds the credentials of that user in
the file of the variable NTLM_USER_FILE, as it finds a ticket of Kerberos where its packages are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.security_data import parse_user_certificates
from qmd.catalogue import id_of
from tests.directory.domain import administrator
from tests.directory.domain_controller import SYSTEM_PYTHON
from tests.directory.hosts import Hosts
from tests.directory.test_message_security import PASSWORD, add_user
from tests.patience import END_S
from tests.process.command_line import ROOT, environment_of_commands
from tests.unit.message_security.secured import certificate
from tests.users import needs_root

pytestmark = needs_root

OTHER = 64_001
#: The Python of the tests may be in the home of root; that of the system finds the same packages.
PYTHONS = (sys.executable, SYSTEM_PYTHON)
PACKAGES = os.pathsep.join((str(ROOT), sysconfig.get_path("purelib")))
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder of the other user."""
    made = Path(tempfile.mkdtemp(prefix="qmd-own-account-"))
    os.chown(made, OTHER, OTHER)
    yield made
    shutil.rmtree(made)


def run(python: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `qmd` as the other user."""
    return subprocess.run(
        [python, "-m", "qmd", *arguments],
        cwd=ROOT,
        env=environment_of_commands() | {"PYTHONPATH": PACKAGES} | more,
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
        user=OTHER,
        group=OTHER,
        extra_groups=[],
    )


def python_for_others() -> str:
    """Return a Python that the other user can run."""
    for python in PYTHONS:
        with contextlib.suppress(PermissionError):
            if run(python, "--version").returncode == 0:
                return python
    pytest.skip("other users can run neither Python nor the code")


@pytest.fixture
def command(folder: Path) -> Command:
    """Return a function that runs `qmd` as the other user, with credentials of its own or none."""
    python = python_for_others()
    credentials = folder / "credentials"
    credentials.touch(mode=0o600)
    os.chown(credentials, OTHER, OTHER)

    def command(*arguments: str, account: str = "") -> subprocess.CompletedProcess[str]:
        credentials.write_text(f"{account}:{PASSWORD}\n" if account else "")
        return run(python, *arguments, HOME=str(folder), NTLM_USER_FILE=str(credentials))

    return command


def configured(hosts: Hosts, folder: Path) -> Path:
    """Write a configuration that the other user can read; the folders of the daemon are closed.

    The daemon waits for the directory for a moment only, a command on a busy machine for longer.
    """
    config, ca_file = folder / "qmd.toml", folder / "ca.pem"
    ca_file.write_bytes(hosts.controller.ca_file.read_bytes())
    text = hosts.pc2.config.read_text().replace(str(hosts.controller.ca_file), str(ca_file))
    for limit in ('"timeout" = "2s"', '"connect_timeout" = "1s"'):
        assert limit in text
        text = text.replace(limit, limit.partition("=")[0] + f'= "{END_S:.0f}s"')
    config.write_text(text)
    return config


def registered(hosts: Hosts, user: str) -> list[bytes]:
    """Return the certificates of a user in the directory."""

    async def ask() -> list[bytes]:
        async with administrator(hosts.controller) as domain:
            found = await domain.read(f"CN={user},{domain.users}", "mSMQSignCertificates")
        return [each.certificate for value in found for each in parse_user_certificates(value)]

    return asyncio.run(ask())


def test_another_user_of_this_computer_changes_its_own_certificates_alone(
    hosts: Hosts, folder: Path, command: Command
) -> None:
    """The daemon's account is that of an administrator here, which could change all of them."""
    sid = asyncio.run(
        add_user(hosts.controller, "gil", registered=[], issued=[], password=PASSWORD)
    )
    other = asyncio.run(add_user(hosts.controller, "hal", registered=[], issued=[]))
    file, config = folder / "gil.crt", configured(hosts, folder)
    file.write_bytes(certificate("gil"))
    register = ("--config", str(config), "key", "register")
    own = ("--directory", "--own-account")

    by_daemon = command(*register, sid, str(file), "--directory", account=r"MSMQ:gil")
    without = command(*register, sid, str(file), *own)
    before = registered(hosts, "gil")
    done = command(*register, sid, str(file), *own, account=r"MSMQ:gil")
    after = registered(hosts, "gil")
    denied = command(*register, other, str(file), *own, account=r"MSMQ:gil")

    assert by_daemon.returncode, "the socket is closed to other users"
    assert without.returncode
    assert before == []
    assert done.returncode == 0, done.stderr
    assert after == [certificate("gil")]
    assert denied.returncode
    assert id_of("directory_denied") in denied.stderr
    assert registered(hosts, "hal") == []
