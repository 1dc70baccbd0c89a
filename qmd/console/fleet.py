"""The queue managers of the console: connections by the rights of users, and shared figures.

All pages that use the same connection share its figures: many open pages cost a queue manager as
much as one.  The figures are asked again when they are older than `refresh_s`, and never so often
that asking takes more than a fiftieth of the time.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from qmd.client import ClientError, NotConnected, QueueManager
from qmd.client.address import (
    Address,
    DoorAddress,
    RemoteAddress,
    SocketAddress,
    TokenAddress,
    address_of,
)
from qmd.config.console_hosts import ConsoleHost
from qmd.config.settings import Settings
from qmd.console.roles import Identity
from qmd.console.speed import Speed, SpeedMeter

Facts = dict[str, Any]

CONNECTIONS_MAX = 500
IDLE_S = 600.0  # a connection without requests is closed
ANSWER_S = 10.0
WORKER_S = 60.0  # how long a job waits for a queue manager that restarts
SAMPLES = 60
SAMPLE_S = 10.0  # between two samples of sparklines
SHARE = 50  # asking a question again may take one part of so many
KEPT_MAX = 200  # answers of one connection that pages share


class Figures:
    """The state of one queue manager at one moment, for users with the same rights."""

    def __init__(self) -> None:
        self.status: Facts = {}
        self.queues: list[Facts] = []
        self.outgoing: list[Facts] = []
        self.sessions: list[Facts] = []
        self.problems: list[str] = []  # parts that the rights of the user do not include
        self.answer_s = 0.0
        self.speed = Speed()


class _Kept:
    """The answer to one question, or the error, and the time that it took."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.value: Any = None
        self.error: ClientError | None = None
        self.asked_at = 0.0
        self.cost_s = 0.0


