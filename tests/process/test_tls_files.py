"""Files of TLS: keys that are replaced, authorities, faults, expiry; the commands for them."""

from __future__ import annotations

import shutil
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests.patience import END_S, LOOK_S
from tests.process.harness import Daemon, Hosts
from tests.process.tls_hosts import (
    direct,
    guid_of,
    install,
    own_certificate,
    problem,
    required,
    sessions,
    status,
    tls_daemon,
    tls_port,
    wait_log,
)


@pytest.fixture
def pair(hosts: Hosts) -> tuple[Daemon, Daemon]:
    """Return a sender that requires TLS of the receiver, and the receiver with queue `q`."""
    receiver = tls_daemon(hosts)
    receiver.create("q")
    return tls_daemon(hosts, tls={"policy": required(tls_port(receiver))}), receiver


def test_the_commands_of_an_authority_serve_two_hosts(hosts: Hosts, tmp_path: Path):
    folder = hosts.folder / "authority"
    section = {
        "authorities": str(folder / "authority.crt"),
        "revoked": str(folder / "revoked.crl"),
    }
    receiver = tls_daemon(hosts)
    receiver.create("q")
    receiver.cli("tls", "init", "--authority", str(folder))
    sender = tls_daemon(hosts)
    for each in (sender, receiver):
        wanted, made = tmp_path / "request", tmp_path / "certificate"
        each.cli("tls", "request", str(wanted), "--name", "127.0.0.1")
        each.cli(
            "tls", "sign", str(wanted), str(made),
            "--authority", str(folder), "--guid", guid_of(each),
        )  # fmt: skip
        each.cli("tls", "rotate", "--certificate", str(made))
        each.configure({"tls": {**section, "policy": required(tls_port(receiver))}})
        each.restart()

    sender.send(direct(receiver.port, "q"), b"1")

    receiver.wait_for("q", 1)
    (shown,) = sender.json("tls", "show")
    assert shown["signed_by"] == "an authority"


def test_no_key_and_no_secret_is_in_a_log_or_an_output(pair: tuple[Daemon, Daemon]):
    sender, receiver = pair
    made = receiver.cli("tls", "init", "--name", "127.0.0.1").stdout
    key = (receiver.folder / "tls.key").read_bytes()
    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)

    secret = key.splitlines()[1]
    shown = receiver.cli("tls", "show").stdout + receiver.cli("status").stdout + made
    assert secret not in shown
    assert secret not in receiver.log.read_bytes()
    assert (receiver.folder / "tls.key").stat().st_mode & 0o777 == 0o600


def test_a_rotation_under_traffic_loses_and_doubles_nothing(pair: tuple[Daemon, Daemon]):
    sender, receiver = pair
    receiver.create("t", transactional=True)
    sender.create("back")
    plain, transactional = [], []

    def send(count: int) -> None:
        batch = [b"%d" % (len(plain) + number) for number in range(count)]
        sender.send_all(direct(receiver.port, "q"), batch)
        sender.send_all(direct(receiver.port, "t"), batch, "--transactional")
        plain.extend(batch)
        transactional.extend(batch)

    send(200)
    for each in (receiver, sender):
        each.cli("tls", "rotate")
        send(200)
        wait_log(each, "tls_files_loaded")
        assert len(sessions(sender)) == 1  # it goes on with the previous key
        each.restart()
        send(200)
    receiver.wait_for("t", len(transactional))
    receiver.wait_for("q", len(plain))

    assert receiver.bodies("t") == transactional
    assert sorted(map(int, receiver.bodies("q"))) == list(range(len(plain)))


def test_a_half_written_file_changes_nothing_and_is_reported(pair: tuple[Daemon, Daemon]):
    sender, receiver = pair
    receiver.cli("tls", "init")
    wait_log(receiver, "tls_files_loaded")
    before = status(receiver)["fingerprint"]
    whole = (receiver.folder / "tls.crt").read_bytes()

    (receiver.folder / "tls.crt").write_bytes(whole[: len(whole) // 2])
    wait_log(receiver, "tls_files_faulty")
    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)

    assert status(receiver)["fingerprint"] == before
    assert "tls.crt" in receiver.cli("status", "--check", check=False).stdout.decode()
    (receiver.folder / "tls.crt").write_bytes(whole)
    deadline = time.monotonic() + END_S
    while status(receiver)["problems"]:
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)


