"""The queues under measurement: how each is started, configured and connected.

A *link* is two servers, A and B, with a queue at B that A forwards to; a *local* queue has one.
Each has its data in a temporary folder and listens on free ports of the loopback address.  Servers
other than qmd are those of Debian's packages, of this host or of another Debian tree.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.pair import free_port
from benchmarks.peers.processes import CannotStart, Server, in_tree

QUEUE = "q"
PREFETCH = 1000  # messages that a link may have unacknowledged, where that can be set
TOOL_TIMEOUT_S = 60.0


@dataclass
class Running:
    """A peer that runs: its servers, and where clients send and receive."""

    protocol: str
    servers: list[Server]
    source: str  # for the client that sends
    target: str  # for the client that receives
    others: list[Server] = field(default_factory=list)  # helpers, not measured

    def stop(self) -> None:
        for server in (*reversed(self.servers), *self.others):
            server.stop()


@dataclass(frozen=True)
class Place:
    """Where a peer may put its files, and the Debian tree that its server comes from."""

    folder: Path
    tree: Path | None


@dataclass(frozen=True)
class Peer:
    """A queue to measure: what guarantees it gives, and its start."""

    name: str
    program: str  # "": qmd itself
    starts: Callable[[Place, bool], Running]  # the place, and whether it is a link
    promises: str  # what is on disk when a send is confirmed

    def missing(self, tree: Path | None) -> str:
        """Return why it cannot be measured here; "": it can."""
        if self.program and not _find(self.program, tree):
            return f"there is no {self.program}"
        if self.name == NATS_SYNC and _numbers(version("nats-server", tree)) < (2, 10):
            return f"{version('nats-server', tree)} cannot sync each message (2.10 can)"
        return ""


def _find(program: str, tree: Path | None) -> str | None:
    root = str(tree or "")
    folders = ("usr/lib/rabbitmq/bin", "usr/sbin", "usr/bin", "usr/local/bin")
    return shutil.which(program, path=":".join(f"{root}/{each}" for each in folders))


def _run(command: list[str], folder: Path, tree: Path | None) -> str:
    done = subprocess.run(
        in_tree(tree, folder, command),
        capture_output=True,
        text=True,
        timeout=TOOL_TIMEOUT_S,
        check=False,
    )
    return done.stdout + done.stderr


def version(program: str, tree: Path | None) -> str:
    """Return the version of a server, as it or its package states it."""
    if program == "rabbitmq-server":
        found = sorted(Path(f"{tree or ''}/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        return f"RabbitMQ {found[-1].name.partition('-')[2]}" if found else "RabbitMQ"
    text = _run([program, "--version"], Path("/tmp"), tree)
    number = re.search(r"v=?(\d[\w.]*)", text)
    names = {"nats-server": "NATS", "redis-server": "Redis"}
    return f"{names[program]} {number[1] if number else '(version unknown)'}"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", text)[:2])


def _qmd(place: Place, is_link: bool, kind: str = "transactional") -> Running:
    """Start one daemon or two, with a queue at the last."""
    names = ("b", "a") if is_link else ("a",)
    servers, ports = [], {name: free_port() for name in names}
    run = (sys.executable, "-m", "qmd")
    environment = {"QMD_QUEUE_MANAGER_RUN_AS_ROOT": "true"}
    for name in names:
        folder, listen = place.folder / name, f"127.0.0.1:{ports[name]}"
        done = _run([*run, "init", str(folder), "--listen", listen, "--name", name], folder, None)
        if not (folder / "qmd.toml").exists():
            raise CannotStart(f"qmd init failed:\n{done}")
        command = [*run, "--config", str(folder / "qmd.toml"), "serve"]
        servers.append(
            Server(
                f"qmd-{name}",
                command,
                folder=place.folder,
                port=ports[name],
                environment=environment,
            )
        )
    last = place.folder / names[0]
    create = [*run, "--config", str(last / "qmd.toml"), "queue", "create", QUEUE]
    _run([*create, "--transactional"] if kind == "transactional" else create, last, None)
    there = f"DIRECT=TCP:127.0.0.1:{ports[names[0]]}\\private$\\{QUEUE}" if is_link else QUEUE
    source = f"{place.folder / 'a' / 'qmd.sock'}|{there}|{kind}"
    return Running("qmd", servers[::-1], source, f"{last / 'qmd.sock'}|{QUEUE}")


def _qmd_recoverable(place: Place, is_link: bool) -> Running:
    return _qmd(place, is_link, "recoverable")


def _rabbitmq(place: Place, is_link: bool) -> Running:
    """Start one node or two with a quorum queue, and a shovel that confirms on confirm."""
    epmd_port = free_port()
    epmd = Server(
        "epmd",
        ["epmd", "-port", str(epmd_port), "-address", "127.0.0.1"],
        folder=place.folder,
        port=epmd_port,
        tree=place.tree,
    )
    names = ("b", "a") if is_link else ("a",)
    ports = {name: free_port() for name in names}
    servers: list[Server] = []
    running = Running(
        "amqp", servers, f"{ports['a']}|{QUEUE}", f"{ports[names[0]]}|{QUEUE}", [epmd]
    )
    try:
        for name in names:
            parameters = []
            if is_link and name == "a":
                parameters = [_shovel(ports["a"], ports["b"])]
            environment = _rabbitmq_files(place.folder, name, ports[name], parameters)
            servers.insert(
                0,
                Server(
                    f"rabbitmq-{name}",
                    ["/usr/lib/rabbitmq/bin/rabbitmq-server"],
                    folder=place.folder,
                    port=ports[name],
                    environment=environment | {"ERL_EPMD_PORT": str(epmd_port)},
                    tree=place.tree,
                ),
            )
    except BaseException:
        running.stop()
        raise
    return running


def _shovel(source: int, target: int) -> dict[str, Any]:
    address = "amqp://guest:guest@127.0.0.1:{}"
    value = {
        "src-protocol": "amqp091",
        "src-uri": address.format(source),
        "src-queue": QUEUE,
        "src-prefetch-count": PREFETCH,
        "dest-protocol": "amqp091",
        "dest-uri": address.format(target),
        "dest-queue": QUEUE,
        "ack-mode": "on-confirm",
    }
    return {"vhost": "/", "component": "shovel", "name": "link", "value": value}


def _rabbitmq_files(
    folder: Path, name: str, port: int, parameters: list[dict[str, Any]]
) -> dict[str, str]:
    """Write the configuration of a node; return its environment."""
    salt = b"salt"
    digest = hashlib.sha256(salt + b"guest").digest()
    user = {
        "name": "guest",
        "password_hash": base64.b64encode(salt + digest).decode(),
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": ["administrator"],
    }
    rights = {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    queue = {"name": QUEUE, "vhost": "/", "durable": True, "auto_delete": False}
    own = folder / f"rabbitmq-{name}"
    (own / "db").mkdir(parents=True)
    definitions = {
        "users": [user],
        "vhosts": [{"name": "/"}],
        "permissions": [rights],
        "queues": [queue | {"arguments": {"x-queue-type": "quorum"}}],
        "parameters": parameters,
    }
    (own / "definitions.json").write_text(json.dumps(definitions))
    (own / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\nload_definitions = {own / 'definitions.json'}\n"
        "log.file.level = warning\ndisk_free_limit.absolute = 100MB\n"
    )
    (own / "plugins").write_text("[rabbitmq_shovel].")
    return {
        "RABBITMQ_NODENAME": f"bench-{name}@localhost",
        "RABBITMQ_CONFIG_FILE": str(own / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(own / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(own / "db"),
        "RABBITMQ_LOG_BASE": str(own / "log"),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "HOME": str(own),
    }


def _nats(place: Place, is_link: bool, sync: str = "") -> Running:
    """Start a server with a work queue, or two: B is a leaf node whose stream sources A's."""
    names = ("a", "b") if is_link else ("a",)
    ports, leaf = {name: free_port() for name in names}, free_port()
    servers: list[Server] = []
    running = Running("nats", servers, f"{ports['a']}|q.a", "")
    try:
        for name in names:
            link = (
                f"listen: 127.0.0.1:{leaf}"
                if name == "a"
                else f"remotes: [{{url: nats://127.0.0.1:{leaf}}}]"
            )
            store = place.folder / f"nats-{name}"
            file = place.folder / f"nats-{name}.conf"
            file.write_text(
                f"server_name: {name}\nlisten: 127.0.0.1:{ports[name]}\nleafnodes {{ {link} }}\n"
                f"jetstream {{ store_dir: {store}, domain: {name.upper()}{sync} }}\n"
            )
            command = ["nats-server", "-c", str(file)]
            server = Server(
                f"nats-{name}", command, folder=place.folder, port=ports[name], tree=place.tree
            )
            servers.append(server)
        asyncio.run(_create_streams(ports))
    except BaseException:
        running.stop()
        raise
    running.target = f"{ports['b']}|DST/q.a" if is_link else f"{ports['a']}|SRC/q.a"
    return running


