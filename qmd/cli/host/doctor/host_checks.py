"""Checks of this computer: user, name, ports, sockets, service unit, clock, certificates."""

from __future__ import annotations

import datetime
import errno
import ipaddress
import os
import socket
import stat
import subprocess  # nosec B404: fixed arguments, no shell
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from qmd.cli.host.doctor.finding import Finding, fault, note, ok, warning
from qmd.cli.host.doctor.folder_checks import user_name
from qmd.cli.host.doctor.listeners import find_listener

if TYPE_CHECKING:
    from qmd.config.file import Settings

CLOCK_MIN_S = 1_767_225_600  # the year 2026: earlier clocks are wrong
UNIT = "qmd.service"
COMMAND_TIMEOUT_S = 10.0
AHEAD_S = 120.0


def check_user(settings: Settings) -> Iterator[Finding]:
    """Check that this user can be that of the daemon."""
    if os.geteuid() == 0 and not settings.queue_manager.run_as_root:
        folder = settings.queue_manager.data
        owner = folder.stat().st_uid if folder.exists() else None
        if owner == 0:
            yield fault(
                "user",
                f"The data folder {folder} belongs to root, and the daemon does not run as root.",
                f"Give it to the user of the daemon (chown -R qmd: {folder}), or set run_as_root ="
                " true in [queue_manager].",
            )


def check_name(settings: Settings) -> Iterator[Finding]:
    """Check that the name of this queue manager stands for an address of this computer."""
    name = settings.queue_manager.name or socket.gethostname().partition(".")[0]
    try:
        infos = socket.getaddrinfo(name, settings.listen.port, type=socket.SOCK_STREAM)
    except OSError as error:
        yield warning(
            "name",
            f"The name of this computer, {name}, cannot be resolved here ({error}): other computers"
            " write it in DIRECT=OS names.",
            "Enter it in DNS or /etc/hosts, or set name in [queue_manager].",
        )
        return
    addresses = sorted({str(info[4][0]) for info in infos})
    if name.partition(".")[0] == "localhost" and not is_loopback(settings.listen.address):
        yield fault(
            "name",
            f"The name of this queue manager is {name}: other computers that send to that name, for"
            " example acknowledgments, send to themselves.",
            "Name the computer (hostnamectl set-hostname), or set name in [queue_manager].",
        )
    elif not any(map(_is_here, addresses)):
        yield fault(
            "name",
            f"The name of this computer, {name}, stands for {', '.join(addresses)}, which is no"
            " address of this computer: messages to it go elsewhere.",
            "Correct DNS or /etc/hosts, or set name in [queue_manager].",
        )
    else:
        yield ok("name", f"{name} stands for {', '.join(addresses)}.")


def check_ports(settings: Settings, *, is_served: bool) -> Iterator[Finding]:
    """Check the ports: can be connected to if a daemon runs, else can be opened."""
    places = [("listen", settings.listen.address, settings.listen.port)]
    if settings.tls.enabled:
        places.append(("tls", settings.tls.address, settings.tls.port))
    if settings.remote.enabled:
        places.append(("remote", settings.remote.address, settings.remote.port))
    for section, address, port in places:
        if port:
            yield _reached(section, address, port) if is_served else _free(section, address, port)
    if settings.listen.address not in ("127.0.0.1", "::1") and not settings.peers.allow:
        yield note(
            "allow",
            "allow in [peers] is empty: no other computer can send to this one.",
            "Enter the addresses of the computers that are to send.",
        )
    if settings.listen.address in ("127.0.0.1", "::1"):
        yield note(
            "port",
            "The queue manager listens on the loopback address only: no other computer can send"
            " to it.",
            "Set address in [listen], and the peers in allow in [peers], if others are to send.",
        )


