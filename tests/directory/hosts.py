"""Two computers of a domain that run real daemons."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import tomllib
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.directory.domain import administrator, quoted_password
from tests.directory.domain_controller import DomainController
from tests.process.harness import Daemon

COMPUTER_PASSWORD = "Comp-P@ss1"
FIRST_ADDRESS = ipaddress.ip_address("127.127.0.0")  # behind those of domain controllers
TIMEOUT_S = 2
AGE = "1s"


@dataclass
class Hosts:
    """A domain controller, and two computers of the domain that run qmd."""

    controller: DomainController
    pc1: Daemon
    pc2: Daemon


def status(daemon: Daemon) -> dict[str, Any]:
    (facts,) = daemon.json("directory", "status", check=False)
    return facts


def lookup(daemon: Daemon, name: str) -> dict[str, Any]:
    (facts,) = daemon.json("directory", "lookup", name, "--fresh")
    return facts


def fails(daemon: Daemon, *arguments: str) -> str:
    """Return the errors of a command that must fail."""
    done = daemon.cli(*arguments, check=False)
    assert done.returncode != 0, done.stdout
    return done.stderr.decode()


def unknown() -> str:
    """Return the name of a public queue that does not exist and was never looked up."""
    return f"PUBLIC={uuid.uuid4()}"


def public(daemon: Daemon, queue: str) -> str:
    """Create a public queue; return its format name."""
    (made,) = daemon.json("queue", "create", queue, "--public")
    return str(made["public_name"])


def until_available(daemon: Daemon) -> None:
    while status(daemon)["state"] != "available":
        pass


def address(daemon: Daemon) -> str:
    return str(tomllib.loads(daemon.config.read_text())["listen"]["address"])


def two_computers(controller: DomainController, folder: Path, stack: contextlib.ExitStack) -> Hosts:
    """Start PC1 as a computer account of the directory, and PC2 as an administrator."""
    # A name in the directory has no port: each has the default port, on an address of its own.  No
    # process that runs tests at the same time has the same id.
    first = FIRST_ADDRESS + 2 * os.getpid()
    addresses = {"pc1": str(first), "pc2": str(first + 1)}

    async def fill() -> None:
        async with administrator(controller) as domain:
            for name, address in addresses.items():
                await domain.computer(
                    name.upper(), host=address, unicodePwd=quoted_password(COMPUTER_PASSWORD)
                )

    asyncio.run(fill())
    daemons = []
    for name, address in addresses.items():
        password = folder / f"{name}.password"
        password.touch(mode=0o600)
        password.write_text(COMPUTER_PASSWORD)
        as_computer = {"user": f"{name.upper()}$@msmq.test", "password_file": str(password)}
        # Lists need an administrator; a computer may change its own queues.
        as_admin = {"user": controller.admin, "password_file": str(controller.password_file)}
        settings: dict[str, Any] = {
            "queue_manager": {"name": name},
            "listen": {"address": address, "port": 1801},
            "delivery": {"retry_first": "100ms"},
            "directory": {
                "kind": "active-directory",
                "servers": [controller.url],
                "ca_file": str(controller.ca_file),
                "join": True,
                "timeout": f"{TIMEOUT_S}s",
                "connect_timeout": "1s",
                "age": AGE,
                "negative_age": AGE,
                "pause": "0s",
                **(as_computer if name == "pc1" else as_admin),
            },
        }
        daemons.append(Daemon(folder / name, settings=settings).start())
        stack.callback(daemons[-1].kill)
    return Hosts(controller, *daemons)
