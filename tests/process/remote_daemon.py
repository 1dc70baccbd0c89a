"""A daemon that listens for remote clients, with certificates and tokens of its own."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from qmd.access.tokens import create
from qmd.client import blocking
from tests.patience import END_S
from tests.process.harness import Daemon, free_port


def make_certificates(folder: Path) -> None:
    """Make a certificate authority, and a certificate of it for localhost."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(*new, "-x509", "-days", "30", "-subj", "/CN=Authority", "-keyout", "ca.key",
            "-out", "ca.crt")  # fmt: skip
    openssl(*new, "-subj", "/CN=localhost", "-keyout", "remote.key", "-out", "remote.csr")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "remote.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-days", "30",
            "-CAcreateserial", "-extfile", "names", "-out", "remote.crt")  # fmt: skip


def make_short_client(folder: Path, name: str, seconds: float) -> None:
    """Make a certificate of a client that expires after some seconds; ca.key signs it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(seconds=seconds))
        .sign(signer, hashes.SHA256())
    )
    pem, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / f"{name}.crt").write_bytes(made.public_bytes(pem))
    secret = key.private_bytes(pem, kind, serialization.NoEncryption())
    (folder / f"{name}.key").write_bytes(secret)


class Remote:
    """A daemon that listens for remote clients."""

    def __init__(
        self, folder: Path, login_timeout: str = "1s", *, demands_certificate: bool = False
    ) -> None:
        """Start it; `demands_certificate`: of its clients, by the authority `ca_file`."""
        self.port = free_port()
        self.folder = folder
        remote = {"enabled": True, "port": self.port, "login_timeout": login_timeout}
        if demands_certificate:
            remote["client_ca"] = str(folder / "qmd" / "ca.crt")
        settings = {
            "remote": remote,
            "directory": {"kind": "file", "file": str(folder / "qmd" / "directory.toml")},
        }
        self.daemon = Daemon(folder / "qmd", settings=settings)
        make_certificates(folder / "qmd")
        self.ca_file = folder / "qmd" / "ca.crt"
        self.tokens = folder / "qmd" / "remote-tokens"
        self.daemon.start()

    def token(self, *scopes: str, queues: tuple[str, ...] = (), name: str = "t") -> Path:
        """Return a file with a new token."""
        path = self.folder / f"{name}.token"
        path.write_text(create(self.tokens, name, frozenset(scopes), queues) + "\n")
        return path

    def connect(self, token: Path, host: str = "localhost") -> blocking.Blocking:
        return blocking.connect(
            f"tls://{host}:{self.port}", token_file=token, ca_file=self.ca_file, reconnect_s=2
        )

    @contextlib.contextmanager
    def raw(self, source: str = "127.0.0.1") -> Iterator[ssl.SSLSocket]:
        context = ssl.create_default_context(cafile=self.ca_file)
        where = "127.0.0.1", self.port
        with (
            socket.create_connection(where, END_S, (source, 0)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secret,
        ):
            yield secret