async def _create_streams(ports: dict[str, int]) -> None:
    import nats
    from nats.js.api import ExternalStream, RetentionPolicy, StorageType, StreamSource

    is_link = "b" in ports
    here = await nats.connect(f"nats://127.0.0.1:{ports['a']}")
    await here.jetstream().add_stream(
        name="SRC",
        subjects=["q.a"],
        storage=StorageType.FILE,
        retention=RetentionPolicy.LIMITS if is_link else RetentionPolicy.WORK_QUEUE,
    )
    await here.close()
    if is_link:
        there = await nats.connect(f"nats://127.0.0.1:{ports['b']}")
        await asyncio.sleep(1)  # the leaf node joins its hub
        source = StreamSource(name="SRC", external=ExternalStream(api="$JS.A.API"))
        await there.jetstream().add_stream(
            name="DST",
            storage=StorageType.FILE,
            retention=RetentionPolicy.WORK_QUEUE,
            sources=[source],
        )
        await there.close()


def _nats_sync(place: Place, is_link: bool) -> Running:
    return _nats(place, is_link, ", sync_interval: always")


def _redis(place: Place, is_link: bool) -> Running:
    """Start a server that syncs its log before it answers."""
    assert not is_link, "Redis has no link that forwards a stream"
    port = free_port()
    command = [
        *("redis-server", "--port", str(port), "--bind", "127.0.0.1"),
        *("--dir", str(place.folder), "--save", "", "--appendonly", "yes"),
        *("--appendfsync", "always"),
    ]
    server = Server("redis", command, folder=place.folder, port=port, tree=place.tree)
    return Running("redis", [server], f"{port}|{QUEUE}", f"{port}|{QUEUE}")