class Link:
    """A connection to one queue manager with the rights of one credential."""

    def __init__(self, host: ConsoleHost, address: Address, refresh_s: float) -> None:
        self.host = host
        self.qm = QueueManager(address, reconnect_s=0.0)
        self.used_at = time.monotonic()
        self.history: dict[str, deque[int]] = {}  # messages of each queue, and of each destination
        self._refresh_s = refresh_s
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._sampled_at = 0.0
        self._meter = SpeedMeter()

    async def figures(self) -> Figures:
        """Return the figures, asked if they are too old.  Raises ClientError."""
        found: Figures = await self.shared("figures", self._ask_all)
        return found

    async def shared(self, name: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer to a question that many pages ask; it may be some seconds old.

        Raises ClientError.
        """
        kept = self._kept.setdefault(name, _Kept())
        self._kept.move_to_end(name)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        async with kept.lock:
            age_s = time.monotonic() - kept.asked_at
            if not kept.asked_at or age_s > max(self._refresh_s, SHARE * kept.cost_s):
                await self._ask(kept, ask)
            if kept.error is not None:
                raise kept.error
            return kept.value

    def forget(self) -> None:
        """Ask everything again for the next page: something was changed."""
        self._kept.clear()

    async def _ask(self, kept: _Kept, ask: Callable[[], Awaitable[Any]]) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_S):
                kept.value, kept.error = await ask(), None
        except TimeoutError:
            kept.error = _not_answering(self.host.name)
        except ClientError as error:
            kept.error = error
        kept.asked_at = time.monotonic()
        kept.cost_s = kept.asked_at - began

    async def _ask_all(self) -> Figures:
        found, qm = Figures(), self.qm
        began = time.monotonic()
        found.status = await qm.status()
        found.answer_s = time.monotonic() - began
        found.queues, found.speed = await asyncio.gather(
            qm.list_queues(system=True), self._meter.measure(qm)
        )
        parts = await asyncio.gather(qm.list_outgoing(), qm.list_sessions(), return_exceptions=True)
        for part in parts:
            if isinstance(part, NotConnected) or (
                isinstance(part, BaseException) and not isinstance(part, ClientError)
            ):
                raise part
        found.outgoing, found.sessions = (each if isinstance(each, list) else [] for each in parts)
        found.problems = sorted({str(each) for each in parts if isinstance(each, ClientError)})
        self._sample(found)
        return found

    def _sample(self, figures: Figures) -> None:
        now = time.monotonic()
        if self._sampled_at and now - self._sampled_at < SAMPLE_S:
            return
        self._sampled_at = now
        seen: dict[str, deque[int]] = {}
        rows = [(each["name"], each) for each in figures.queues]
        rows += [(each["destination"], each) for each in figures.outgoing]
        for name, row in rows:
            seen[name] = self.history.get(name) or deque(maxlen=SAMPLES)
            seen[name].append(int(row["messages"]))
        self.history = seen


class Fleet:
    """All hosts, and the connections that are open."""

    def __init__(self, settings: Settings) -> None:
        self._console = settings.console
        self._socket = settings.control.socket
        self.hosts = {host.name: host for host in settings.console.hosts}
        self._links: OrderedDict[tuple[str, Address], Link] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def link(self, name: str, identity: Identity) -> Link:
        """Return the connection of a user to a host; it opens on its first use.

        Raises KeyError for an unknown host, ClientError for credentials that cannot be read.
        """
        host = self.hosts[name]
        address = self._address(host, identity)
        link = self._links.get((name, address))
        if link is None:
            link = self._links[name, address] = Link(host, address, self._console.refresh_s)
            while len(self._links) > CONNECTIONS_MAX:
                self._close(next(iter(self._links)))
        self._links.move_to_end((name, address))
        link.used_at = time.monotonic()
        return link

    def worker(self, name: str, identity: Identity) -> QueueManager:
        """Return a connection for one job, which may wait for a restart of the queue manager.

        Raises KeyError, ClientError.
        """
        address = self._address(self.hosts[name], identity)
        return QueueManager(address, reconnect_s=WORKER_S)

    def _address(self, host: ConsoleHost, identity: Identity) -> Address:
        is_remote = "://" in host.where
        socket = Path(host.where) if host.where and not is_remote else self._socket
        file = host.token_file(identity.role.word)
        if is_remote:
            if not identity.token:
                if file is None:
                    raise NotConnected(
                        f"the console has no token of a {identity.role.word} for {host.name}",
                        f"name one in hosts of the section [console]: {identity.role.word}=FILE",
                        code="no_remote_token",
                    )
                return address_of(host.where, token_file=file, ca_file=host.ca_file)
            found = _parts(host)
            return RemoteAddress(
                *found, identity.token, host.ca_file, is_plain=host.where.startswith("tcp://")
            )
        if identity.token:
            return TokenAddress(socket, identity.token)
        if self._console.act_for and not identity.is_own:
            return DoorAddress(socket, (f"sasl:{identity.name}",))
        if file is not None and not identity.is_own:
            try:
                return TokenAddress(socket, file.read_text(encoding="utf-8-sig").strip())
            except (OSError, UnicodeDecodeError) as error:
                raise NotConnected(
                    f"the token file {file} cannot be read: {error}",
                    "check its path and its read permission",
                    code="remote_token_unreadable",
                ) from error
        return SocketAddress(socket)

    def command(self, name: str, identity: Identity) -> list[str]:
        """Return the beginning of the command line for a host, with the rights of a user.

        Raises KeyError.
        """
        host = self.hosts[name]
        if "://" not in host.where:
            return ["qmd"]
        where = host.where.removeprefix("tls://")
        words = ["qmd", "--host", where]
        file = host.token_file(identity.role.word)
        if file is not None and not identity.token:
            words += ["--token-file", str(file)]
        if host.ca_file is not None:
            words += ["--ca-file", str(host.ca_file)]
        return words

    async def each(
        self, identity: Identity, look: Callable[[Link], Any]
    ) -> dict[str, Any | ClientError]:
        """Return the result of `look` for each host, or the error, asked at the same time."""

        async def one(name: str) -> Any:
            try:
                return await look(self.link(name, identity))
            except ClientError as error:
                return error
            except TimeoutError:
                return _not_answering(name)

        names = list(self.hosts)
        return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))

    async def sample(self) -> None:
        """Take samples of the connections in use, and close the others."""
        for key, link in list(self._links.items()):
            if time.monotonic() - link.used_at > IDLE_S:
                self._close(key)
                continue
            try:
                await link.figures()
            except ClientError:
                continue  # pages say why

    async def close(self) -> None:
        """Close all connections."""
        for key in list(self._links):
            self._close(key)
        if self._closing:
            await asyncio.wait(self._closing)

    def _close(self, key: tuple[str, Address]) -> None:
        task = asyncio.get_running_loop().create_task(self._links.pop(key).qm.caller.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _parts(host: ConsoleHost) -> tuple[str, int]:
    file = next(iter(host.tokens.values()))
    found = address_of(host.where, token_file=file, ca_file=host.ca_file)
    assert isinstance(found, RemoteAddress)
    return found.host, found.port


def _not_answering(host: str) -> NotConnected:
    return NotConnected(
        f"{host} did not answer in time", "look at its log", code="daemon_not_answering"
    )