def _free(section: str, address: str, port: int) -> Finding:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            why = {
                errno.EADDRINUSE: _taken(port),
                errno.EADDRNOTAVAIL: "this computer does not have that address",
                errno.EACCES: "a user without privileges may not use that port",
            }.get(error.errno or 0, error.strerror or str(error))
            return fault(
                "port",
                f"The daemon cannot listen at {address} port {port}: {why}.",
                f"Look with `ss -tlnp`, or correct address and port in the section [{section}].",
            )
        try:
            socket.create_connection((_dialled(address), port), timeout=5).close()
        except OSError as error:
            return fault(
                "port",
                f"This computer cannot connect to itself at {address} port {port}: {error}.",
                "ip link set dev lo up, if lo is down; else a packet filter of this computer drops"
                " it (nft list ruleset).",
            )
    return ok("port", f"{address} port {port} is free for the daemon.")


def _taken(port: int) -> str:
    program = find_listener(port)
    if program is None:
        return "another program listens there"
    kind = (
        "another program of qmd, with another configuration,"
        if program.is_ours
        else "another program"
    )
    return f"{kind} listens there ({program})"


def _reached(section: str, address: str, port: int) -> Finding:
    try:
        socket.create_connection((_dialled(address), port), timeout=5).close()
    except OSError as error:
        return fault(
            "port",
            f"The daemon runs, and {address} port {port} does not answer: {error}.",
            f"If address or port in [{section}] was changed, restart the daemon; else look into"
            " its log, and for a packet filter.",
        )
    return ok("port", f"{address} port {port} answers.")


