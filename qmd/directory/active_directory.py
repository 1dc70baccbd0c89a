"""Directory of kind "active-directory": a domain controller, queried by LDAP. [MS-MQDSSM]

    ldap/messages.py             bytes
    ldap/access.py               servers, credentials, certificates
    ldap/connection.py           one connection: TLS, bind, many operations at once
    ldap/client.py               several servers, reconnecting, pages and ranges
    active_directory_entries.py  attributes of objects
    active_directory_lookups.py  objects as entries
    active_directory_changes.py  registering queues, changing lists
    active_directory_certificates.py  certificates of senders

This module is the facade: every call has one time-out, and every failure becomes one of the errors
of `interface.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, ParamSpec, Protocol, TypeVar

import structlog

from protocol.names.format_name import SingleName
from qmd.core.retry import Retry
from qmd.directory.active_directory_certificates import SenderCertificates
from qmd.directory.active_directory_changes import Changes
from qmd.directory.active_directory_lookups import LookUps
from qmd.directory.interface import (
    KIND_ACTIVE_DIRECTORY,
    AliasEntry,
    DirectoryAway,
    DirectoryDenied,
    DirectoryError,
    DirectoryReadOnly,
    DirectoryStatus,
    ListEntry,
    MachineEntry,
    NewQueue,
    QueueEntry,
    SiteEntry,
)
from qmd.directory.ldap.access import Access, LdapError, LdapRefused, Mechanism, Security, Server
from qmd.directory.ldap.client import RANGE_VALUES, LdapClient
from qmd.directory.ldap.messages import ResultCode

if TYPE_CHECKING:
    from qmd.config.settings import DirectorySettings

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")

# Fraction of the caller's time-out, so that our own time-out comes first and explains the delay.
OURS: Final = 0.95
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 30.0

_NOT_NOW: Final = (ResultCode.BUSY, ResultCode.UNAVAILABLE)
_NOT_WE: Final = (ResultCode.INSUFFICIENT_ACCESS, ResultCode.INVALID_CREDENTIALS)


class _Call(Protocol):
    """`ActiveDirectory._call`: one request, within the time-out."""

    async def __call__(
        self, act: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs
    ) -> T: ...


class ActiveDirectory:
    """One domain, through any of its servers."""

    kind = KIND_ACTIVE_DIRECTORY

    def __init__(
        self,
        servers: Sequence[Server],
        access: Access,
        *,
        base: str = "",
        lists: str = "",
        retry_first_s: float = RETRY_FIRST_S,
        retry_max_s: float = RETRY_MAX_S,
        range_values: int = RANGE_VALUES,
    ) -> None:
        retry = Retry(first_s=retry_first_s, max_s=retry_max_s)
        self._client = LdapClient(
            *(servers, access), retry=retry, noticed=self._noticed, range_values=range_values
        )
        self._look_ups = LookUps(self._client, base=base)
        changes = Changes(self._client, self._look_ups, lists=lists)
        self._join = changes.join
        self._certificates = SenderCertificates(self._client, self._look_ups)
        self.changes = ActiveDirectoryChanges(changes, self._certificates, self._call)
        self._keeper: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, settings: DirectorySettings) -> ActiveDirectory:
        """Create the directory that the configuration names."""
        plain = Security.START_TLS if settings.start_tls else Security.NONE
        access = Access(
            mechanism=Mechanism(settings.bind),
            user=settings.user,
            password_file=settings.password_file,
            plain_allowed=settings.plain_password,
            ca_file=settings.ca_file,
            server_name=settings.server_name,
            certificate_file=settings.certificate,
            key_file=settings.certificate_key,
            connect_timeout_s=settings.connect_timeout_s,
            timeout_s=settings.timeout_s * OURS,
        )
        servers = [_server(text, plain) for text in settings.servers]
        return cls(servers, access, base=settings.base, lists=settings.lists_base)

    async def start(self) -> None:
        """Start a task that connects and reconnects, so that the first send need not wait."""
        self._keeper = asyncio.create_task(self._client.keep())

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._client.stop()

    def status(self) -> DirectoryStatus:
        client = self._client
        return DirectoryStatus(
            kind=self.kind,
            state="available" if client.connected else "away",
            where=client.server,
            problem="" if client.connected else client.problem or "it was not asked yet",
            since_s=client.changed_at_s,
            writable=True,
        )

    async def join(self, computer: str) -> bytes:
        """Return the id of our queue manager; create its object if it is missing.

        The object is below that of `computer`.
        """
        return await self._call(self._join, computer)

    # Looking up.

    async def queue(self, guid: bytes) -> QueueEntry:
        return await self._call(self._look_ups.queue, guid)

    async def queue_by_path(self, path: str) -> QueueEntry:
        return await self._call(self._look_ups.queue_by_path, path)

    async def alias(self, path: str) -> AliasEntry:
        return await self._call(self._look_ups.alias, path)

    async def distribution_list(self, guid: bytes, domain: str | None = None) -> ListEntry:
        return await self._call(self._look_ups.list_by_guid, guid, domain)

    async def list_by_name(self, name: str) -> ListEntry:
        return await self._call(self._look_ups.list_by_name, name)

    async def machine(self, guid: bytes) -> MachineEntry:
        return await self._call(self._look_ups.machine, guid)

    async def machine_by_name(self, name: str) -> MachineEntry:
        return await self._call(self._look_ups.machine_by_name, name)

    async def certificates(self, sender: str) -> tuple[bytes, ...]:
        return await self._call(self._certificates.of, sender)

    async def sites(self) -> tuple[SiteEntry, ...]:
        return await self._call(self._look_ups.sites)

    async def lists(self) -> tuple[ListEntry, ...]:
        return await self._call(self._look_ups.lists)

    async def aliases(self) -> tuple[AliasEntry, ...]:
        return await self._call(self._look_ups.aliases)

    async def _call(
        self, act: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs
    ) -> T:
        with self._explained(), self._client.limited():
            return await act(*arguments, **named)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Convert LDAP errors to the errors of the interface."""
        try:
            yield
        except LdapRefused as error:
            if error.result_code in _NOT_NOW:
                raise self._away(error) from error
            if error.result_code in _NOT_WE:
                raise DirectoryDenied(
                    f"the directory ({error.server}) does not permit this: {error}",
                    "See docs/active-directory.md for the rights that are needed.",
                ) from error
            if error.result_code == ResultCode.REFERRAL:
                raise DirectoryReadOnly(
                    f"the directory ({error.server}) has only a read-only copy of this: {error}",
                    "List a domain controller of that domain that can be written to.",
                ) from error
            raise DirectoryError(f"the directory ({error.server}) refused: {error}") from error
        except LdapError as error:
            raise self._away(error) from error

    def _away(self, error: LdapError) -> DirectoryAway:
        since_s = self._client.changed_at_s if self._client.problem else 0
        return DirectoryAway(str(error), where=error.server, since_s=since_s)

    def _noticed(self, problem: str) -> None:
        """Log that the client has a connection again, or has lost it."""
        if problem:
            log.warning("directory_away", server=self._client.server, problem=problem)
        else:
            log.info("directory_connected", server=self._client.server)