def test_a_daemon_does_not_start_with_a_wrong_file(hosts: Hosts):
    daemon = tls_daemon(hosts)
    install(daemon, own_certificate(guid_of(daemon)))
    (daemon.folder / "tls.key").chmod(0o644)
    daemon.kill()

    with pytest.raises(AssertionError, match="exit code 78"):
        daemon.start()

    assert "can be read by all users" in daemon.tail()


def test_an_expiry_is_reported_before_it_comes(hosts: Hosts):
    daemon = tls_daemon(hosts)
    assert status(daemon)["problems"] == []

    install(daemon, own_certificate(guid_of(daemon), valid=timedelta(days=20)))
    wait_log(daemon, "tls_files_loaded")

    (problem,) = status(daemon)["problems"]
    assert problem.startswith("the certificate of this host expires on")
    assert daemon.cli("status", "--check", check=False).returncode == 1
    daemon.restart()
    wait_log(daemon, "tls_expires")


def test_a_replaced_key_is_refused_after_the_overlap(hosts: Hosts):
    receiver = tls_daemon(hosts)
    receiver.create("q")
    receiver.cli("tls", "init")
    old = [(receiver.folder / name).read_bytes() for name in ("tls.crt", "tls.key")]
    wait_log(receiver, "tls_files_loaded")
    sender = tls_daemon(hosts, tls={"policy": required(tls_port(receiver)), "overlap": "1s"})
    time.sleep(1.1)  # the times of endorsements have whole seconds
    receiver.cli("tls", "rotate")
    receiver.restart()
    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)
    time.sleep(2.1)  # longer than the overlap

    install(receiver, (old[0], old[1]))
    receiver.restart()
    sender.send(direct(receiver.port, "q"), b"2")

    problem(sender, "its key was replaced by a later one")


def test_an_authority_issues_and_revokes_certificates(hosts: Hosts):
    folder = hosts.folder / "authority"
    receiver = tls_daemon(hosts)
    receiver.create("q")
    receiver.cli("tls", "init", "--authority", str(folder))
    section = {
        "authorities": str(folder / "authority.crt"),
        "revoked": str(folder / "revoked.crl"),
    }
    sender = tls_daemon(hosts)
    for number, each in enumerate((sender, receiver)):
        made = hosts.folder / f"issued-{number}"
        each.cli(
            "tls", "issue", guid_of(each), str(made),
            "--authority", str(folder), "--name", "127.0.0.1",
        )  # fmt: skip
        files = {"certificate": str(made / "tls.crt"), "key": str(made / "tls.key")}
        each.configure({"tls": {**section, **files, "policy": required(tls_port(receiver))}})
        each.restart()
    sender.send(direct(receiver.port, "q"), b"1")
    receiver.wait_for("q", 1)

    receiver.cli(
        "tls", "revoke", str(hosts.folder / "issued-1" / "tls.crt"), "--authority", str(folder)
    )

    wait_log(sender, "certificate revoked")
    sender.send(direct(receiver.port, "q"), b"2")
    problem(sender, "is revoked")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_certificates_that_openssl_has_made_are_accepted(hosts: Hosts, tmp_path: Path):
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=tmp_path)

    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-subj", "/CN=root", "-days", "30", "-keyout", "root.key", "-out", "root.crt"),
    )
    receiver, sender = tls_daemon(hosts), tls_daemon(hosts)
    receiver.create("q")
    for each in (receiver, sender):
        names = f"subjectAltName=URI:urn:uuid:{guid_of(each)},IP:127.0.0.1"
        (tmp_path / "names").write_text(names)
        openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=host"),
            *("-keyout", "host.key", "-out", "host.csr"),
        )
        openssl(
            *("x509", "-req", "-in", "host.csr", "-CA", "root.crt", "-CAkey", "root.key"),
            *("-CAcreateserial", "-days", "10", "-extfile", "names", "-out", "host.crt"),
        )
        install(each, ((tmp_path / "host.crt").read_bytes(), (tmp_path / "host.key").read_bytes()))
        policy = required(tls_port(receiver))
        each.configure({"tls": {"authorities": str(tmp_path / "root.crt"), "policy": policy}})
        each.restart()

    sender.send(direct(receiver.port, "q"), b"1")

    receiver.wait_for("q", 1)
    assert status(receiver)["accepted"] == 1
