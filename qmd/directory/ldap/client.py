"""LDAP client for several equivalent servers, with one connection at a time.

The connection is opened when it is needed, and again after it is lost. The servers are tried in
turn, the last good one first. If none is available, the next attempt waits (`Retry`); until then
every operation fails at once, with the reason and the time of the failure. A search that lost its
connection is tried once more on another one. A change is not, because its outcome is unknown.

A server that is silent for the complete time-out of an operation loses its connection: it may have
failed without notice, and another server may answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Final, TypeVar

from sansldap import FilterPresent, LDAPFilter

from qmd.core.retry import Retry
from qmd.directory.ldap.access import Access, LdapAway, LdapError, LdapRefused, Server
from qmd.directory.ldap.connection import LdapConnection
from qmd.directory.ldap.messages import Change, Entry, ResultCode, Scope

PAGE_ENTRIES: Final = 500  # Active Directory returns at most 1,000 in one page
# Maximum values of one attribute in one answer ([MS-ADTS] 3.1.1.3.1.3.3).
RANGE_VALUES: Final = 1500
SHORT_S: Final = 1.0  # a connection that is lost within this time counts as a failed one
PAGES_MAX: Final = 10_000  # of one search: a server that never ends is broken

ANYTHING: Final = FilterPresent(attribute="objectClass")

# A referral leads to another domain; referrals are not followed.
_NOT_HERE: Final = (ResultCode.NO_SUCH_OBJECT, ResultCode.REFERRAL)

T = TypeVar("T")

# The deadline of the current caller, by the event loop's clock.
_DEADLINE: ContextVar[float] = ContextVar("deadline")


class TooManyValues(Exception):
    """An attribute has more values than the caller accepts."""


class LdapClient:
    """LDAP client; concurrent callers may share it."""

    def __init__(
        self,
        servers: Sequence[Server],
        access: Access,
        *,
        retry: Retry,
        noticed: Callable[[str], None] = lambda problem: None,
        range_values: int = RANGE_VALUES,
    ) -> None:
        assert servers
        self._servers = list(servers)  # the last good one first
        self._access = access
        self._retry = retry
        self._noticed = noticed  # called with the problem, or "" when it is solved
        self._range_values = range_values
        self._connection: LdapConnection | None = None
        self._connecting: asyncio.Task[LdapConnection] | None = None
        self._attempt: LdapConnection | None = None  # the connection that is being opened
        self._connected_at = 0.0
        self._stopped = False
        self._root: Entry | None = None  # of the current connection
        self.problem = ""  # why there is no connection, for people
        self.changed_at_s = 0  # start of the current state, in Unix seconds; 0: never tried

    @property
    def server(self) -> str:
        """The connected server, or the one to be tried next."""
        connection = self._connection
        return str(connection.server if connection is not None else self._servers[0])

    @property
    def connected(self) -> bool:
        return self._connection is not None and not self._connection.gone

    async def keep(self) -> None:
        """Connect, and reconnect whenever the connection is lost, until cancelled."""
        loop = asyncio.get_running_loop()
        while not self._stopped:
            if self._connection is not None:
                await self._connection.lost.wait()
                if self._connection is not None and self._connection.gone:
                    self._lost(self._connection, self._connection.gone)
            await asyncio.sleep(max(0.0, self._retry.next_attempt - loop.time()))
            with contextlib.suppress(LdapAway):
                await self._connect("the queue manager", math.inf)

    async def stop(self) -> None:
        self._stopped = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Limit all operations inside to one common time-out, including tasks started inside."""
        now = asyncio.get_running_loop().time()
        token = _DEADLINE.set(now + self._access.timeout_s)
        try:
            yield
        finally:
            _DEADLINE.reset(token)

    # Operations, only within `limited`. Each raises LdapAway or LdapRefused.

    async def root(self) -> Entry:
        """Return the server's root entry (RFC 4512 5.1), queried once for each connection."""

        async def ask(connection: LdapConnection) -> Entry:
            if self._root is None or connection is not self._connection:
                page = await connection.search("", Scope.BASE, ANYTHING, ROOT_ATTRIBUTES)
                if not page.entries:
                    raise LdapAway("the server returned no root entry", server=self.server)
                self._root = page.entries[0]
            return self._root

        return await self._run(ask, "asking the server for its naming contexts", again=True)

    async def read(self, dn: str, attributes: Sequence[str]) -> Entry | None:
        """Return one object, None if there is none. `<GUID=...>` is a name too."""

        async def ask(connection: LdapConnection) -> list[Entry]:
            try:
                page = await connection.search(
                    *(dn, Scope.BASE, ANYTHING, attributes), time_limit_s=self._time_limit_s
                )
            except LdapRefused as error:
                if error.result_code in _NOT_HERE:
                    return []
                raise
            return page.entries

        entries = await self._run(ask, f"reading {dn}", again=True)
        return entries[0] if entries else None

    async def search(
        self,
        base: str,
        scope: Scope,
        wanted: LDAPFilter,
        attributes: Sequence[str],
        *,
        entries_max: int,
    ) -> list[Entry]:
        """Return all entries found, page by page, cut off after `entries_max`.

        Referrals to other servers are not followed.
        """
        entries: list[Entry] = []
        cookie = b""
        connection: LdapConnection | None = None

        async def ask(current: LdapConnection) -> bytes:
            nonlocal connection
            if connection is not None and connection is not current:
                # A cookie is valid on one connection only: earlier pages are useless here.
                raise _Restart
            page = await current.search(
                *(base, scope, wanted, attributes),
                page_size=min(PAGE_ENTRIES, entries_max),
                cookie=cookie,
                time_limit_s=self._time_limit_s,
            )
            connection = current
            entries.extend(page.entries)
            return page.cookie

        doing = f"searching below {base or 'the root'}"
        for _ in range(PAGES_MAX):
            try:
                cookie = await self._run(ask, doing, again=connection is None)
            except _Restart:
                raise LdapAway(
                    f"the server disconnected during: {doing}", server=self.server
                ) from None
            except LdapRefused as error:
                if error.result_code in _NOT_HERE:
                    return []
                raise
            if not cookie or len(entries) >= entries_max:
                return entries[:entries_max]
        raise LdapAway(f"{doing} did not end within {PAGES_MAX} pages", server=self.server)

    async def values(self, dn: str, attribute: str, *, values_max: int) -> list[bytes] | None:
        """Return all values of an attribute that may have thousands, range by range.

        Returns None if there is no such object. [MS-ADTS] 3.1.1.3.1.3.3: every request has a range,
        and an answer that ends in `*` is the last, because a request beyond it would be an error.
        """
        values: list[bytes] = []
        prefix = f"{attribute.lower()};range="
        while True:
            first = len(values)
            wanted = f"{attribute};range={first}-{first + self._range_values - 1}"
            entry = await self.read(dn, (wanted,))
            if entry is None:
                return None
            found = [
                (name.removeprefix(prefix), given)
                for name, given in entry.attributes.items()
                if name.startswith(prefix) and given
            ]
            if not found:
                # A server without ranges returns all values under the plain name.
                return values + list(entry.attributes.get(attribute.lower(), ()))
            bounds, given = found[0]
            values.extend(given)
            if len(values) > values_max:
                raise TooManyValues(f"{dn} has more than {values_max} values of {attribute}")
            if bounds.endswith("-*"):
                return values

    async def add(self, dn: str, attributes: Mapping[str, Sequence[bytes]]) -> None:
        await self._run(lambda c: c.add(dn, attributes), f"adding {dn}", again=False)

    async def modify(self, dn: str, changes: Sequence[tuple[Change, str, Sequence[bytes]]]) -> None:
        await self._run(lambda c: c.modify(dn, changes), f"changing {dn}", again=False)

    async def delete(self, dn: str) -> None:
        await self._run(lambda c: c.delete(dn), f"deleting {dn}", again=False)

    @property
    def _time_limit_s(self) -> int:
        """The time limit sent to the server, so that it stops when the caller does."""
        return max(1, round(self._access.timeout_s))

    async def _run(
        self, act: Callable[[LdapConnection], Awaitable[T]], doing: str, *, again: bool
    ) -> T:
        deadline = _DEADLINE.get()
        if again:
            now = asyncio.get_running_loop().time()
            # If there are other servers, a silent one must not use up the complete time.
            first = now + (deadline - now) / 2 if len(self._servers) > 1 else deadline
            try:
                return await self._once(act, doing, first)
            except LdapAway:
                # The connection was lost just now, or earlier without notice.
                now = asyncio.get_running_loop().time()
                if self._stopped or self._retry.next_attempt > now or now >= deadline:
                    raise
        return await self._once(act, doing, deadline)

    async def _once(
        self, act: Callable[[LdapConnection], Awaitable[T]], doing: str, deadline: float
    ) -> T:
        connection = await self._connect(doing, deadline)
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        try:
            async with asyncio.timeout_at(deadline):
                return await act(connection)
        except TimeoutError as error:
            waited_s = loop.time() - asked_at
            text = f"no answer within {waited_s:.3g} s while {doing}"
            if connection.received_at <= asked_at:
                self._lost(connection, text)
            raise LdapAway(text, server=str(connection.server)) from error
        except LdapAway as error:
            self._lost(connection, f"{error}, while {doing}")
            text = f"{error}, while {doing}"
            raise LdapAway(text, server=str(connection.server)) from error

    def _lost(self, connection: LdapConnection, why: str) -> None:
        connection.abort(why)
        if connection is self._connection:
            self._connection = None
            now = asyncio.get_running_loop().time()
            if now - self._connected_at < SHORT_S:
                # The server accepts and then drops connections: without a back-off, this would
                # never end.
                self._retry.failed(now, why)
            self._note(why)
            # Other servers may be available, so the next caller tries them first.
            self._servers.remove(connection.server)
            self._servers.append(connection.server)

    async def _connect(self, doing: str, deadline: float) -> LdapConnection:
        """Return the current connection or a new one; concurrent callers share the attempt."""
        if self._connection is not None and self._connection.gone:
            self._lost(self._connection, self._connection.gone)
        if self._connection is not None:
            return self._connection
        if self._stopped:
            raise LdapAway("the queue manager is stopping", server=self.server)
        loop = asyncio.get_running_loop()
        if self._connecting is None:
            wait_s = self._retry.next_attempt - loop.time()
            if wait_s > 0:
                since = time.strftime("%H:%M:%S", time.gmtime(self.changed_at_s))
                raise LdapAway(
                    f"{self.problem} (since {since} UTC; the next try is in"
                    f" {max(1, round(wait_s))} s)",
                    server=self.server,
                )
            self._connecting = loop.create_task(self._open())
            self._connecting.add_done_callback(self._opened)
        attempt, asked_at = self._connecting, loop.time()
        try:
            async with asyncio.timeout_at(None if deadline == math.inf else deadline):
                return await asyncio.shield(attempt)
        except TimeoutError as error:
            trying = self._attempt
            stage = trying.doing if trying is not None else "connecting"
            text = f"no answer within {loop.time() - asked_at:.3g} s while {stage}, for {doing}"
            server = self.server if trying is None else str(trying.server)
            raise LdapAway(text, server=server) from error
        except asyncio.CancelledError:
            if attempt.cancelled() and self._stopped:
                raise LdapAway("the queue manager is stopping", server=self.server) from None
            raise

    async def _open(self) -> LdapConnection:
        """Connect to the first server that accepts."""
        loop = asyncio.get_running_loop()
        problems: list[LdapError] = []
        for server in tuple(self._servers):
            connection = self._attempt = LdapConnection(server, loop)
            try:
                await connection.open(self._access)
            except LdapError as error:
                problems.append(error)
                continue
            finally:
                self._attempt = None
            self._servers.remove(server)
            self._servers.insert(0, server)
            self._connection, self._root = connection, None
            self._connected_at = loop.time()
            self._retry.succeeded(loop.time(), str(server))
            self._note("")
            return connection
        if len(problems) == 1:
            text = str(problems[0])
        else:
            text = "; ".join(f"{error.server}: {error}" for error in problems)
        self._retry.failed(loop.time(), text)
        self._note(text)
        raise LdapAway(text, server=problems[0].server) from problems[-1]

    def _opened(self, attempt: asyncio.Task[LdapConnection]) -> None:
        self._connecting = None
        if not attempt.cancelled():
            attempt.exception()  # marks the exception as retrieved, in case no caller is left

    def _note(self, problem: str) -> None:
        changed = bool(problem) != bool(self.problem) or not self.changed_at_s
        self.problem = problem
        if changed:
            self.changed_at_s = int(time.time())
            self._noticed(problem)


class _Restart(Exception):
    """The connection on which a search began is lost."""


ROOT_ATTRIBUTES: Final = (
    "defaultNamingContext",
    "configurationNamingContext",
    "rootDomainNamingContext",
    "dnsHostName",
    "supportedCapabilities",
    "isGlobalCatalogReady",
)
