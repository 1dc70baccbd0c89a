"""Objects of a test in its domain, and look-ups of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from sansldap import FilterEquality

from qmd.directory.active_directory import ActiveDirectory
from qmd.directory.ldap import names as ldap_names
from qmd.directory.ldap.access import Access, Security, Server
from qmd.directory.ldap.client import ANYTHING
from qmd.directory.ldap.connection import LdapConnection
from qmd.directory.ldap.messages import Change, Scope
from tests.directory.domain_controller import DomainController

TIMEOUT_S = 60.0


def access(controller: DomainController, **changes: Any) -> Access:
    """Connect as the administrator, with a password over TLS; `changes` changes that."""
    given = Access(
        user=controller.admin,
        password_file=controller.password_file,
        ca_file=controller.ca_file,
        connect_timeout_s=TIMEOUT_S,
        timeout_s=TIMEOUT_S,
    )
    return replace(given, **changes)


def server(
    controller: DomainController, security: Security = Security.TLS, *, port: int = 0
) -> Server:
    usual = 636 if security is Security.TLS else 389
    return Server(controller.address, port or controller.ports[usual], security)


@asynccontextmanager
async def directory(
    controller: DomainController,
    servers: Sequence[Server] = (),
    *,
    retry_first_s: float = 0.05,
    range_values: int = 1500,
    lists: str = "",
    **changes: Any,
) -> AsyncIterator[ActiveDirectory]:
    """Return the directory as a queue manager has it; it connects at the first look-up."""
    found = ActiveDirectory(
        servers or (server(controller),),
        access(controller, **changes),
        retry_first_s=retry_first_s,
        retry_max_s=1.0,
        range_values=range_values,
        lists=lists,
    )
    try:
        yield found
    finally:
        await found.stop()


class Domain:
    """An administrator that makes objects in the domain."""

    def __init__(self, controller: DomainController, connection: LdapConnection) -> None:
        self._connection = connection
        self.base = controller.base
        self.users = f"CN=Users,{self.base}"
        self.computers = f"CN=Computers,{self.base}"
        self.configuration = f"CN=Configuration,{self.base}"
        self.services = f"CN=MsmqServices,CN=Services,{self.configuration}"

    async def add(self, dn: str, kind: str, **attributes: object) -> bytes:
        """Add an object; return its objectGUID.  `mSMQ__Name` stands for `mSMQ-Name`."""
        given = {"objectClass": [kind.encode()]}
        for name, value in attributes.items():
            values = value if isinstance(value, list) else [value]
            given[name.replace("__", "-")] = [
                one if isinstance(one, bytes) else str(one).encode() for one in values
            ]
        await self._connection.add(dn, given)
        return await self.guid(dn)

    async def guid(self, dn: str) -> bytes:
        return (await self.read(dn, "objectGUID"))[0]

    async def read(self, dn: str, attribute: str) -> tuple[bytes, ...]:
        page = await self._connection.search(dn, Scope.BASE, ANYTHING, (attribute,))
        return tuple(page.entries[0].attributes.get(attribute.lower(), ()))

    async def computer(self, name: str, *, host: str = "", below: str = "", **more: object) -> str:
        """Add a computer; return its distinguished name."""
        dn = ldap_names.child(name, below or self.computers)
        attributes: dict[str, object] = {"sAMAccountName": f"{name}$", "userAccountControl": 4096}
        if host:
            attributes["dNSHostName"] = host
        await self.add(dn, "computer", **attributes, **more)
        return dn

    async def queue_manager(self, computer: str, **attributes: object) -> str:
        """Add a queue manager below that computer; return its distinguished name."""
        dn = f"CN=msmq,{computer}"
        await self.add(dn, "mSMQConfiguration", **attributes)
        return dn

    async def queue(self, manager: str, name: str, **attributes: object) -> bytes:
        """Add a queue; return its GUID."""
        cn, extension = ldap_names.queue_object_name(name)
        if extension:
            attributes["mSMQQueueNameExt"] = extension
        return await self.add(ldap_names.child(cn, manager), "mSMQQueue", **attributes)

    async def group(self, name: str, *members: str) -> bytes:
        attributes: dict[str, object] = {"groupType": 2, "sAMAccountName": name}
        if members:
            attributes["member"] = list(members)
        return await self.add(f"CN={name},{self.users}", "group", **attributes)

    async def alias(self, name: str, target: str) -> bytes:
        return await self.add(
            ldap_names.child(name, self.users),
            "msMQ-Custom-Recipient",
            msMQ__Recipient__FormatName=target,
        )

    async def only(self, kind: str) -> str:
        """Return the distinguished name of the only object of that class."""
        wanted = FilterEquality(attribute="objectClass", value=kind.encode())
        page = await self._connection.search(self.base, Scope.SUBTREE, wanted, ("cn",))
        (entry,) = page.entries
        return entry.dn

    async def change(self, dn: str, changes: Sequence[tuple[Change, str, Sequence[bytes]]]) -> None:
        await self._connection.modify(dn, changes)

    async def delete(self, dn: str) -> None:
        await self._connection.delete(dn)


@asynccontextmanager
async def administrator(controller: DomainController) -> AsyncIterator[Domain]:
    connection = LdapConnection(server(controller), asyncio.get_running_loop())
    await connection.open(access(controller))
    try:
        yield Domain(controller, connection)
    finally:
        await connection.close()


def quoted_password(password: str) -> bytes:
    """Return the value for unicodePwd."""
    return f'"{password}"'.encode("utf-16-le")
