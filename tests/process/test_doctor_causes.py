"""`qmd doctor` names causes that were found on hosts of others: files, names, ports, settings."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from qmd.cli.configuration import Configuration
from qmd.cli.host.doctor import command
from qmd.config.file import load_settings
from tests.patience import END_S
from tests.process.command_line import COMMAND, ROOT, environment_of_commands, run
from tests.process.harness import Daemon, Hosts, free_port
from tests.process.test_doctor import Found, data, examined, names, used
from tests.process.test_doctor import template as template
from tests.process.tls_hosts import Authority, guid_of, install, required, tls_daemon, tls_port

__all__ = ["used"]
OPEN = contextlib.ExitStack()


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    OPEN.close()


# Hosts without a daemon.


def a_link_to_a_disk_that_is_not_mounted(daemon: Daemon) -> tuple[str, str]:
    shutil.rmtree(data(daemon))
    data(daemon).symlink_to(daemon.folder / "disk" / "data")
    return "folder", "which does not exist"


def a_group_that_does_not_exist(daemon: Daemon) -> tuple[str, str]:
    daemon.configure({"control": {"group": "no-such-group"}})
    return "socket", "group no-such-group"


def a_port_of_pings_in_use(daemon: Daemon) -> tuple[str, str]:
    other = OPEN.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    other.bind(("127.0.0.1", 0))
    daemon.configure({"listen": {"ping": True, "ping_port": other.getsockname()[1]}})
    return "port", "cannot answer pings"


def an_immutable_database(daemon: Daemon) -> tuple[str, str]:
    path = str(data(daemon) / "queues.db")
    command = ["chattr", "+i", path]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode != 0:
        pytest.skip("only root can make a file immutable, on some file systems")
    OPEN.callback(subprocess.run, ["chattr", "-i", path], check=True)
    return "folder", "queues.db cannot be written"


def the_storage_key_of_another_host(daemon: Daemon) -> tuple[str, str]:
    key = daemon.folder / "storage.key"
    key.write_text("0" * 64)
    key.chmod(0o600)
    daemon.configure({"storage": {"key_files": ["storage.key"]}})
    daemon.start()
    daemon.send("orders", b"x", "--recoverable")
    daemon.terminate()
    key.write_text("1" * 64)
    return "database", "encrypted with the storage key"


def a_certificate_that_names_no_queue_manager(daemon: Daemon) -> tuple[str, str]:
    command = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=host"]
    files = ["-keyout", str(daemon.folder / "tls.key"), "-out", str(daemon.folder / "tls.crt")]
    subprocess.run([*command, *files], check=True, capture_output=True)
    daemon.configure({"tls": {"enabled": True, "port": free_port()}})
    return "certificate", "TLS cannot begin"


def the_name_localhost(daemon: Daemon) -> tuple[str, str]:
    daemon.configure({"queue_manager": {"name": "localhost"}, "listen": {"address": "0.0.0.0"}})
    return "name", "send to themselves"


CAUSES = (
    *(a_link_to_a_disk_that_is_not_mounted, a_group_that_does_not_exist),
    *(a_port_of_pings_in_use, an_immutable_database, the_storage_key_of_another_host),
    *(a_certificate_that_names_no_queue_manager, the_name_localhost),
)


@pytest.mark.parametrize("broken", CAUSES, ids=lambda broken: broken.__name__)
def test_the_cause_is_named(used: Daemon, broken: Callable[[Daemon], tuple[str, str]]) -> None:
    check, text = broken(used)
    code, found = examined(used)
    assert names(found, check, text), found
    assert code == 2


def test_a_host_whose_key_is_missing_is_sent_to_its_settings(used: Daemon) -> None:
    the_storage_key_of_another_host(used)
    _, found = examined(used)
    (fault,) = [each for each in found if each["check"] == "database"]
    assert "key_files" in fault["remedy"]


def test_an_empty_folder_where_a_disk_should_be_is_named(used: Daemon) -> None:
    shutil.rmtree(data(used))
    data(used).mkdir(mode=0o700)
    _, found = examined(used)
    assert names(found, "folder", "a new queue manager", "warning"), found


def test_a_configuration_that_is_not_there_needs_no_correction(used: Daemon) -> None:
    used.config.unlink()
    _, found = examined(used)
    assert names(found, "configuration", "No such file"), found
    assert "--config" in found[0]["remedy"]


def test_a_file_of_an_editor_of_windows_is_examined(used: Daemon) -> None:
    used.config.write_bytes(b"\xef\xbb\xbf" + used.config.read_bytes())
    _, found = examined(used)
    assert [each["check"] for each in found if each["level"] == "fault"] == ["service"], found


# Hosts with a daemon.


def in_namespaces(daemon: Daemon, script: str, *arguments: str, kinds: str = "--mount") -> str:
    """Run a script and then `qmd doctor`, with names and network devices of their own."""
    if os.geteuid() != 0 or subprocess.run(["unshare", kinds, "true"], check=False).returncode:
        pytest.skip("only root may have namespaces here")
    words = ["unshare", kinds, "sh", "-c", f'{script}\nexec "$@"', "sh", *COMMAND]
    done = subprocess.run(
        [*words, "--config", str(daemon.config), "doctor", *arguments],
        cwd=ROOT, env=environment_of_commands(), capture_output=True, text=True, check=False,
        timeout=END_S,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_name_that_stands_for_this_computer_is_named(used: Daemon) -> None:
    hosts_file = used.folder / "hosts"
    hosts_file.write_text("127.0.1.1 hostb\n")
    mount = f"mount --bind {hosts_file} /etc/hosts"
    found = in_namespaces(used, mount, f"hostb:{free_port()}")
    assert "hostb stands for 127.0.1.1, which is this computer itself" in found


def test_a_loopback_device_that_is_down_is_named(used: Daemon) -> None:
    found = in_namespaces(used, "", kinds="--net")
    assert "cannot connect to itself" in found
    assert "lo up" in found


def test_a_variable_that_the_daemon_does_not_have_is_named(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    done = run(
        ["--config", str(daemon.config), "doctor", "--problems"],
        environment={"QMD_QUOTAS_COMPUTER": "1GB"}, check=False, warm=True,
    )  # fmt: skip
    assert b"QMD_QUOTAS_COMPUTER of this environment" in done.stdout
    assert done.returncode == 1


def test_a_limit_of_addresses_is_named(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
    _, found = examined(daemon)
    assert names(found, "memory", "at most", "warning"), found


def test_a_queue_that_no_program_reads_is_noted(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    daemon.create("orders")
    daemon.send("orders", b"x")
    code, found = examined(daemon)
    assert names(found, "queue", "private$\\orders has 1 message, and no program", "note"), found
    assert code == 0


def test_another_program_that_writes_to_the_database_is_named(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    with contextlib.closing(
        sqlite3.connect(data(daemon) / "queues.db", isolation_level=None)
    ) as db:
        db.execute("BEGIN IMMEDIATE")
        _, found = examined(daemon)
        db.rollback()
    assert names(found, "lock", f"Process {os.getpid()} ("), found
    _, found = examined(daemon)
    assert not names(found, "lock", "Process"), found


def test_a_user_without_access_is_not_misled(hosts: Hosts) -> None:
    """Nothing is said about a daemon, or files, that this user cannot see."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    daemon = hosts.daemon()
    settings = load_settings(daemon.config)
    hosts.folder.chmod(0o755)
    daemon.folder.chmod(0o755)
    daemon.config.chmod(0o644)
    examine = partial(command.findings, Configuration(daemon.config), None, "", 1.0, sends=False)
    list(examine())  # the other user may not be able to read the modules

    found = as_another_user(lambda: [each.to_json() for each in examine()])

    assert settings.control.socket.exists()
    assert names(found, "user", "may not look into the data folder", "warning"), found
    assert [each["check"] for each in found if each["level"] == "fault"] == ["daemon"], found
    assert names(found, "daemon", "may not be used by this user"), found


