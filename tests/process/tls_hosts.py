"""Daemons with TLS for tests: their ports, policies, and certificates."""

from __future__ import annotations

import time
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.identifiers import guid_bytes
from qmd.tls import making, pins
from tests.patience import END_S, LOOK_S
from tests.process.harness import Daemon, Hosts, free_port

QUICK: dict[str, Any] = {
    "resend": ["500ms", "1s"],
    "retry_first": "20ms",
    "retry_max": "100ms",
}


def tls_daemon(hosts: Hosts, *, start: bool = True, tls: dict[str, Any] | None = None) -> Daemon:
    """Return a new queue manager with TLS; its port for TLS is `tls_port(daemon)`."""
    section = {"enabled": True, "port": free_port(), "reload": "50ms", **(tls or {})}
    return hosts.daemon(start=start, delivery=QUICK, tls=section, log={"level": "info"})


def tls_port(daemon: Daemon) -> int:
    return int(settings(daemon)["tls"]["port"])


def settings(daemon: Daemon) -> dict[str, Any]:
    return tomllib.loads(daemon.config.read_text())


def required(*ports: int) -> list[str]:
    return [f"127.0.0.1 required {port}" for port in ports]


def direct(port: int, queue: str) -> str:
    return f"DIRECT=TCP:127.0.0.1:{port}\\private$\\{queue}"


def status(daemon: Daemon) -> dict[str, Any]:
    (facts,) = daemon.json("status")
    found: dict[str, Any] = facts["tls"]
    return found


def guid_of(daemon: Daemon) -> str:
    (facts,) = daemon.json("status")
    return str(facts["queue_manager"])


def sessions(daemon: Daemon) -> list[dict[str, Any]]:
    return daemon.json("session", "list")


def problem(daemon: Daemon, contains: str, timeout_s: float = END_S) -> str:
    """Wait until `qmd outgoing show` of the only outgoing queue has a text; return its text.

    The messages of that queue have to wait meanwhile.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        (row,) = daemon.json("outgoing", "list")
        text = str(row)
        assert row["messages"], f"they were delivered: {text}"
        if contains in text:
            return text
        assert time.monotonic() < deadline, text
        time.sleep(LOOK_S)


def wait_log(daemon: Daemon, text: str, timeout_s: float = END_S) -> None:
    """Wait until the log of a daemon has a text."""
    deadline = time.monotonic() + timeout_s
    while text not in daemon.log.read_text(errors="replace"):
        assert time.monotonic() < deadline, daemon.tail()
        time.sleep(0.02)


class Authority:
    """An authority in memory; it signs any certificate, also wrong ones."""

    def __init__(
        self, folder: Path, name: str = "test authority", *, above: Authority | None = None
    ) -> None:
        """Make an authority with its files; `above` signs it, or else it is a root."""
        self.key = making.new_key()
        self._above = above
        signer = self if above is None else above
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        pem = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if above is None else above.certificate.subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=30))
            .not_valid_after(now + timedelta(days=300))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(signer.key, None)
            .public_bytes(serialization.Encoding.PEM)
        )
        self.certificate = x509.load_pem_x509_certificate(pem)
        folder.mkdir(exist_ok=True)
        self.file = folder / f"{name}.crt"
        self.file.write_bytes(pem)
        self.revoked = folder / f"{name}.crl"
        self.revoke()

    def revoke(self, *numbers: int) -> None:
        """Write the revocation list."""
        pem = making.revoke(list(numbers), (self.certificate, self.key), valid=timedelta(days=30))
        pins.write_atomically(self.revoked, pem)

    def issue(
        self,
        guid: str,
        names: tuple[str, ...] = ("127.0.0.1",),
        *,
        starts: timedelta = timedelta(0),
        valid: timedelta = timedelta(days=10),
    ) -> tuple[bytes, bytes]:
        """Return a certificate that is valid from `starts` from now on, and its key (PEM)."""
        key = making.new_key()
        host = making.Host(guid_bytes(guid), names)
        now = datetime.now(UTC) + starts
        builder = making._host(host, making._name(host), now, valid)
        builder = builder.issuer_name(self.certificate.subject).public_key(key.public_key())
        pem = builder.sign(self.key, None).public_bytes(serialization.Encoding.PEM)
        if self._above is not None:
            pem += self.certificate.public_bytes(serialization.Encoding.PEM)
        return pem, making.key_pem(key)


def own_certificate(
    guid: str,
    *,
    names: tuple[str, ...] = ("127.0.0.1",),
    identity: Ed25519PrivateKey | None = None,
    valid: timedelta = timedelta(days=10),
    now: datetime | None = None,
) -> tuple[bytes, bytes]:
    """Return a self-signed certificate with a new key, and that key (PEM)."""
    key = making.new_key()
    host = making.Host(guid_bytes(guid), names)
    pem = making.own_certificate(host, key, identity or key, valid=valid, now=now)
    return pem, making.key_pem(key)


def install(daemon: Daemon, made: tuple[bytes, bytes]) -> None:
    """Write a certificate and its key to the files of a daemon."""
    certificate, key = made
    pins.write_atomically(daemon.folder / "tls.key", key)
    pins.write_atomically(daemon.folder / "tls.crt", certificate)


def number_of(daemon: Daemon) -> int:
    """Return the number of the certificate of a daemon."""
    pem = (daemon.folder / "tls.crt").read_bytes()
    return x509.load_pem_x509_certificate(pem).serial_number
