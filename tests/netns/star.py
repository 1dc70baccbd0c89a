"""Four computers that reach each other only over the queue manager of a fifth one.

    a ──┐   ┌── c        each cable is a veth pair with addresses of its own, 10.78.N.0/24 and
        ├─r─┤            fd78:N::/64; r has the address .1 on each of them
    b ──┘   └── d        and forwards no packets: messages pass, connections do not

It needs root, `ip` and `nsenter`; nothing is visible outside of the namespaces, and `close` removes
everything.

"""

from __future__ import annotations

import os
import shutil
import subprocess

from tests.netns.network import _remove, _run, remove_leftovers

HOSTS = ("a", "b", "c", "d")
ROUTER = "r"
EVERYBODY = (*HOSTS, ROUTER)
TOOLS = ("ip", "nsenter")
_PREFIX = "qmd-test-"


def why_not() -> str | None:
    """Return the reason why this machine cannot make such a network, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)} (package iproute2)"
    star = Star()
    try:
        star.open()
    except subprocess.CalledProcessError as error:
        return f"this machine does not let us make networks: {' '.join(error.cmd)}: {error.stderr}"
    finally:
        star.close()
    return None


class Star:
    """A network: `open`, cut and join, `close`."""

    def __init__(self) -> None:
        self._names = {host: f"{_PREFIX}{os.getpid()}-star-{host}" for host in EVERYBODY}

    def open(self) -> None:
        """Open the network.  Raises subprocess.CalledProcessError."""
        remove_leftovers()
        for name in self._names.values():
            _run("ip", "netns", "add", name)
        self.run(ROUTER, "ip", "link", "set", "dev", "lo", "up")
        self.run(ROUTER, "sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward")
        for number, host in enumerate(HOSTS, 1):
            near, far = self._names[host], self._names[ROUTER]
            _run("ip", "link", "add", "wire", "netns", near, "type", "veth",
                 "peer", "name", host, "netns", far)  # fmt: skip
            for where, device, last in ((host, "wire", 2), (ROUTER, host, 1)):
                self.run(where, "ip", "address", "add", f"10.78.{number}.{last}/24", "dev", device)
                self.run(where, "ip", "address", "add", f"fd78:{number}::{last}/64", "dev", device,
                         "nodad")  # fmt: skip
                self.run(where, "ip", "link", "set", "dev", device, "up")
            self.run(host, "ip", "link", "set", "dev", "lo", "up")
            # Routes to the other addresses exist, and no computer answers there.
            self.run(host, "ip", "route", "add", "default", "via", self.gate(host))

    def close(self) -> None:
        for name in self._names.values():
            _remove(name)

    def address(self, host: str) -> str:
        return f"10.78.{HOSTS.index(host) + 1}.2" if host != ROUTER else "10.78.1.1"

    def address6(self, host: str) -> str:
        return f"fd78:{HOSTS.index(host) + 1}::2" if host != ROUTER else "fd78:1::1"

    def gate(self, host: str) -> str:
        """Return the router's address for a computer."""
        return f"10.78.{HOSTS.index(host) + 1}.1"

    def gate6(self, host: str) -> str:
        return f"fd78:{HOSTS.index(host) + 1}::1"

    def prefix(self, host: str) -> tuple[str, ...]:
        """Return the beginning of a command line that runs on that computer."""
        return ("nsenter", f"--net=/run/netns/{self._names[host]}")

    def run(self, host: str, *command: str) -> str:
        return _run(*self.prefix(host), *command)

    def cut(self, host: str) -> None:
        """Drop all packets from and to a computer, without an error to either side."""
        self.run(ROUTER, "ip", "link", "set", "dev", host, "down")

    def join(self, host: str) -> None:
        self.run(ROUTER, "ip", "link", "set", "dev", host, "up")
        if ":" not in self.run(
            ROUTER, "ip", "-6", "address", "show", "dev", host, "scope", "global"
        ):
            number = HOSTS.index(host) + 1  # the kernel has removed it with the cable
            self.run(ROUTER, "ip", "address", "add", f"fd78:{number}::1/64", "dev", host, "nodad")