class ActiveDirectoryChanges:
    """The changes of the facade: each within the time-out, with the errors of the interface."""

    def __init__(self, changes: Changes, certificates: SenderCertificates, call: _Call) -> None:
        self._changes = changes
        self._certificates = certificates
        self._call = call

    async def register_queue(self, new: NewQueue) -> QueueEntry:
        return await self._call(self._changes.register_queue, new)

    async def update_queue(self, guid: bytes, new: NewQueue) -> None:
        await self._call(self._changes.update_queue, guid, new)

    async def unregister_queue(self, guid: bytes) -> None:
        await self._call(self._changes.unregister_queue, guid)

    async def publish_keys(self, machine: bytes, name: str, keys: bytes) -> None:
        await self._call(self._changes.publish_keys, machine, name, keys)

    async def register_certificate(self, sender: str, certificate: bytes) -> bool:
        return await self._call(self._certificates.register, sender, certificate)

    async def remove_certificate(self, sender: str, fingerprint: str) -> bool:
        return await self._call(self._certificates.remove, sender, fingerprint)

    async def create_list(self, name: str, members: Sequence[SingleName] = ()) -> ListEntry:
        return await self._call(self._changes.create_list, name, members)

    async def delete_list(self, guid: bytes) -> None:
        await self._call(self._changes.delete_list, guid)

    async def create_alias(self, name: str, target: SingleName) -> AliasEntry:
        return await self._call(self._changes.create_alias, name, target)

    async def delete_alias(self, name: str) -> None:
        await self._call(self._changes.delete_alias, name)

    async def add_members(self, guid: bytes, members: Sequence[SingleName]) -> ListEntry:
        return await self._call(self._changes.add_members, guid, members)

    async def remove_members(self, guid: bytes, members: Sequence[SingleName]) -> ListEntry:
        return await self._call(self._changes.remove_members, guid, members)


def _server(text: str, plain: Security) -> Server:
    """Parse `ldaps://host:port`, the form of the settings."""
    scheme, _, rest = text.partition("://")
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    return Server(host, int(port), Security.TLS if scheme == "ldaps" else plain)
