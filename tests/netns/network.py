"""Three computers and a router between them, in network namespaces of this machine.

    a ──── ┐
    b ──── r    each cable is a veth pair with addresses of its own, 10.77.N.0/24
    c ──── ┘    all packets to and from c pass a slow proxy on the router

The router loses, delays, refuses and drops packets on request.  It needs root, `ip`, `tc`, `ss`
and `nft`; nothing is visible outside of the namespaces, and `close` removes everything.

"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ("a", "b", "c")
ROUTER = "r"
BEHIND_THE_PROXY = "c"
PORT = 1801
PROXY_PORT = 2001
TOOLS = ("ip", "tc", "ss", "nft", "nsenter")
_PREFIX = "qmd-test-"


def why_not() -> str | None:
    """Return the reason why this machine cannot make such a network, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)} (packages iproute2 and nftables)"
    network = Network()
    try:
        network.open()
    except subprocess.CalledProcessError as error:
        return f"this machine does not let us make networks: {' '.join(error.cmd)}: {error.stderr}"
    finally:
        network.close()
    return None


class Network:
    """A network: `open`, faults, `heal`, `close`."""

    def __init__(self) -> None:
        self._names = {host: f"{_PREFIX}{os.getpid()}-{host}" for host in (*HOSTS, ROUTER)}
        self._proxy: subprocess.Popen[str] | None = None
        self._slow: list[str] = []
        # : Packets that were lost, dropped or answered with a reset.
        self.harmed_packets = 0

    # Life cycle.

    def open(self) -> None:
        """Open the network.  Raises subprocess.CalledProcessError."""
        remove_leftovers()
        for name in self._names.values():
            _run("ip", "netns", "add", name)
        for number, host in enumerate(HOSTS, 1):
            near, far = self._names[host], self._names[ROUTER]
            _run("ip", "link", "add", "wire", "netns", near, "type", "veth",
                 "peer", "name", host, "netns", far)  # fmt: skip
            self.run(host, "ip", "address", "add", f"10.77.{number}.2/24", "dev", "wire")
            self.run(ROUTER, "ip", "address", "add", f"10.77.{number}.1/24", "dev", host)
            self.run(host, "ip", "link", "set", "dev", "wire", "up")
            self.run(host, "ip", "link", "set", "dev", "lo", "up")
            self.run(ROUTER, "ip", "link", "set", "dev", host, "up")
            self.run(host, "ip", "route", "add", "default", "via", f"10.77.{number}.1")
        self.run(ROUTER, "ip", "link", "set", "dev", "lo", "up")
        self.run(ROUTER, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self._nft(
            "add table inet q",
            "add chain inet q loss { type filter hook postrouting priority 0; }",
            "add chain inet q refusal { type filter hook forward priority 0; }",
            "add chain inet q proxy { type nat hook prerouting priority -100; }",
            f'add rule inet q proxy iifname "{BEHIND_THE_PROXY}" tcp dport {PORT}'
            f" redirect to :{PROXY_PORT}",
            f"add rule inet q proxy ip daddr {self.address(BEHIND_THE_PROXY)} tcp dport {PORT}"
            f" redirect to :{PROXY_PORT}",
        )

    def start_proxy(self, delay_s: float, seed: int) -> None:
        """Start the proxy; until it listens, the computer behind it is unreachable."""
        command = [sys.executable, "-m", "tests.netns.proxy", str(PROXY_PORT)]
        self._proxy = subprocess.Popen(
            [*self.prefix(ROUTER), *command, str(delay_s), str(seed)],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._proxy.stdout is not None
        if self._proxy.stdout.readline() != "ready\n":
            raise RuntimeError("the proxy did not start")

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.kill()
            self._proxy.wait()
            assert self._proxy.stdout is not None
            self._proxy.stdout.close()
            self._proxy = None
        for name in self._names.values():
            _remove(name)

    # Computers.

    def address(self, host: str) -> str:
        return f"10.77.{HOSTS.index(host) + 1}.2"

    def prefix(self, host: str) -> tuple[str, ...]:
        """Return the beginning of a command line that runs on that computer."""
        # Not `ip netns exec`: it copies all mounts, which then cannot be unmounted meanwhile.
        return ("nsenter", f"--net=/run/netns/{self._names[host]}")

    def run(self, host: str, *command: str) -> str:
        return _run(*self.prefix(host), *command)

    # Faults.

    def lose(self, percent: int) -> None:
        """Lose this share of all packets, in both directions."""
        self._harm("loss", f"numgen random mod 100 < {percent} counter drop")

    def swallow(self, *ways: tuple[str, str]) -> None:
        """Drop all packets from one computer to another."""
        rule = "ip saddr {} ip daddr {} counter drop"
        self._harm("loss", *(rule.format(self._net(a), self._net(b)) for a, b in ways))

    def refuse(self, percent: int) -> None:
        """Answer this share of all packets with a reset of their connection."""
        self._harm(
            "refusal",
            f"meta l4proto tcp numgen random mod 100 < {percent} counter reject with tcp reset",
        )

    def isolate(self, host: str) -> None:
        """Drop all packets from and to a computer, without an error to either side."""
        self.run(ROUTER, "ip", "link", "set", "dev", host, "down")

    def reconnect(self, host: str) -> None:
        self.run(ROUTER, "ip", "link", "set", "dev", host, "up")

    def slow(self, rate: str) -> None:
        """Limit the rate of every cable towards its computer."""
        for host in HOSTS:
            shaping = ("tbf", "rate", rate, "burst", "4k", "latency", "1s")
            self.run(ROUTER, "tc", "qdisc", "replace", "dev", host, "root", *shaping)
            self._slow.append(host)

    def abort_connections(self, host: str) -> None:
        """Abort connections as a middlebox does: both ends get a reset."""
        self.run(host, "ss", "-K", f"( dport = :{PORT} or sport = :{PORT} )")

    def heal(self) -> None:
        for chain in ("loss", "refusal"):
            self._harm(chain)
        for host in HOSTS:
            self.reconnect(host)
        for host in set(self._slow):
            self.run(ROUTER, "tc", "qdisc", "del", "dev", host, "root")
        self._slow.clear()

    def _harm(self, chain: str, *rules: str) -> None:
        listed = self.run(ROUTER, "nft", "list", "chain", "inet", "q", chain)
        self.harmed_packets += sum(map(int, re.findall(r"counter packets (\d+)", listed)))
        added = (f"add rule inet q {chain} {rule}" for rule in rules)
        self._nft(f"flush chain inet q {chain}", *added)

    def _nft(self, *lines: str) -> None:
        """Apply all rules or none."""
        script = "".join(f"{line}\n" for line in lines)
        _run(*self.prefix(ROUTER), "nft", "-f", "-", input=script)

    def _net(self, host: str) -> str:
        return f"10.77.{HOSTS.index(host) + 1}.0/24"


def remove_leftovers() -> None:
    """Remove namespaces of killed runs; their names have the number of a process that has ended."""
    for line in _run("ip", "netns", "list").splitlines():
        name = line.partition(" ")[0]
        owner = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and not Path(f"/proc/{owner}").exists():
            _remove(name)


def _remove(name: str) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):
        _run("ip", "netns", "del", name)


def _run(*command: str, input: str | None = None) -> str:
    done = subprocess.run(
        command,
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout
