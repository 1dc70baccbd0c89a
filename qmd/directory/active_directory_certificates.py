"""Certificates of senders in Active Directory: looked up, registered and removed. [MS-MQDSSM]

    user            mSMQSignCertificates: one value with all of them, MQUSERSIGNCERTS
                    mSMQDigests: their MD5 digests in the same order (3.1.6.7.6.4)
                    userCertificate: those of an authority, which only that one changes
    queue manager   the same on the object of its computer (3.1.6.7.1.10), and
                    mSMQSignKey of its CN=msmq: the keys of these certificates, MQDSPUBLICKEYS
                    ([MS-MQMQ] 2.3.2.33)

A change replaces the value that was read, in one request with its digests: if another program was
faster, the server refuses it, and the change begins again.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from protocol.errors import MalformedPacket
from protocol.identifiers import guid_bytes
from protocol.security_data import (
    UserCertificate,
    build_user_certificates,
    parse_user_certificates,
)
from qmd.directory.active_directory_entries import CONFIGURATION, sender_certificates, values
from qmd.directory.interface import CERTIFICATES_MAX, EntryUnusable, NotInDirectory
from qmd.directory.ldap import names as ldap_names
from qmd.directory.ldap.access import LdapRefused
from qmd.directory.ldap.messages import Change, Entry, ResultCode

if TYPE_CHECKING:
    from qmd.directory.active_directory_lookups import LookUps
    from qmd.directory.ldap.client import LdapClient

Records = tuple[UserCertificate, ...]

_CERTIFICATES: Final = "mSMQSignCertificates"
_DIGESTS: Final = "mSMQDigests"
_SIGN_KEY: Final = "mSMQSignKey"
_ATTRIBUTES: Final = (_CERTIFICATES, "userCertificate")
_TRIES: Final = 4
#: Answers about a value that is not there any more, or a second one beside it.
_CHANGED_MEANWHILE: Final = (
    ResultCode.NO_SUCH_ATTRIBUTE,
    ResultCode.ATTRIBUTE_OR_VALUE_EXISTS,
    ResultCode.CONSTRAINT_VIOLATION,
)


class SenderCertificates:
    """The certificates of users, by their SIDs, and of queue managers, by their GUIDs."""

    def __init__(self, client: LdapClient, look_ups: LookUps) -> None:
        self._client = client
        self._look_ups = look_ups

    async def of(self, sender: str) -> tuple[bytes, ...]:
        """Return the certificates of a sender.  Raises NotInDirectory."""
        return sender_certificates(await self._entry(sender))

    async def register(self, sender: str, certificate: bytes) -> bool:
        """Register a certificate; return whether it is new.  Raises EntryUnusable."""

        def add(records: Records) -> Records | None:
            if any(each.certificate == certificate for each in records):
                return None
            if len(records) >= CERTIFICATES_MAX:
                raise EntryUnusable(
                    f"the directory has {len(records)} certificates of {sender}, and no more are"
                    " read",
                    f"Remove one: qmd key remove {sender} FINGERPRINT --directory",
                )
            return (*records, _record(certificate))

        return await self._change(sender, add)

    async def remove(self, sender: str, fingerprint: str) -> bool:
        """Remove a registered certificate by its SHA-256; return whether it was there."""

        def without(records: Records) -> Records | None:
            left = tuple(
                each
                for each in records
                if hashlib.sha256(each.certificate).hexdigest() != fingerprint
            )
            return left if len(left) < len(records) else None

        return await self._change(sender, without)

    async def _change(self, sender: str, change: Callable[[Records], Records | None]) -> bool:
        """Replace the certificates of a sender by those that `change` returns; None: nothing."""
        for left in reversed(range(_TRIES)):
            entry = await self._entry(sender)
            records = change(_records(entry))
            if records is None:
                return False
            try:
                await self._client.modify(entry.dn, _changes(entry, records))
            except LdapRefused as error:
                if error.result_code not in _CHANGED_MEANWHILE or not left:
                    raise
                continue
            if not sender.startswith("S-"):
                await self._publish_keys(entry, records)
            return True
        raise AssertionError("the last try returns or raises")

    async def _publish_keys(self, computer: Entry, records: Records) -> None:
        """Replace the keys that sign for the queue manager of a computer."""
        from qmd.message_security.keyring import signing_keys

        keys = signing_keys([each.certificate for each in records])
        manager = ldap_names.child("msmq", computer.dn)
        await self._client.modify(manager, [(Change.REPLACE, _SIGN_KEY, (keys,) if keys else ())])

    async def _entry(self, sender: str) -> Entry:
        """Return the object with the certificates of a sender."""
        what = f"sender {sender}"
        if sender.startswith("S-"):
            name = f"<SID={sender}>"
        else:
            found = await self._look_ups.by_guid(
                guid_bytes(sender), ("objectClass",), CONFIGURATION, what
            )
            name = ldap_names.split(found.dn)[1]
        entry = await self._client.read(name, _ATTRIBUTES)
        if entry is None:
            raise NotInDirectory(what)
        return entry


def _record(certificate: bytes) -> UserCertificate:
    # The digest identifies the certificate and protects nothing.
    digest = hashlib.md5(certificate, usedforsecurity=False).digest()
    return UserCertificate(digest, uuid.uuid4().bytes_le, len(certificate), certificate)


def _records(entry: Entry) -> Records:
    found = values(entry, _CERTIFICATES)[:1]
    try:
        return parse_user_certificates(found[0]) if found and found[0] else ()
    except MalformedPacket as error:
        raise EntryUnusable(f"{_CERTIFICATES} of {entry.dn}: {error}") from error


def _changes(entry: Entry, records: Records) -> list[tuple[Change, str, Sequence[bytes]]]:
    before = values(entry, _CERTIFICATES)[:1]
    after = (build_user_certificates(records),) if records else ()
    digests = tuple(dict.fromkeys(each.digest for each in records))
    changes: list[tuple[Change, str, Sequence[bytes]]] = []
    if before:
        changes.append((Change.DELETE, _CERTIFICATES, before))
    if after:
        changes.append((Change.ADD, _CERTIFICATES, after))
    return [*changes, (Change.REPLACE, _DIGESTS, digests)]