def _dialled(address: str) -> str:
    """Return an address to connect to of one that may be all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # nosec B104: dials, binds not


def check_socket(settings: Settings, *, is_served: bool) -> Iterator[Finding]:
    """Check the control socket, over which commands and applications reach the daemon."""
    path = settings.control.socket
    try:
        found = path.lstat()
    except FileNotFoundError:
        if is_served:
            yield fault(
                "socket",
                f"The daemon runs, and its control socket {path} does not exist.",
                "It was removed, or socket in [control] was changed: restart the daemon.",
            )
        elif not path.parent.is_dir():
            yield fault(
                "socket",
                f"The folder {path.parent} of the control socket does not exist.",
                "Create it for the user of the daemon; systemd creates /run/qmd at the start of"
                " the service (RuntimeDirectory).",
            )
        return
    except OSError as error:
        yield fault("socket", f"{path} cannot be reached: {error.strerror}.", "Correct its rights.")
        return
    if not stat.S_ISSOCK(found.st_mode):
        yield fault(
            "socket",
            f"{path} is not a socket: another file has its name.",
            "Move that file away, or set socket in [control].",
        )
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(path))
        except PermissionError:
            yield fault(
                "socket",
                f"This user may not use the control socket {path}, which belongs to"
                f" {user_name(found.st_uid)} (mode {stat.S_IMODE(found.st_mode):04o}).",
                "Enter the user in the group of the socket: group and mode in [control].",
            )
        except OSError as error:
            if is_served:
                yield fault(
                    "socket",
                    f"The daemon runs, and {path} does not answer: {error.strerror or error}.",
                    "Look into its log; another daemon may have replaced the socket: give each"
                    " its own in [control].",
                )
            else:
                yield note("socket", f"{path} is left of an earlier run; the start replaces it.")
        else:
            if is_served:
                yield ok("socket", f"{path} answers.")
            else:
                yield fault(
                    "socket",
                    f"Another daemon answers at {path}, and none runs on the data folder"
                    f" {settings.queue_manager.data}.",
                    "Two queue managers have the same control socket: give each its own in"
                    " [control].",
                )


def check_service(*, is_served: bool) -> Iterator[Finding]:
    """Check the unit of systemd, where there is one."""
    facts = _unit_facts()
    if facts.get("LoadState") != "loaded":
        if not is_served:
            yield fault(
                "service",
                "No daemon runs on the data folder.",
                "Start it: `qmd serve`, or install the service (deploy/README.md).",
            )
        return
    state, result = facts.get("ActiveState", ""), facts.get("Result", "")
    if state == "active":
        yield ok("service", f"{UNIT} is active, after {facts.get('NRestarts', '0')} restarts.")
        if int(facts.get("NRestarts") or 0) > 0:
            yield warning(
                "service",
                f"systemd has restarted {UNIT} {facts['NRestarts']} times.",
                f"Look for the reason: journalctl -u {UNIT}",
            )
    elif not is_served:
        yield fault(
            "service",
            f"{UNIT} is {state} ({result}, exit code {facts.get('ExecMainStatus', '?')}).",
            f"Look for the reason: journalctl -u {UNIT} -n 50. After exit code 78 it is not"
            " started again by itself: correct the configuration, then systemctl start qmd.",
        )
    if facts.get("UnitFileState") == "disabled":
        yield warning(
            "service",
            f"{UNIT} is not started when the computer starts.",
            f"systemctl enable {UNIT}",
        )


def _unit_facts() -> dict[str, str]:
    keys = "LoadState,ActiveState,Result,NRestarts,UnitFileState,ExecMainStatus"
    try:
        done = subprocess.run(  # nosec B603 B607: of the system, fixed arguments
            ["systemctl", "show", UNIT, "--property", keys],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if done.returncode != 0:
        return {}
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines())


def check_clock(settings: Settings) -> Iterator[Finding]:
    """Check that the clock is plausible, and not behind what it has said before."""
    now_s = time.time()
    if now_s < CLOCK_MIN_S:
        yield fault(
            "clock",
            f"The clock says {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(now_s))} UTC, which is"
            " in the past: sequences of messages begin with the time.",
            "Set the clock, and keep it right with a time service (chrony, systemd-timesyncd).",
        )
        return
    latest_s = _latest_change(settings.queue_manager.data)
    if latest_s > now_s + AHEAD_S:
        yield fault(
            "clock",
            f"The clock is {round(latest_s - now_s)} s behind the last change of the data folder:"
            " it was set back.",
            "Set the clock, and keep it right with a time service (chrony, systemd-timesyncd).",
        )
    else:
        yield ok("clock", "It is not behind the last change of the data folder.")


def _latest_change(folder: Path) -> float:
    times = [0.0]
    for name in ("queues.db", "queues.db-wal", "mark"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)


def check_certificates(settings: Settings) -> Iterator[Finding]:
    """Check the certificates of TLS and of remote control: readable, valid, with their keys."""
    pairs = []
    if settings.tls.enabled and settings.tls.certificate.exists():
        pairs.append(("tls", settings.tls.certificate, settings.tls.key))
    if settings.remote.enabled and not settings.remote.plain_on_loopback:
        pairs.append(("remote", settings.remote.certificate, settings.remote.key))
    for section, certificate, key in pairs:
        yield _check_certificate(section, certificate, key, settings.tls.warn_before_s)


def _check_certificate(section: str, certificate: Path, key: Path, warn_s: float) -> Finding:
    where = f"see certificate and key in the section [{section}]"
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = load_pem_private_key(key.read_bytes(), None)
    except OSError as error:
        return fault(
            "certificate",
            f"{error.filename} cannot be read: {error.strerror}.",
            f"Give the file to the user of the daemon; {where}.",
        )
    except (ValueError, TypeError) as error:
        return fault(
            "certificate", f"{certificate} or {key} is not PEM: {error}.", f"Replace it; {where}."
        )
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if found.public_key().public_bytes(*form) != private.public_key().public_bytes(*form):
        return fault(
            "certificate", f"{key} is not the key of {certificate}.", f"Install both; {where}."
        )
    now = datetime.datetime.now(datetime.UTC)
    until = found.not_valid_after_utc
    if until < now or found.not_valid_before_utc > now:
        state = "has expired" if until < now else "is not valid yet"
        return fault(
            "certificate",
            f"{certificate} {state} ({found.not_valid_before_utc:%Y-%m-%d} to {until:%Y-%m-%d}).",
            "Renew it (`qmd tls rotate` for sessions of queue managers), or set the clock.",
        )
    if key.stat().st_mode & 0o077:
        return warning(
            "certificate", f"Other users may read the private key {key}.", f"chmod 0600 {key}"
        )
    if until < now + datetime.timedelta(seconds=warn_s):
        return warning(
            "certificate", f"{certificate} expires on {until:%Y-%m-%d}.", "Renew it before."
        )
    return ok("certificate", f"{certificate} is valid until {until:%Y-%m-%d}.")


def is_loopback(address: str) -> bool:
    """Return whether an address is one of the computer itself alone."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _is_here(address: str) -> bool:
    """Return whether this computer has an address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
