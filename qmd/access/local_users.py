"""Local users: the principals of a program that connects to the control socket.

The kernel states the user, the groups and the process at the other end, as they were when it
connected.  Their names are looked up in a thread, because the name service may query a network.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import select
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog

from qmd.access.rights import NO_RIGHTS, PrincipalRights, Rights
from qmd.control_protocol.peer_credentials import peer_credentials
from qmd.core.access import Caller
from qmd.core.principals import (
    ALL_LOCAL,
    GROUP,
    SERVICE,
    USER,
    BadPrincipal,
    Principal,
    parse_principal,
)

if TYPE_CHECKING:
    from qmd.access.checks import AccessChecks
    from qmd.runtime.services import Services

log = structlog.get_logger()

T = TypeVar("T")

UNKNOWN = 2**32 - 1  # the user of a program without credentials
SO_PEERGROUPS, SO_PEERPIDFD = 59, 77
GROUPS_BYTES = 1024  # the most that Python asks a socket for
GROUPS_MAX = 65_536  # NGROUPS_MAX of Linux
KNOWN_S = 60.0  # how long the names of a user and its groups are kept
KNOWN_MAX = 1000
THREADS = 2


class Credentials(NamedTuple):
    """The user and the groups of a process, by their ids."""

    process: int
    user: int
    groups: tuple[int, ...]


def credentials_of(connected: socket.socket) -> Credentials | None:
    """Return the credentials of the program at the other end; None if the kernel has none."""
    found = peer_credentials(connected)
    if found is None:
        return None
    process, user, group = found
    more = _supplementary_groups(connected)
    if more is None:  # a denial to a group could be missed
        return None
    return Credentials(process, user, tuple(sorted({group, *more})))


def _supplementary_groups(connected: socket.socket) -> tuple[int, ...] | None:
    """Return the supplementary groups of the program at the other end; None if not known."""
    try:
        raw = connected.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_BYTES)
    except OSError as error:
        if error.errno != errno.ERANGE:
            return None
        many = _many_groups(connected.fileno())
        if many is None:
            return None
        raw = many
    return struct.unpack(f"{len(raw) // 4}I", raw)


def _many_groups(descriptor: int) -> bytes | None:
    """Return the groups of a member of many: more bytes than Python asks a socket for."""
    import ctypes  # rarely needed

    buffer = ctypes.create_string_buffer(4 * GROUPS_MAX)
    size = ctypes.c_uint32(len(buffer))
    found = ctypes.CDLL(None).getsockopt(
        descriptor, socket.SOL_SOCKET, SO_PEERGROUPS, buffer, ctypes.byref(size)
    )
    return buffer.raw[: size.value] if found == 0 else None


class LocalClient(NamedTuple):
    """A program that has connected: its credentials, and its systemd service or ""."""

    credentials: Credentials
    service: str

    @property
    def shown(self) -> str:
        """The process, for people."""
        return f"a connection of process {self.credentials.process} of user {self.credentials.user}"


def client_of(connected: socket.socket | None) -> LocalClient | None:
    """Return the program at the other end, as it was when it connected; None: it is not known.

    `connected` is None if the connection was lost before it was used.
    """
    credentials = None if connected is None else credentials_of(connected)
    if credentials is None or connected is None:
        return None
    return LocalClient(credentials, service_of(connected, credentials.process))


def service_of(connected: socket.socket, process: int) -> str:
    """Return the systemd service of the program at the other end; "" if it is in none.

    The descriptor of the process proves that its number was not given to another one meanwhile.
    """
    try:
        descriptor = connected.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        return ""  # an older kernel: nothing proves it
    try:
        lines = Path(f"/proc/{process}/cgroup").read_text().splitlines()
        if select.select([descriptor], [], [], 0)[0]:
            return ""  # it has ended
    except (OSError, ValueError):
        return ""
    finally:
        os.close(descriptor)
    return service_in(next((line[3:] for line in lines if line.startswith("0::")), ""))


def service_in(group: str) -> str:
    """Return the systemd service of a control group; "" if it is that of none of the system.

    Only the first group below the slices has a name that systemd has given it.  A service with
    `Delegate=`, such as one that runs containers, gives those inside of its own any names.
    """
    parts = group.split("/")
    # Users have services of their own below user.slice, under names that they choose.
    if parts[:2] != ["", "system.slice"]:
        return ""
    unit = next((part for part in parts[2:] if not part.endswith(".slice")), "")
    return unit if unit.endswith(".service") else ""


def user_name(number: int) -> str:
    """Return the name of a user; "" if there is none."""
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OSError):
        return ""


def group_name(number: int) -> str:
    """Return the name of a group; "" if there is none."""
    try:
        return grp.getgrgid(number).gr_name
    except (KeyError, OSError):
        return ""


def principals_of(user: int, groups: tuple[int, ...]) -> frozenset[Principal]:
    """Return the principals of a user and its groups, each with and without its name.

    This may take long: it looks names up.
    """
    found = {ALL_LOCAL, Principal(USER, "", user)}
    if name := user_name(user):
        found.add(Principal(USER, name, user))
    for each in groups:
        found.add(Principal(GROUP, "", each))
        if name := group_name(each):
            found.add(Principal(GROUP, name, each))
    return frozenset(found)


def numbered(principal: Principal) -> Principal | None:
    """Return a named user or group with its number; None if there is no such name.

    Other principals are returned as they are.  This may take long: it looks a name up.
    """
    if principal.number is not None or principal.kind not in (USER, GROUP):
        return principal
    try:
        if principal.kind == USER:
            return principal._replace(number=pwd.getpwnam(principal.name).pw_uid)
        return principal._replace(number=grp.getgrnam(principal.name).gr_gid)
    except (KeyError, OSError):
        return None


def user_caller(name: str) -> frozenset[Principal] | None:
    """Return the principals that a named user would have; None if there is no such user.

    This may take long: it looks names up.
    """
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
        groups = tuple(sorted({entry.pw_gid, *os.getgrouplist(entry.pw_name, entry.pw_gid)}))
    except (KeyError, OSError):
        return principals_of(int(name), ()) if name.isdigit() else None
    return principals_of(entry.pw_uid, groups)


class LocalUsers:
    """The rights of programs on this computer."""

    def __init__(self, services: Services, checks: AccessChecks) -> None:
        self._services = services
        self._checks = checks
        self._known: dict[tuple[int, tuple[int, ...]], tuple[float, frozenset[Principal]]] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="names")
        self._own_user = os.geteuid()
        self._administrators = _administrators(services.settings.access.administrators)
        #: Those of the configuration by their ids, which are looked up once.
        self._operators: frozenset[tuple[str, int]] = frozenset()
        if self._administrators:
            self._threads.submit(self._look_up_operators)

    def _look_up_operators(self) -> None:
        found = filter(None, map(numbered, self._administrators))
        ids = {(each.kind, each.number) for each in found if each.number is not None}
        self._operators = frozenset(ids)

    def is_operator(self, client: LocalClient | None) -> bool:
        """Return whether a program gets one of the places that are reserved for operators.

        Root, the daemon's user, administrators of the configuration, and users and groups with the
        right to administer access do.  It is decided by ids, without a look-up, and gives nothing
        but the place.
        """
        if client is None:
            return False
        user, groups = client.credentials.user, client.credentials.groups
        if user in (0, self._own_user):
            return True
        ids = {(USER, user), *((GROUP, each) for each in groups)}
        return bool(ids & self._operators) or bool(ids & self._checks.administrator_ids)

    def at_once(self, client: LocalClient | None) -> Rights | None:
        """Return the rights of a program that need no look-up, or None.

        Those of root and of the daemon's own user are all rights; a program without credentials
        has none.
        """
        if client is None:
            return NO_RIGHTS
        user = client.credentials.user
        if user in (0, self._own_user):
            return Rights(Principal(USER, "", user))
        known = self._known.get((user, client.credentials.groups))
        if known is not None and known[0] > self._services.loop.time():
            return self._rights(client, known[1])
        return None

    async def identify(self, client: LocalClient) -> Rights:
        """Return the rights of a program, after looking its names up."""
        user, groups = client.credentials.user, client.credentials.groups
        found = await self.look_up(partial(principals_of, user, groups))
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[user, groups] = self._services.loop.time() + KNOWN_S, found
        return self._rights(client, found)

    async def look_up(self, work: Callable[[], T]) -> T:
        """Return the result of a look-up of names, made in a thread."""
        return await self._services.loop.run_in_executor(self._threads, work)

    def _rights(self, client: LocalClient, found: frozenset[Principal]) -> Rights:
        caller, principal = self.caller(client.credentials.user, found, client.service)
        if caller.is_administrator:
            return Rights(principal)
        return PrincipalRights(self._checks, caller, principal)

    def caller(
        self, user: int, found: frozenset[Principal], service: str = ""
    ) -> tuple[Caller, Principal]:
        """Return the caller that a user is, and the principal that owns what it creates."""
        named = [each for each in found if each.kind == USER and each.name]
        principal = named[0] if named else Principal(USER, "", user)
        if service:
            found |= {Principal(SERVICE, service)}
        return Caller(str(principal), found, is_administrator=self.is_one(user, found)), principal

    def is_one(self, user: int, found: frozenset[Principal]) -> bool:
        """Return whether a user with these principals is an administrator."""
        if user in (0, self._own_user):
            return True
        texts = {(each.kind, each.name) for each in found if each.name}
        numbers = {(each.kind, each.number) for each in found}
        return any(
            (each.kind, each.name) in texts if each.name else (each.kind, each.number) in numbers
            for each in self._administrators
        )

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _administrators(texts: tuple[str, ...]) -> list[Principal]:
    """Return the administrators of the configuration; the settings have checked their form."""
    found = []
    for text in texts:
        try:
            found.append(parse_principal(text))
        except BadPrincipal as error:
            log.warning("administrator_not_understood", text=text, reason=str(error))
    return found