@contextlib.contextmanager
def started(peer: Peer, place: Place, *, is_link: bool) -> Iterator[Running]:
    """Start a peer; stop its servers at the end, whatever happens."""
    running = peer.starts(place, is_link)
    try:
        yield running
    finally:
        running.stop()


NATS_SYNC = "NATS, sync always"
QMD, RABBITMQ, NATS, REDIS = "qmd", "RabbitMQ", "NATS", "Redis"
RECOVERABLE = "qmd, recoverable"
PEERS = {
    peer.name: peer
    for peer in (
        Peer(QMD, "", _qmd, "synced; exactly once and in order from A to B"),
        Peer(RECOVERABLE, "", _qmd_recoverable, "synced; in order"),
        Peer(RABBITMQ, "rabbitmq-server", _rabbitmq, "synced (quorum queue); a shovel may double"),
        Peer(NATS, "nats-server", _nats, "written; synced every 2 minutes"),
        Peer(NATS_SYNC, "nats-server", _nats_sync, "synced, each message"),
        Peer(REDIS, "redis-server", _redis, "synced (appendfsync always)"),
    )
}
LINKS = (QMD, RECOVERABLE, RABBITMQ, NATS, NATS_SYNC)
LOCALS = (QMD, RABBITMQ, NATS, NATS_SYNC, REDIS)
