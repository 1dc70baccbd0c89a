"""A real Active Directory: Samba's domain controller in a folder of its own, on loopback.

It needs neither systemd nor the system's Samba settings, and ends with this process: `samba -i`
stops when its input ends.  Samba's LDAP ports are fixed.  Where ports below 1024 may be opened,
each controller has an address 127.x.y.z of its own; elsewhere it runs in a network namespace of its
own, and a relay leads to it from free ports of 127.0.0.1.

"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

from tests.directory.certificates import Authority
from tests.patience import END_S

HERE = Path(__file__).parent
PORTS = (389, 636, 3268, 3269, 88)
START_S_MAX = END_S
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
SYSTEM_PYTHON = "/usr/bin/python3"
LEFT_BEHIND = ("ldapi", "ldap_priv", "msg.sock", "smbd.tmp")  # sockets of an earlier controller

REALM = "MSMQ.TEST"
PASSWORD = "P@ssw0rd!x"


@functools.cache
def why_not() -> str:
    """Return the reason why this machine cannot run a domain controller; "" where it can."""
    if shutil.which("samba", path=ENVIRONMENT["PATH"]) is None:
        return "samba is not installed"
    found = subprocess.run(
        (SYSTEM_PYTHON, "-I", "-c", "import samba.provision, samba.dsdb"),
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    )
    if found.returncode:
        return "samba-ad-provision is not installed"
    if not _may_open_low_ports() and not _may_have_namespaces():
        return "neither ports below 1024 nor user namespaces are allowed here"
    return ""


@functools.cache
def _may_open_low_ports() -> bool:
    try:
        free_address()
    except PermissionError:
        return False
    return True


def _may_have_namespaces() -> bool:
    try:
        return (
            subprocess.run(
                ("unshare", "--user", "--map-root-user", "--net", "true"),
                env=ENVIRONMENT,
                capture_output=True,
                check=False,
            ).returncode
            == 0
        )
    except FileNotFoundError:
        return False


def free_address() -> str:
    """Return a loopback address with free ports.  Raises PermissionError."""
    while True:
        address = str(ipaddress.ip_address("127.64.0.0") + random.randrange(1, 1 << 21))
        with contextlib.suppress(FileExistsError), contextlib.ExitStack() as stack:
            try:
                for port in PORTS:
                    taken = stack.enter_context(socket.socket())
                    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    taken.bind((address, port))
            except PermissionError:
                raise
            except OSError:
                continue
            return address


class DomainController:
    """One controller of the domain msmq.test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._with_root = _may_open_low_ports()
        self.address = free_address() if self._with_root else "127.0.0.1"
        self.ports = {port: port for port in PORTS}
        self.host = f"dc1.{REALM.lower()}"
        self.base = ",".join(f"DC={part}" for part in REALM.lower().split("."))
        self.admin = f"Administrator@{REALM.lower()}"
        self.password = PASSWORD
        self.ca_file = folder / "private/tls/ca.pem"
        self.password_file = folder / "password"
        self._process: subprocess.Popen[bytes] | None = None
        self._listeners: dict[int, socket.socket] = {}

    @property
    def url(self) -> str:
        return f"ldaps://{self.address}:{self.ports[636]}"

    # Preparation.

    def provision(self) -> None:
        """Make a new domain: 3 s."""
        self.folder.mkdir(parents=True)
        self._run("provision.py", str(self.folder), self.address, self.password, REALM)
        (self.folder / "address").write_text(self.address)
        self._certify()

    def copy(self, template: Path) -> None:
        """Make a copy of a stopped domain: 0.1 s."""
        shutil.copytree(
            template,
            self.folder,
            ignore=lambda _, names: [
                name for name in names if name in LEFT_BEHIND or name.endswith(".pid")
            ],
        )
        old = (template / "address").read_text()
        configuration = self.folder / "smb.conf"
        text = configuration.read_text().replace(str(template), str(self.folder))
        configuration.write_text(text.replace(f"{old}/8", f"{self.address}/8"))
        (self.folder / "address").write_text(self.address)
        self._certify()

    def fill(self, count: int) -> None:
        """Add PC1 with `count` queues (q0000 ...) and their list `all` to the stopped domain."""
        self._run("fill.py", str(self.folder), str(count))

    def _run(self, program: str, *arguments: str) -> None:
        """Run a program with the interpreter of the system, which has Samba's modules."""
        done = subprocess.run(
            (SYSTEM_PYTHON, "-I", str(HERE / program), *arguments),
            env=ENVIRONMENT,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()[-4000:]

    def _certify(self) -> None:
        folder = self.ca_file.parent
        hosts = (self.host, self.address, "127.0.0.1", "localhost")
        Authority(folder).sign(folder, self.host, hosts=hosts)
        self.password_file.touch(mode=0o600)
        self.password_file.write_text(self.password)

    # Life cycle.

    def start(self) -> None:
        """Start, and wait until it answers with TLS: half a second."""
        assert self._process is None
        command = ["samba", "-i", "-M", "single", "-s", str(self.folder / "smb.conf")]
        command += ["--debug-stdout", "-d", "1"]
        if not self._with_root:
            command = [*self._namespace(), *command]
        with (self.folder / "samba.out").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=ENVIRONMENT,
                pass_fds=[one.fileno() for one in self._listeners.values()],
            )
        context = ssl.create_default_context(cafile=self.ca_file)
        give_up_at = time.monotonic() + START_S_MAX
        while True:
            assert self._process.poll() is None, (self.folder / "samba.out").read_text()[-4000:]
            with contextlib.suppress(OSError):
                plain = socket.create_connection((self.address, self.ports[636]), 2)
                with plain, context.wrap_socket(plain, server_hostname=self.host):
                    return
            assert time.monotonic() < give_up_at, "samba does not answer"
            time.sleep(0.02)

    def _namespace(self) -> list[str]:
        """Open sockets that lead to its namespace: a socket keeps that of its creation."""
        for port in PORTS if not self._listeners else ():
            listener = socket.create_server(("127.0.0.1", 0), backlog=64)
            self._listeners[port] = listener
            self.ports[port] = listener.getsockname()[1]
        pairs = ",".join(f"{one.fileno()}:{port}" for port, one in self._listeners.items())
        return [
            *("unshare", "--user", "--map-root-user", "--net", "--kill-child", "--fork"),
            *(SYSTEM_PYTHON, "-I", str(HERE / "into_namespace.py"), pairs),
        ]

    def stop(self) -> None:
        """Stop it; its state is kept."""
        if self._process is None:
            return
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        process, self._process = self._process, None
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdin is not None
        process.stdin.close()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        process, self._process = self._process, None
        assert process is not None
        process.wait()
        assert process.stdin is not None
        process.stdin.close()

    def freeze(self) -> None:
        """Freeze it: the kernel accepts connections, and they get no answer."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the server, which in a namespace is a grandchild."""
        assert self._process is not None
        for pid in _family(self._process.pid):
            with contextlib.suppress(ProcessLookupError):  # it ended with its child
                os.kill(pid, number)

    def close(self) -> None:
        self.stop()
        for listener in self._listeners.values():
            listener.close()


def _family(pid: int) -> list[int]:
    """Return a process and all of its descendants, the youngest first."""
    children: list[str] = []
    with contextlib.suppress(OSError):  # it has ended
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [*(one for child in children for one in _family(int(child))), pid]
