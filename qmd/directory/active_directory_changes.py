r"""Changes in Active Directory: our queue manager, its public queues, distribution lists.

[MS-MQDSSM] 3.1.6.1 (queue manager and queue), 3.1.6.2. The directory assigns the GUID of every
object. A queue manager therefore takes the GUID of its object as its own id (`join`), as
[MS-MQDMPR] 3.1.1.1 demands, and its public queues are below that object.

A list is a distribution group. Its members are objects; a name without an object, such as a direct
name, becomes a queue alias beside the list.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import Final

from sansldap import FilterAnd, FilterEquality

from protocol.identifiers import NULL_GUID, guid_text
from protocol.names.format_name import DistributionListName, PublicName, SingleName, Suffix
from qmd.directory.active_directory_entries import (
    ALIAS,
    CONFIGURATION,
    FORMAT_NAME,
    LISTS,
    QUEUE,
    guid_of,
    text,
    values,
)
from qmd.directory.active_directory_lookups import MEMBERS_MAX, LookUps
from qmd.directory.interface import (
    AliasEntry,
    AlreadyInDirectory,
    DirectoryIdentityDiffers,
    EntryUnusable,
    ListEntry,
    NewQueue,
    NotInDirectory,
    QueueEntry,
)
from qmd.directory.ldap import names as ldap_names
from qmd.directory.ldap.access import LdapRefused
from qmd.directory.ldap.client import LdapClient
from qmd.directory.ldap.messages import Change, Entry, ResultCode, Scope
from qmd.directory.ldap.security_descriptor import queue_manager_descriptor
from qmd.queues.local_queue import PRIVACY_LEVELS

LABEL_CHARACTERS_MAX: Final = 124  # of mSMQLabelEx, by the schema
FORMAT_NAME_CHARACTERS_MAX: Final = 255  # of msMQ-Recipient-FormatName
QUOTA_KIB_MAX: Final = 0x7FFFFFFF  # LDAP integers are signed
_OS_OTHER: Final = b"0"  # mSMQOSType; [MS-MQDSSM] 3.1.6.1.1.4
_OUR_ALIAS: Final = b"made by qmd for a member of a distribution list"
_GLOBAL_DISTRIBUTION: Final = b"2"  # groupType; [MS-ADTS] 2.2.12


class Changes:
    """Changes in the directory; `look_ups` finds objects.

    New lists are created below `lists`, or in CN=Users.
    """

    def __init__(self, client: LdapClient, look_ups: LookUps, *, lists: str = "") -> None:
        self._client = client
        self._look_ups = look_ups
        self._lists = lists

    async def join(self, computer: str) -> bytes:
        """Return the directory's id of the queue manager on our computer.

        The queue manager's object is created if it is missing; the object of the computer must
        exist.
        """
        computer_dn = await self._look_ups.computer_dn(computer)
        configuration = ldap_names.child("msmq", computer_dn)
        found = await self._client.read(configuration, ("objectGUID",))
        if found is None:
            await self._make_queue_manager(configuration, computer_dn)
            found = await self._client.read(configuration, ("objectGUID",))
            if found is None:
                raise NotInDirectory(
                    f"queue manager at {configuration}, although it was just created"
                )
        return guid_of(found)

    async def _make_queue_manager(self, configuration: str, computer_dn: str) -> None:
        computer, site = await asyncio.gather(
            self._client.read(computer_dn, ("objectSid",)), self._first_site()
        )
        sid = values(computer, "objectSid") if computer is not None else ()
        if not sid:
            raise EntryUnusable(f"the computer {computer_dn} has no objectSid")
        attributes: dict[str, Sequence[bytes]] = {
            "objectClass": (b"mSMQConfiguration",),
            "mSMQOSType": (_OS_OTHER,),
            "mSMQServiceType": (b"0",),
            "mSMQForeign": (b"FALSE",),
            "nTSecurityDescriptor": (queue_manager_descriptor(sid[0]),),
        }
        if site:
            attributes["mSMQSites"] = (site,)
        try:
            await self._client.add(configuration, attributes)
        except LdapRefused as error:
            if error.result_code != ResultCode.ENTRY_ALREADY_EXISTS:  # another process was faster
                raise

    async def _first_site(self) -> bytes:
        """Return the GUID of the only site; b"" if there are several, for an administrator to
        choose."""
        sites = await self._look_ups.sites()
        return sites[0].guid if len(sites) == 1 else b""

    async def register_queue(self, new: NewQueue) -> QueueEntry:
        _check_label(new.label)
        name, extension = ldap_names.queue_object_name(new.queue)
        if len(extension) > ldap_names.EXTENSION_CHARACTERS_MAX:
            raise EntryUnusable(
                f"the directory accepts no queue name of {len(new.queue)} characters"
            )
        parent = await self._own_queue_manager(new.machine, new.computer)
        attributes: dict[str, Sequence[bytes]] = {
            "objectClass": (b"mSMQQueue",),
            "mSMQTransactional": (b"TRUE" if new.transactional else b"FALSE",),
            **{name: found for name, found in _properties(new).items() if found},
        }
        if extension:
            attributes["mSMQQueueNameExt"] = (extension.encode(),)
        if new.type != NULL_GUID:
            attributes["mSMQQueueType"] = (new.type,)
        dn = ldap_names.child(name, parent.dn)
        try:
            await self._client.add(dn, attributes)
        except LdapRefused as error:
            if error.result_code == ResultCode.ENTRY_ALREADY_EXISTS:
                raise AlreadyInDirectory(
                    f"the directory has a public queue {new.computer}\\{new.queue}"
                ) from error
            raise
        found = await self._look_ups.queue_object(parent.dn, new.queue)
        if found is None:
            raise NotInDirectory(f"public queue {dn}, although it was just created")
        return await self._look_ups.queue_of(found)

    async def publish_keys(self, machine: bytes, name: str, keys: bytes) -> None:
        entry = await self._own_queue_manager(machine, name)
        await self._client.modify(entry.dn, [(Change.REPLACE, "mSMQEncryptKey", (keys,))])

    async def _own_queue_manager(self, machine: bytes, computer: str) -> Entry:
        """Return the object of our queue manager.

        Only `join` creates it, because our id must be its GUID.
        """
        what = f"queue manager {guid_text(machine)}"
        try:
            return await self._look_ups.by_guid(machine, ("objectClass",), CONFIGURATION, what)
        except NotInDirectory:
            configuration = await self._look_ups.configuration_dn(computer)
            found = await self._client.read(configuration, ("objectGUID",))
        if found is not None:
            raise DirectoryIdentityDiffers(computer, guid_of(found), machine)
        raise NotInDirectory(
            f"queue manager of the computer {computer}",
            "Only a queue manager that was created with join = true in the section [directory]"
            " has public"
            " queues there.",
        )

    async def update_queue(self, guid: bytes, new: NewQueue) -> None:
        _check_label(new.label)
        what = f"PUBLIC={guid_text(guid)}"
        entry = await self._look_ups.by_guid(guid, ("objectClass",), QUEUE, what)
        changes = [(Change.REPLACE, name, found) for name, found in _properties(new).items()]
        await self._client.modify(entry.dn, changes)

    async def unregister_queue(self, guid: bytes) -> None:
        what = f"PUBLIC={guid_text(guid)}"
        entry = await self._look_ups.by_guid(guid, ("objectClass",), QUEUE, what)
        await self._delete(entry.dn, what)

    async def create_alias(self, name: str, target: SingleName) -> AliasEntry:
        try:
            await self._look_ups.alias(name)
        except NotInDirectory:
            pass
        else:
            raise AlreadyInDirectory(f"the directory has a queue alias {name} already")
        parent = self._lists or f"CN=Users,{await self._look_ups.domain()}"
        dn = ldap_names.child(name, parent)
        try:
            await self._client.add(dn, _alias_attributes(target))
        except LdapRefused as error:
            if error.result_code == ResultCode.ENTRY_ALREADY_EXISTS:
                raise AlreadyInDirectory(f"the directory has an object {dn}") from error
            raise
        return await self._look_ups.alias(dn)

    async def delete_alias(self, name: str) -> None:
        await self._delete(await self._look_ups.alias_dn(name), f"queue alias {name}")

    async def create_list(self, name: str, members: Sequence[SingleName]) -> ListEntry:
        parent = self._lists or f"CN=Users,{await self._look_ups.domain()}"
        dn = ldap_names.child(name, parent)
        objects = await self._objects(members, dn)
        attributes: dict[str, Sequence[bytes]] = {
            "objectClass": (b"group",),
            "groupType": (_GLOBAL_DISTRIBUTION,),
            "sAMAccountName": (_account_name(name).encode(),),
        }
        if objects:
            attributes["member"] = tuple(one.encode() for one in dict.fromkeys(objects))
        try:
            await self._client.add(dn, attributes)
        except LdapRefused as error:
            if error.result_code == ResultCode.ENTRY_ALREADY_EXISTS:
                raise AlreadyInDirectory(f"the directory has an object {dn}") from error
            raise
        entry = await self._client.read(dn, ("objectClass", "cn", "objectGUID"))
        if entry is None:
            raise NotInDirectory(f"distribution list {dn}, although it was just created")
        return await self._look_ups.list_of(entry)

    async def delete_list(self, guid: bytes) -> None:
        entry = await self._list(guid)
        members = await self._client.values(entry.dn, "member", values_max=MEMBERS_MAX)
        await self._delete(entry.dn, f"DL={guid_text(guid)}")
        for dn in members or ():
            await self._sweep(dn.decode())

    async def add_members(self, guid: bytes, members: Sequence[SingleName]) -> ListEntry:
        entry = await self._list(guid)
        there = {dn.casefold() for dn, _ in await self._members(entry)}
        wanted = await self._objects(members, entry.dn)
        new = [dn for dn in dict.fromkeys(wanted) if dn.casefold() not in there]
        if new:
            await self._client.modify(
                entry.dn, [(Change.ADD, "member", [one.encode() for one in new])]
            )
        return await self._look_ups.list_of(entry)

    async def remove_members(self, guid: bytes, members: Sequence[SingleName]) -> ListEntry:
        entry = await self._list(guid)
        there = await self._members(entry)
        gone: dict[str, None] = {}
        for name in members:
            found = [dn for dn, member in there if member.key == name.key]
            if not found:
                raise NotInDirectory(f"member {name} of the distribution list {text(entry, 'cn')}")
            gone.update(dict.fromkeys(found))
        if gone:
            await self._client.modify(
                entry.dn, [(Change.DELETE, "member", [one.encode() for one in gone])]
            )
        for dn in gone:
            await self._sweep(dn)
        return await self._look_ups.list_of(entry)

    async def _list(self, guid: bytes) -> Entry:
        return await self._look_ups.by_guid(
            guid, ("objectClass", "cn", "objectGUID"), LISTS, f"DL={guid_text(guid)}"
        )

    async def _members(self, entry: Entry) -> list[tuple[str, SingleName]]:
        return await self._look_ups.members(entry.dn, text(entry, "cn"))

    async def _objects(self, names: Sequence[SingleName], beside: str) -> list[str]:
        """Return the distinguished names of the objects for these names; create missing aliases."""
        objects = []
        for name in names:
            if isinstance(name, PublicName) and name.suffix is None:
                entry = await self._look_ups.by_guid(name.queue, ("objectClass",), QUEUE, str(name))
                objects.append(entry.dn)
            elif isinstance(name, DistributionListName):
                entry = await self._look_ups.by_guid(
                    name.distribution_list, ("objectClass",), LISTS, str(name)
                )
                objects.append(entry.dn)
            else:
                objects.append(await self._alias(name, beside))
        return objects

    async def _alias(self, name: SingleName, beside: str) -> str:
        """Return an alias that stands for `name`; create one beside the list if there is none."""
        if getattr(name, "suffix", None) in (Suffix.JOURNAL, Suffix.DEADLETTER, Suffix.DEADXACT):
            raise EntryUnusable(f"{name} can only be read: it is not a member of a list")
        attributes = _alias_attributes(name)
        spelled = str(name)
        wanted = FilterAnd(
            filters=[
                FilterEquality(attribute="objectClass", value=ALIAS.encode()),
                FilterEquality(attribute=FORMAT_NAME, value=spelled.encode()),
            ]
        )
        domain = await self._look_ups.domain()
        found = await self._client.search(domain, Scope.SUBTREE, wanted, ("cn",), entries_max=1)
        if found:
            return found[0].dn
        parent = ldap_names.split(beside)[1]
        alias = f"{ldap_names.first_value(beside)[:48]} {zlib.crc32(spelled.encode()):08x}"
        dn = ldap_names.child(alias, parent)
        try:
            await self._client.add(dn, {**attributes, "description": (_OUR_ALIAS,)})
        except LdapRefused as error:
            if error.result_code != ResultCode.ENTRY_ALREADY_EXISTS:
                raise
            there = await self._client.read(dn, (FORMAT_NAME,))
            if there is None or text(there, FORMAT_NAME) != spelled:
                raise AlreadyInDirectory(f"the directory has another object {dn}") from error
        return dn

    async def _sweep(self, dn: str) -> None:
        """Delete an alias that qmd created and that is no longer a member of any list."""
        entry = await self._client.read(dn, ("objectClass", "description", "memberOf"))
        if entry is None or values(entry, "description") != (_OUR_ALIAS,):
            return
        if not values(entry, "memberOf"):
            await self._delete(dn, dn)

    async def _delete(self, dn: str, what: str) -> None:
        try:
            await self._client.delete(dn)
        except LdapRefused as error:
            if error.result_code == ResultCode.NO_SUCH_OBJECT:
                raise NotInDirectory(what) from error
            raise


def _alias_attributes(target: SingleName) -> dict[str, Sequence[bytes]]:
    spelled = str(target)
    if len(spelled) > FORMAT_NAME_CHARACTERS_MAX:
        raise EntryUnusable(
            f"the directory accepts format names of at most {FORMAT_NAME_CHARACTERS_MAX}"
            f" characters, and {spelled[:60]}... has {len(spelled)}"
        )
    return {"objectClass": (b"msMQ-Custom-Recipient",), FORMAT_NAME: (spelled.encode(),)}


def _check_label(label: str) -> None:
    if len(label) > LABEL_CHARACTERS_MAX:
        raise EntryUnusable(
            f"the label has {len(label)} characters; the directory accepts {LABEL_CHARACTERS_MAX}"
        )


def _properties(new: NewQueue) -> dict[str, tuple[bytes, ...]]:
    """Return the changeable properties of a queue by attribute; () means no value.

    [MS-MQDSSM] 3.1.6.1.2
    """
    return {
        "mSMQLabelEx": (new.label.encode(),) if new.label else (),
        "mSMQJournal": (b"TRUE" if new.journal else b"FALSE",),
        "mSMQAuthenticate": (b"TRUE" if new.authenticate else b"FALSE",),
        "mSMQPrivacyLevel": (b"%d" % PRIVACY_LEVELS.index(new.privacy),),
        "mSMQQueueQuota": _kilobytes(new.quota_bytes),
        "mSMQQueueJournalQuota": _kilobytes(new.journal_quota_bytes),
    }


def _kilobytes(quota_bytes: int | None) -> tuple[bytes, ...]:
    """Return a quota in KiB, 32 bits; () means no quota. [MS-MQMQ] 2.3.1.8"""
    if quota_bytes is None or quota_bytes >> 10 > QUOTA_KIB_MAX:
        return ()
    return (b"%d" % -(-quota_bytes // 1024),)


def _account_name(name: str) -> str:
    """Return the name without characters that sAMAccountName forbids, cut to 256 characters.

    [MS-ADTS] 3.1.1.6
    """
    return "".join("_" if c in '"/\\[]:;|=,+*?<>' or ord(c) < 0x20 else c for c in name)[:256]
