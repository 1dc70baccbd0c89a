"""Checks of what a start needs beside the data folder; without a daemon, it would fail for them."""

from __future__ import annotations

import grp
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from qmd.cli.host.doctor.finding import Finding, fault
from storage.engine import mark
from storage.engine.disk import Disk

if TYPE_CHECKING:
    from qmd.config.file import Settings


def check_group(settings: Settings) -> Iterator[Finding]:
    """Check that the group of the control socket exists."""
    name = settings.control.group
    if not name:
        return
    try:
        grp.getgrnam(name)
    except KeyError:
        yield fault(
            "socket",
            f"The group {name} of the control socket does not exist: the daemon does not start.",
            f"groupadd --system {name}, or correct group in [control].",
        )


def check_tls_files(settings: Settings) -> Iterator[Finding]:
    """Read certificate, key, authorities and revocation lists as a start does."""
    from qmd.tls.credentials import Credentials
    from qmd.tls.errors import TlsFilesError

    chosen = settings.tls
    served = mark.decode(Disk().read_mark(settings.queue_manager.data / mark.NAME) or b"")
    if not chosen.enabled or not chosen.certificate.exists() or served is None:
        return
    try:
        Credentials(chosen, served.queue_manager_id, _make_none).load()
    except TlsFilesError as error:
        yield fault(
            "certificate",
            f"TLS cannot begin: {error}.",
            "Correct the files that the section [tls] names: docs/tls.md.",
        )


def _make_none(_: object) -> tuple[bytes, bytes]:
    raise TypeError("a host with a certificate makes none of its own")


def check_ping_port(settings: Settings) -> Iterator[Finding]:
    """Check that the port of pings is free for a daemon that answers them."""
    chosen = settings.listen
    if not chosen.ping or not chosen.ping_port:
        return
    family = socket.AF_INET6 if ":" in chosen.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((chosen.address, chosen.ping_port))
        except OSError as error:
            yield fault(
                "port",
                f"The daemon cannot answer pings at {chosen.address} UDP port {chosen.ping_port}:"
                f" {error.strerror}.",
                "Look with `ss -ulnp`, or correct ping_port in the section [listen].",
            )
