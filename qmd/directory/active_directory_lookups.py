r"""Look-ups in Active Directory: objects of Message Queuing as entries. [MS-MQDSSM] 3.1.6.11

Objects are found by GUID (`<GUID=...>` names an object in any place) or by a search for the
computer first. Names are never built from parts, because computers may be in any folder. The
hierarchy: a queue (mSMQQueue) is below the queue manager (mSMQConfiguration, always CN=msmq), which
is below the computer.

All functions here raise the errors of `ldap/client.py`, and NotInDirectory and EntryUnusable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Final

from sansldap import FilterAnd, FilterEquality, FilterExtensibleMatch, FilterNot, FilterOr

from protocol.identifiers import guid_text
from protocol.names.format_name import (
    SingleName,
)
from qmd.directory.active_directory_entries import (
    ALIAS,
    COMPUTER,
    CONFIGURATION,
    FORMAT_NAME,
    GROUP,
    KINDS,
    LISTS,
    QUEUE,
    QUEUE_GROUP,
    SITE,
    SITE_LINK,
    alias_entry,
    classes,
    guid_of,
    member_of_list,
    name_text,
    number,
    optional_guid,
    privacy,
    routes,
    text,
    values,
)
from qmd.directory.interface import (
    AliasEntry,
    EntryUnusable,
    ListEntry,
    MachineEntry,
    NotInDirectory,
    QueueEntry,
    SiteEntry,
    SiteLink,
)
from qmd.directory.ldap import names as ldap_names
from qmd.directory.ldap.client import LdapClient, TooManyValues
from qmd.directory.ldap.messages import Entry, Scope

QUEUE_ATTRIBUTES: Final = (
    *("objectClass", "objectGUID", "mSMQLabelEx", "mSMQTransactional", "mSMQQueueType"),
    *("mSMQQueueNameExt", "mSMQAuthenticate", "mSMQPrivacyLevel"),
)
MEMBER_ATTRIBUTES: Final = ("objectClass", "objectGUID", FORMAT_NAME)
MEMBERS_MAX: Final = 20_000
MEMBERS_AT_ONCE: Final = 200
SITES_MAX: Final = 10_000
LISTS_MAX: Final = 10_000
ALIASES_MAX: Final = 10_000
ALIKE_MAX: Final = 8  # objects with the same name that are compared

_SECURITY_GROUP = b"2147483648"  # the bit of groupType; [MS-ADTS] 2.2.12
_BIT_AND = "1.2.840.113556.1.4.803"


class LookUps:
    """Look-ups below `base`, or below the server's own domain if it is ""."""

    def __init__(self, client: LdapClient, *, base: str = "") -> None:
        self._client = client
        self._base = base
        # Pending requests for queue managers.
        self._asking: dict[str, asyncio.Task[MachineEntry]] = {}

    async def queue(self, guid: bytes) -> QueueEntry:
        entry = await self.by_guid(guid, QUEUE_ATTRIBUTES, QUEUE, f"PUBLIC={guid_text(guid)}")
        return await self.queue_of(entry)

    async def queue_by_path(self, path: str) -> QueueEntry:
        computer, _, queue = path.partition("\\")
        configuration = await self.configuration_dn(computer)
        found = await self.queue_object(configuration, queue)
        if found is None:
            raise NotInDirectory(f"public queue {path}")
        return await self.queue_of(found)

    async def queue_object(self, configuration: str, queue: str) -> Entry | None:
        """Return the object of the queue with that name below CN=msmq."""
        name, extension = ldap_names.queue_object_name(queue)
        wanted = FilterAnd(filters=[_equals("objectClass", QUEUE), _equals("cn", name)])
        entries = await self._client.search(
            *(configuration, Scope.ONE_LEVEL, wanted, QUEUE_ATTRIBUTES), entries_max=ALIKE_MAX
        )
        for entry in entries:
            given = text(entry, "mSMQQueueNameExt")
            if given.casefold() == extension.casefold():
                return entry
        return None

    async def queue_of(self, entry: Entry) -> QueueEntry:
        """Return the entry with the queue's computer, which takes two more requests."""
        name = ldap_names.queue_name(
            ldap_names.first_value(entry.dn), text(entry, "mSMQQueueNameExt")
        )
        machine = await self.machine_at(ldap_names.split(entry.dn)[1])
        transactional = text(entry, "mSMQTransactional")
        return QueueEntry(
            guid=guid_of(entry),
            path=f"{machine.name}\\{name}".lower(),  # [MS-MQDSSM] 3.1.6.11.2.1
            machine=machine,
            label=text(entry, "mSMQLabelEx"),
            transactional=transactional.upper() == "TRUE",  # absent: FALSE
            type=optional_guid(entry, "mSMQQueueType"),
            authenticate=text(entry, "mSMQAuthenticate").upper() == "TRUE",
            privacy=privacy(entry),
        )

    async def machine(self, guid: bytes) -> MachineEntry:
        what = f"queue manager {guid_text(guid)}"
        entry = await self.by_guid(guid, ("objectClass",), CONFIGURATION, what)
        return await self.machine_at(entry.dn)

    async def machine_by_name(self, name: str) -> MachineEntry:
        return await self.machine_at(await self.configuration_dn(name))

    async def machine_at(self, configuration: str) -> MachineEntry:
        """Return the queue manager with the object (CN=msmq) of that name.

        The queues of one list are often on one computer, so concurrent callers share one request.
        The answer is not cached.
        """
        key = configuration.casefold()
        asking = self._asking.get(key)
        if asking is None:
            asking = asyncio.create_task(self._machine_at(configuration))
            self._asking[key] = asking
            asking.add_done_callback(partial(self._asked, key))
        return await asyncio.shield(asking)  # a cancelled caller must not cancel the others

    def _asked(self, key: str, asking: asyncio.Task[MachineEntry]) -> None:
        del self._asking[key]
        if not asking.cancelled():
            asking.exception()  # marks the exception as retrieved, in case no caller is left

    async def _machine_at(self, configuration: str) -> MachineEntry:
        entry, computer = await asyncio.gather(
            self._client.read(configuration, _CONFIGURATION_ATTRIBUTES),
            self._client.read(ldap_names.split(configuration)[1], ("cn", "dNSHostName")),
        )
        if entry is None:
            raise NotInDirectory(f"queue manager at {configuration}")
        if CONFIGURATION not in classes(entry) or computer is None:
            raise EntryUnusable(f"{configuration} is not the object of a queue manager")
        inwards, outwards = await asyncio.gather(
            self._guids(values(entry, "mSMQInRoutingServers")),
            self._guids(values(entry, "mSMQOutRoutingServers")),
        )
        host = text(computer, "dNSHostName")
        return MachineEntry(
            guid=guid_of(entry),
            name=text(computer, "cn") or ldap_names.first_value(computer.dn),
            addresses=(host,) if host else (),
            sites=tuple(site for site in values(entry, "mSMQSites") if len(site) == 16),
            in_routers=inwards,
            out_routers=outwards,
            routes=routes(entry),
            foreign=text(entry, "mSMQForeign").upper() == "TRUE",
            encryption_keys=next(iter(values(entry, "mSMQEncryptKey")), b""),
            signing_keys=next(iter(values(entry, "mSMQSignKey")), b""),
        )

    async def computer_dn(self, name: str) -> str:
        """Return the distinguished name of a computer, given its name with or without domain."""
        if "." in name:
            wanted = FilterOr(filters=[_equals("dNSHostName", name), _equals("cn", name)])
        else:
            account = _equals("sAMAccountName", f"{name}$")
            wanted = FilterOr(filters=[account, _equals("cn", name)])
        entries = await self._client.search(
            *(await self._domain(), Scope.SUBTREE),
            FilterAnd(filters=[_equals("objectClass", COMPUTER), wanted]),
            ("cn",),
            entries_max=ALIKE_MAX,
        )
        if not entries:
            raise NotInDirectory(f"computer {name}")
        if len(entries) > 1:
            entries = [one for one in entries if text(one, "cn").casefold() == name.casefold()]
        if len(entries) != 1:
            raise EntryUnusable(f"the directory has more than one computer {name}")
        return entries[0].dn

    async def configuration_dn(self, computer: str) -> str:
        """Return the name of the object of a computer's queue manager, which need not exist."""
        return ldap_names.child("msmq", await self.computer_dn(computer))

    async def alias(self, path: str) -> AliasEntry:
        """Return an alias; `path` is its name, its distinguished name, or that after LDAP://."""
        dn = _distinguished(path)
        attributes = ("cn", *MEMBER_ATTRIBUTES)
        if dn:
            entry = await self._client.read(dn, attributes)
        else:
            wanted = FilterAnd(filters=[_equals("objectClass", ALIAS), _equals("cn", path)])
            entries = await self._client.search(
                *(await self._domain(), Scope.SUBTREE, wanted, attributes), entries_max=2
            )
            if len(entries) > 1:
                raise EntryUnusable(
                    f"the directory has more than one queue alias {path}; use the distinguished"
                    " name of one"
                )
            entry = entries[0] if entries else None
        if entry is None or ALIAS not in classes(entry):
            raise NotInDirectory(f"queue alias {path}")
        return alias_entry(entry)

    async def alias_dn(self, path: str) -> str:
        """Return the distinguished name of an alias."""
        found = await self.alias(path)
        entry = await self.by_guid(found.guid, ("objectClass",), ALIAS, f"queue alias {path}")
        return entry.dn

    async def aliases(self) -> tuple[AliasEntry, ...]:
        entries = await self._client.search(
            *(await self._domain(), Scope.SUBTREE, _equals("objectClass", ALIAS)),
            ("cn", *MEMBER_ATTRIBUTES),
            entries_max=ALIASES_MAX,
        )
        found = []
        for entry in entries:
            with contextlib.suppress(EntryUnusable):  # a look-up of this entry reports the error
                found.append(alias_entry(entry))
        return tuple(sorted(found, key=lambda one: one.name.casefold()))

    async def list_by_guid(self, guid: bytes, domain: str | None = None) -> ListEntry:
        what = f"DL={guid_text(guid)}{f'@{domain}' if domain else ''}"
        entry = await self.by_guid(guid, ("objectClass", "cn", "objectGUID"), LISTS, what)
        return await self.list_of(entry)

    async def list_by_name(self, name: str) -> ListEntry:
        wanted = FilterAnd(
            filters=[
                FilterOr(filters=[_equals("objectClass", one) for one in LISTS]),
                FilterOr(filters=[_equals("cn", name), _equals("sAMAccountName", name)]),
            ]
        )
        entries = await self._client.search(
            *(await self._domain(), Scope.SUBTREE, wanted),
            ("objectClass", "cn", "objectGUID"),
            entries_max=2,
        )
        if not entries:
            raise NotInDirectory(f"distribution list {name}")
        if len(entries) > 1:
            raise EntryUnusable(f"the directory has more than one distribution list {name}")
        return await self.list_of(entries[0])

    async def list_of(self, entry: Entry) -> ListEntry:
        name = text(entry, "cn")
        members = [member for _, member in await self.members(entry.dn, name)]
        return ListEntry(guid=guid_of(entry), name=name, members=tuple(members))

    async def members(self, dn: str, name: str) -> list[tuple[str, SingleName]]:
        """Return the distinguished names of a list's members, and the name each stands for.

        [MS-MQDSSM] 3.1.6.9: a member that is neither queue nor alias nor list makes the list
        unusable.
        """
        try:
            given = await self._client.values(dn, "member", values_max=MEMBERS_MAX)
        except TooManyValues as error:
            text_ = f"the distribution list {name} has more than {MEMBERS_MAX} members"
            raise EntryUnusable(text_) from error
        if given is None:
            raise NotInDirectory(f"distribution list {name}")
        names = [name_text(one, dn) for one in given]
        members: list[tuple[str, SingleName]] = []
        for start in range(0, len(names), MEMBERS_AT_ONCE):
            part = names[start : start + MEMBERS_AT_ONCE]
            entries = await asyncio.gather(
                *(self._client.read(one, MEMBER_ATTRIBUTES) for one in part)
            )
            for one, entry in zip(part, entries, strict=True):
                if entry is None:
                    raise EntryUnusable(
                        f"{one}, a member of the distribution list {name}, cannot be found"
                    )
                members.append((one, member_of_list(entry, name)))
        return members

    async def lists(self) -> tuple[ListEntry, ...]:
        """Return groups for distribution, not for security, and groups of Message Queuing."""
        security = FilterExtensibleMatch(
            rule=_BIT_AND, attribute="groupType", value=_SECURITY_GROUP, dn_attributes=False
        )
        groups = FilterAnd(filters=[_equals("objectClass", GROUP), FilterNot(filter=security)])
        wanted = FilterOr(filters=[groups, _equals("objectClass", QUEUE_GROUP)])
        entries = await self._client.search(
            *(await self._domain(), Scope.SUBTREE, wanted, ("cn", "objectGUID")),
            entries_max=LISTS_MAX,
        )
        found = [ListEntry(guid=guid_of(one), name=text(one, "cn")) for one in entries]
        return tuple(sorted(found, key=lambda one: one.name.casefold()))

    async def sites(self) -> tuple[SiteEntry, ...]:
        """Return all sites, with their links in both directions. [MS-MQDSSM] 3.1.6.4.4 and .5"""
        root = await self._client.root()
        configuration = text(root, "configurationNamingContext")
        sites, links = await asyncio.gather(
            self._client.search(
                *(f"CN=Sites,{configuration}", Scope.ONE_LEVEL, _equals("objectClass", SITE)),
                ("cn", "objectGUID"),
                entries_max=SITES_MAX,
            ),
            self._client.search(
                *(f"CN=MsmqServices,CN=Services,{configuration}", Scope.ONE_LEVEL),
                _equals("objectClass", SITE_LINK),
                ("mSMQSite1", "mSMQSite2", "mSMQCost", "mSMQSiteGates"),
                entries_max=SITES_MAX,
            ),
        )
        gates = await self._gates(links)
        by_dn = {site.dn.casefold(): guid_of(site) for site in sites}
        ways: dict[bytes, list[SiteLink]] = {guid: [] for guid in by_dn.values()}
        own_gates: dict[bytes, dict[bytes, None]] = {guid: {} for guid in by_dn.values()}
        for link in links:
            ends = []
            for end in ("mSMQSite1", "mSMQSite2"):
                site = by_dn.get(text(link, end).casefold())
                if site is None:
                    raise EntryUnusable(
                        f"the routing link {link.dn} does not lead to a site ({end})"
                    )
                ends.append(site)
            over = [gates[one.decode().casefold()] for one in values(link, "mSMQSiteGates")]
            cost = number(link, "mSMQCost")
            identifiers = tuple(guid for guid, _ in over)
            for here, there in (ends, ends[::-1]):
                ways[here].append(SiteLink(there, cost, identifiers))
                own_gates[here].update({guid: None for guid, at in over if here in at})
        return tuple(
            SiteEntry(
                guid=guid_of(site),
                name=text(site, "cn"),
                gates=tuple(own_gates[guid_of(site)]),
                links=tuple(ways[guid_of(site)]),
            )
            for site in sites
        )

    async def _gates(self, links: Sequence[Entry]) -> dict[str, tuple[bytes, tuple[bytes, ...]]]:
        """Return the GUIDs and the sites of the links' site gates, by distinguished name."""
        names = {
            name_text(one, link.dn): None for link in links for one in values(link, "mSMQSiteGates")
        }
        found = await asyncio.gather(
            *(self._client.read(name, ("objectGUID", "mSMQSites")) for name in names)
        )
        gates = {}
        for name, entry in zip(names, found, strict=True):
            if entry is None:
                raise EntryUnusable(f"{name}, a gate of a routing link, cannot be found")
            gates[name.casefold()] = (guid_of(entry), values(entry, "mSMQSites"))
        return gates

    async def by_guid(
        self,
        guid: bytes,
        attributes: Sequence[str],
        wanted: str | Sequence[str],
        what: str,
    ) -> Entry:
        """Return the object with that GUID; it must be of one of the `wanted` classes."""
        wanted = (wanted,) if isinstance(wanted, str) else wanted
        entry = await self._client.read(f"<GUID={guid_text(guid)}>", attributes)
        if entry is None:
            raise NotInDirectory(what)
        found = classes(entry)
        if not found.intersection(wanted):
            kind = next((name for one, name in KINDS.items() if one in found), "something else")
            raise NotInDirectory(what, f"That GUID is of {kind}: {entry.dn}.")
        return entry

    async def _guids(self, names: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the GUIDs of the objects with these names; deleted ones are skipped, as required.

        [MS-MQDSSM] 3.1.6.11.1.3
        """
        found = await asyncio.gather(
            *(self._client.read(name_text(one, ""), ("objectGUID",)) for one in names)
        )
        return tuple(guid_of(entry) for entry in found if entry is not None)

    async def domain(self) -> str:
        """Return the name below which searches begin."""
        return await self._domain()

    async def _domain(self) -> str:
        if self._base:
            return self._base
        base = text(await self._client.root(), "defaultNamingContext")
        if not base:
            raise EntryUnusable("the server names no domain of its own: give [directory] base")
        return base


_CONFIGURATION_ATTRIBUTES: Final = (
    *("objectClass", "objectGUID", "mSMQSites", "mSMQInRoutingServers", "mSMQOutRoutingServers"),
    *("mSMQRoutingServices", "mSMQServiceType", "mSMQForeign", "mSMQEncryptKey"),
    "mSMQSignKey",
)


def _distinguished(path: str) -> str:
    """Return the distinguished name in `path`, also from an ADsPath; "" for another name."""
    rest = path
    if path[:7].upper() == "LDAP://":
        rest = path[7:]
        server, slash, behind = rest.partition("/")
        if slash and "=" not in server:
            rest = behind
    first, _ = ldap_names.split(rest)
    return rest if "=" in first else ""


def _equals(attribute: str, value: str) -> FilterEquality:
    return FilterEquality(attribute=attribute, value=value.encode())