def as_another_user(work: Callable[[], list[Found]]) -> list[Found]:
    """Return the result of `work` in a process of a user without rights."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            os.write(writing, json.dumps(work()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        found: list[Found] = json.loads(answer.read())
    os.waitpid(child, 0)
    return found


def removed(daemon: Daemon) -> None:
    (data(daemon) / "queues.db").unlink()


def replaced(daemon: Daemon) -> None:
    shutil.copy(data(daemon) / "queues.db", daemon.folder / "copy")
    (daemon.folder / "copy").rename(data(daemon) / "queues.db")


def removed_with_its_folder(daemon: Daemon) -> None:
    shutil.copytree(data(daemon), daemon.folder / "others")
    for name in ("queues.db", "queues.db-wal", "queues.db-shm"):
        (daemon.folder / "others" / name).unlink()
    shutil.rmtree(data(daemon))


@pytest.mark.parametrize("lose", [removed, replaced, removed_with_its_folder])
def test_a_database_without_its_name_is_named_and_the_remedy_keeps_its_messages(
    hosts: Hosts, lose: Callable[[Daemon], None]
) -> None:
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    daemon.send("orders", b"before", "--transactional")
    lose(daemon)
    daemon.send("orders", b"after", "--transactional")

    _, found = examined(daemon)

    assert names(found, "folder", "was removed, moved or replaced"), found
    rescue(daemon, next(each for each in found if "replaced" in each["text"]))
    assert daemon.bodies("orders") == [b"before", b"after"]


def rescue(daemon: Daemon, finding: Found) -> None:
    """Follow the remedy word by word, and start the daemon."""
    safe = daemon.folder / "safe"
    safe.mkdir()
    commands, _, _ = finding["remedy"].partition("Do not restart it. ")[2].partition("; then")
    done = subprocess.run(commands.replace("SAFE", str(safe)), shell=True, check=False)
    assert done.returncode == 0
    assert daemon.process is not None
    daemon.process.wait()
    daemon.process = None
    if not data(daemon).exists():
        (daemon.folder / "others").rename(data(daemon))
    for path in safe.iterdir():
        shutil.copy(path, data(daemon) / path.name)
    daemon.start()


# The way to a peer.


def test_a_port_of_tls_is_named(hosts: Hosts, used: Daemon) -> None:
    there = tls_daemon(hosts)
    _, found = examined(used, f"127.0.0.1:{tls_port(there)}")
    assert names(found, "handshake", "speaks TLS"), found


def test_a_peer_with_a_certificate_of_another_authority_is_named(
    hosts: Hosts, tmp_path: Path
) -> None:
    one, other = Authority(hosts.folder, "one"), Authority(hosts.folder, "other")
    there = tls_daemon(hosts, tls={"authorities": str(other.file)})
    policy = required(tls_port(there))
    here = tls_daemon(hosts, tls={"authorities": str(one.file), "policy": policy})
    for daemon, authority in ((here, one), (there, other)):
        install(daemon, authority.issue(guid_of(daemon)))
        daemon.restart()
    _, found = examined(here, f"127.0.0.1:{there.port}", "--timeout", "5")
    assert names(found, "probe", "no authority of this host"), found


@pytest.mark.parametrize("place", ["orders@hostb", "http://hostb:1801", r"\\hostb", "[::1", "a b"])
def test_a_place_that_is_no_computer_is_refused(used: Daemon, place: str) -> None:
    done = used.cli("doctor", place, check=False)
    assert done.returncode == 2
    assert b"is not HOST or HOST:PORT" in done.stderr


def test_a_way_that_was_not_tried_to_its_end_is_no_success(hosts: Hosts, used: Daemon) -> None:
    there = hosts.daemon()
    code, found = examined(used, f"127.0.0.1:{there.port}")
    assert names(found, "probe", "No daemon runs here", "warning"), found
    assert code == 1
