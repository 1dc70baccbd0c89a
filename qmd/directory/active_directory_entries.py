"""Objects of Active Directory read as entries: attributes, class names and their meaning.

All functions raise EntryUnusable for an object that cannot be used. [MS-MQDSSM] 3.1.6
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocol.errors import InvalidName, MalformedPacket
from protocol.identifiers import NULL_GUID
from protocol.names.format_name import (
    DistributionListName,
    MultipleName,
    PublicName,
    SingleName,
    parse_format_name,
)
from protocol.security_data import parse_user_certificates
from qmd.directory.interface import (
    CERTIFICATES_MAX,
    PRIVACY_OPTIONAL,
    AliasEntry,
    EntryUnusable,
)
from qmd.directory.ldap.messages import Entry
from qmd.queues.local_queue import PRIVACY_LEVELS

QUEUE, CONFIGURATION, COMPUTER = "msmqqueue", "msmqconfiguration", "computer"


GROUP, QUEUE_GROUP, ALIAS = "group", "msmq-group", "msmq-custom-recipient"


SITE, SITE_LINK, SETTINGS = "site", "msmqsitelink", "msmqsettings"


FORMAT_NAME: Final = "msMQ-Recipient-FormatName"


LISTS: Final = (GROUP, QUEUE_GROUP)


KINDS: Final[Mapping[str, str]] = {
    QUEUE: "a public queue",
    CONFIGURATION: "a queue manager",
    ALIAS: "a queue alias",
    QUEUE_GROUP: "a distribution list",
    GROUP: "a distribution list",
    COMPUTER: "a computer",
}


_SERVICE_ROUTING = 0x01  # of mSMQServiceType; [MS-MQDSSM] 3.1.6.1.1.5


def values(entry: Entry, attribute: str) -> tuple[bytes, ...]:
    return entry.attributes.get(attribute.lower(), ())


def text(entry: Entry, attribute: str) -> str:
    """Return the value, "" if there is none. Raises EntryUnusable if it is not text."""
    given = values(entry, attribute)
    if not given:
        return ""
    try:
        return given[0].decode()
    except UnicodeDecodeError as error:
        raise EntryUnusable(f"{attribute} of {entry.dn} is not UTF-8") from error


def number(entry: Entry, attribute: str) -> int:
    """Return the value, 0 if there is none. Raises EntryUnusable."""
    given = text(entry, attribute)
    digits = given.removeprefix("-")
    if given and not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise EntryUnusable(f"{attribute} of {entry.dn} is {given[:40]!r}, not a number")
    return int(given or 0)


def guid_of(entry: Entry) -> bytes:
    guid = optional_guid(entry, "objectGUID")
    if guid == NULL_GUID:
        raise EntryUnusable(f"{entry.dn} has no objectGUID")
    return guid


def classes(entry: Entry) -> set[str]:
    """Return all classes of the object in lower case; documents and schema differ in case."""
    return {one.decode(errors="replace").lower() for one in values(entry, "objectClass")}


def optional_guid(entry: Entry, attribute: str) -> bytes:
    given = values(entry, attribute)
    if not given:
        return NULL_GUID
    if len(given[0]) != 16:
        raise EntryUnusable(f"{attribute} of {entry.dn} has {len(given[0])} bytes, not a GUID")
    return given[0]


def routes(entry: Entry) -> bool:
    if values(entry, "mSMQRoutingServices"):
        return text(entry, "mSMQRoutingServices").upper() == "TRUE"
    return bool(number(entry, "mSMQServiceType") & _SERVICE_ROUTING)


def privacy(entry: Entry) -> str:
    """Return the level of privacy of a queue; absent: optional. [MS-MQMQ] 2.3.1.17"""
    if not values(entry, "mSMQPrivacyLevel"):
        return PRIVACY_OPTIONAL
    level = number(entry, "mSMQPrivacyLevel")
    if not 0 <= level < len(PRIVACY_LEVELS):
        raise EntryUnusable(f"mSMQPrivacyLevel of {entry.dn} is {level}, and 0 to 2 are possible")
    return PRIVACY_LEVELS[level]


def sender_certificates(entry: Entry) -> tuple[bytes, ...]:
    """Return the certificates (DER) of a user or computer, each once.

    mSMQSignCertificates is one value, MQUSERSIGNCERTS; [MS-MQMQ] 2.2.22
    """
    found = dict.fromkeys(values(entry, "userCertificate")[:CERTIFICATES_MAX])
    for value in values(entry, "mSMQSignCertificates")[:1]:
        try:
            registered = parse_user_certificates(value)
        except MalformedPacket as error:
            raise EntryUnusable(f"mSMQSignCertificates of {entry.dn}: {error}") from error
        found.update(dict.fromkeys(each.certificate for each in registered))
    return tuple(found)


def member_of_list(entry: Entry, name: str) -> SingleName:
    found = classes(entry)
    if QUEUE in found:
        return PublicName(guid_of(entry))
    if ALIAS in found:
        return alias_target(entry)
    if found.intersection(LISTS):
        return DistributionListName(guid_of(entry))
    raise EntryUnusable(
        f"{entry.dn}, a member of the distribution list {name}, is neither a public queue nor a"
        " queue alias nor a distribution list"
    )


def alias_entry(entry: Entry) -> AliasEntry:
    return AliasEntry(guid=guid_of(entry), name=text(entry, "cn"), target=alias_target(entry))


def alias_target(entry: Entry) -> SingleName:
    spelled = text(entry, FORMAT_NAME)
    if not spelled:
        raise EntryUnusable(f"the queue alias {entry.dn} stands for no queue")
    try:
        name = parse_format_name(spelled)
    except InvalidName as error:
        raise EntryUnusable(
            f"the queue alias {entry.dn} stands for {spelled!r}, which is not a format name:"
            f" {error}"
        ) from error
    if isinstance(name, MultipleName):
        raise EntryUnusable(f"the queue alias {entry.dn} stands for several queues: {spelled}")
    return name


def name_text(raw: bytes, where: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise EntryUnusable(f"a name in {where or 'the directory'} is not UTF-8") from error
