"""Two hosts with doors for SRMP, and requests to them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.patience import END_S, LOOK_S
from tests.process.harness import Hosts, empty_queues
from tests.process.remote_daemon import make_certificates
from tests.process.srmp_door import SrmpDoor, host

HAS_OPENSSL = shutil.which("openssl") is not None


CLIENT_FILES = {
    "ca": "ca.crt", "client_certificate": "remote.crt", "client_key": "remote.key",
}  # fmt: skip


class Pair(NamedTuple):
    a: SrmpDoor
    b: SrmpDoor
    folder: Path  # of the certificates

    def logs(self) -> str:
        return f"{self.a.tail()}\n-- b --\n{self.b.tail()}\n{self.a.daemon.tail()}"

    def empty(self) -> Pair:
        """Empty the queues of both hosts."""
        for door in (self.a, self.b):
            empty_queues(door.daemon)
        return self

    def kill(self) -> None:
        self.a.kill()
        self.b.kill()


def make_pair(hosts: Hosts, folder: Path) -> Pair:
    """Return two hosts; the second one serves HTTPS, too, if certificates can be made."""
    tls: dict[str, Any] = {}
    ca: dict[str, Any] = {}
    if HAS_OPENSSL:
        make_certificates(folder)
        ca = {name: str(folder / file) for name, file in CLIENT_FILES.items()}
        files = {"certificate": "remote.crt", "key": "remote.key", "client_ca": "ca.crt"}
        tls = {name: str(folder / file) for name, file in files.items()}
    pair = Pair(host(hosts, **ca), host(hosts, **tls), folder)
    pair.b.daemon.create("orders", transactional=True)
    pair.b.daemon.create("loose")
    pair.a.daemon.create("acks")
    return pair


def until(pair: Pair, condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + END_S
    while not (found := condition()):
        assert time.monotonic() < deadline, pair.logs()[-6000:]
        time.sleep(LOOK_S)
    return found


def arrived(pair: Pair, queue: str, count: int) -> list[dict[str, Any]]:
    until(pair, lambda: pair.b.daemon.count(queue) >= count)
    return pair.b.daemon.receive(queue)


def waiting(pair: Pair) -> int:
    """Return the number of messages that the sender still keeps."""
    return sum(row["messages"] for row in pair.a.daemon.json("outgoing", "list"))


SIMPLE = """<se:Envelope xmlns:se="http://schemas.xmlsoap.org/soap/envelope/"
xmlns="http://schemas.xmlsoap.org/srmp/"><se:Header>
<path xmlns="http://schemas.xmlsoap.org/rp/" se:mustUnderstand="1">
<action>MSMQ:mqsender label</action><to>http://{host}/msmq/private$/{queue}</to>
<id>uuid:1@00000000-0000-0000-0000-000000000000</id></path>
<properties se:mustUnderstand="1"><expiresAt>{until}</expiresAt>
<sentAt>20070608T164419</sentAt></properties></se:Header><se:Body></se:Body></se:Envelope>"""


def request(door: SrmpDoor, queue: str, until: str = "20370609T164419", **changes: str) -> bytes:
    """Return the example of the specification, which no queue manager has sent."""
    place = f"127.0.0.1:{door.port}"
    text = SIMPLE.format(host=changes.get("host", place), queue=queue, until=until).encode()
    return (
        b"--MSMQ - SOAP boundary, 53287\r\nContent-Type: text/xml; charset=UTF-8\r\n"
        b"Content-Length: %d\r\n\r\n%b--MSMQ - SOAP boundary, 53287\r\n"
        b"Content-Type: application/octet-stream\r\nContent-Length: 13\r\n"
        b"Content-Id: body@ff3af301-3196-497a-a918-72147c871a13\r\n\r\n"
        b"First Message--MSMQ - SOAP boundary, 53287--" % (len(text), text)
    )
