r"""Rights of Windows as entries of access control.

The rights of a queue are bits, [MS-MQMQ] 2.2.24 and 2.2.25; docs/access.md names the counterpart of
each.  An account of Windows is a principal here only if the administrator names one
(`CONTOSO\ann=user:ann`).  Without one, its SID can stand for the signers of messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from qmd.core import access as rights_of
from qmd.core.principals import ANONYMOUS, EVERYONE, LOCAL, BadPrincipal, parse_principal
from qmd.migration.errors import BadSource
from qmd.migration.security_descriptor import AccessEntry, SecurityDescriptor

Effect = str  # "allow" or "deny"
Rights = frozenset[str]
NONE: Rights = frozenset()

_DELETE_MESSAGE, _PEEK, _WRITE, _DELETE_JOURNAL = 0x1, 0x2, 0x4, 0x8
_SET_PROPERTIES, _GET_PROPERTIES = 0x10, 0x20
_DELETE_QUEUE, _GET_PERMISSIONS = 0x10000, 0x20000
_CHANGE_PERMISSIONS, _TAKE_OWNERSHIP = 0x40000, 0x80000
_RECEIVE = _DELETE_MESSAGE | _PEEK
_RECEIVE_JOURNAL = _DELETE_JOURNAL | _PEEK
#: The generic rights, and the bits that they stand for, [MS-MQMQ] 2.2.25.
_GENERIC = {
    0x80000000: _GET_PROPERTIES | _GET_PERMISSIONS | _RECEIVE | _RECEIVE_JOURNAL,
    0x40000000: _GET_PROPERTIES | _GET_PERMISSIONS | _WRITE,
    0x20000000: 0,
    0x10000000: 0xF003F,
}
#: Each right with the bits that a grant must have all of.
_GRANTED = {
    rights_of.SEND: _WRITE,
    rights_of.RECEIVE: _RECEIVE,
    rights_of.PURGE: _RECEIVE,
    rights_of.PEEK: _PEEK,
    rights_of.RECEIVE_JOURNAL: _RECEIVE_JOURNAL,
    rights_of.DELETE: _DELETE_QUEUE,
    rights_of.GET_PROPERTIES: _GET_PROPERTIES,
    rights_of.SET_PROPERTIES: _SET_PROPERTIES,
    rights_of.GET_PERMISSIONS: _GET_PERMISSIONS,
    rights_of.CHANGE_PERMISSIONS: _CHANGE_PERMISSIONS,
    rights_of.TAKE_OWNERSHIP: _TAKE_OWNERSHIP,
}
_WELL_KNOWN = {"S-1-1-0": EVERYONE, "S-1-5-7": ANONYMOUS, "S-1-5-11": LOCAL}
#: Accounts that have all rights on a computer: root and the user of the daemon are theirs here.
_ADMINISTRATORS = frozenset({"S-1-5-18", "S-1-5-32-544"})


class Gap(NamedTuple):
    """A thing without a counterpart: its object, the thing, the reason, and the remedy."""

    about: str
    what: str
    why: str
    remedy: str = ""


class WantedRights(NamedTuple):
    """The entries for a queue; `everyone` always has one, which replaces the default."""

    entries: dict[tuple[str, Effect], Rights]
    owner: str | None
    gaps: list[Gap]


class Accounts:
    """The principals that stand for accounts of Windows, by names and SIDs in any case."""

    def __init__(self, principals: Mapping[str, str]) -> None:
        """Raise BadSource for a text that is not a principal."""
        self._principals: dict[str, str] = {}
        for account, principal in principals.items():
            try:
                self._principals[account.casefold()] = str(parse_principal(principal))
            except BadPrincipal as error:
                raise BadSource(f"the account {account!r}: {error}") from error

    def principal(self, sid: str, name: str) -> str | None:
        """Return the principal of an account, or None if none is known."""
        for key in (sid, name):
            if key and key.casefold() in self._principals:
                return self._principals[key.casefold()]
        return _WELL_KNOWN.get(sid)


def wanted_rights(
    queue: str, descriptor: SecurityDescriptor, names: Mapping[str, str], accounts: Accounts
) -> WantedRights:
    """Return the entries for a queue with this security descriptor."""
    wanted: dict[tuple[str, Effect], Rights] = {(EVERYONE, "allow"): NONE}
    gaps: list[Gap] = []
    if descriptor.entries is None:
        wanted[EVERYONE, "allow"] = rights_of.SETS["full"]
        gaps.append(Gap(queue, "no access list", "on Windows everyone has all rights on it"))
    for entry in descriptor.entries or ():
        _add(wanted, gaps, queue, entry, names.get(entry.sid, ""), accounts)
    if descriptor.others:
        gaps.append(
            Gap(
                queue,
                f"{descriptor.others} entries for audits, objects or inheritance",
                "entries of access control here only allow or deny",
                "The audit log has every change and every refused request: qmd audit-log.",
            )
        )
    _close_to_anonymous(wanted)
    return WantedRights(wanted, _owner(gaps, queue, descriptor, names, accounts), gaps)


def _add(
    wanted: dict[tuple[str, Effect], Rights],
    gaps: list[Gap],
    queue: str,
    entry: AccessEntry,
    name: str,
    accounts: Accounts,
) -> None:
    principal = accounts.principal(entry.sid, name)
    if principal is None and entry.sid in _ADMINISTRATORS:
        return
    rights = _allowed(entry.mask) if entry.allows else _denied(entry.mask)
    shown = name or entry.sid
    if principal is None:
        principal = f"sid:{entry.sid}"
        lost = rights - {rights_of.SEND}
        rights &= {rights_of.SEND}
        gaps.append(
            Gap(
                queue,
                f"{shown}: {'allow' if entry.allows else 'deny'}"
                f" {rights_of.rights_text(lost | rights)}",
                "no principal here stands for this account"
                + ("; its right to send counts for signed messages" if rights else ""),
                f"Name one: --account '{shown}=user:NAME'.",
            )
        )
        if not rights:
            return
    elif principal == LOCAL and entry.sid in _WELL_KNOWN:
        gaps.append(
            Gap(
                queue,
                "Authenticated Users",
                "here it becomes every program of this computer; other hosts need entries of"
                " their own",
                "qmd acl grant peer:GUID|host:ADDRESS|sid:SID send QUEUE",
            )
        )
    key = principal, "allow" if entry.allows else "deny"
    wanted[key] = wanted.get(key, NONE) | rights


def _allowed(mask: int) -> Rights:
    bits = _specific(mask)
    return frozenset(right for right, needs in _GRANTED.items() if bits & needs == needs)


def _denied(mask: int) -> Rights:
    """A denial of one of several bits denies the right: Windows would refuse it too."""
    bits = _specific(mask)
    return frozenset(right for right, needs in _GRANTED.items() if bits & needs)


def _specific(mask: int) -> int:
    for generic, bits in _GENERIC.items():
        if mask & generic:
            mask |= bits
    return mask


def _close_to_anonymous(wanted: dict[tuple[str, Effect], Rights]) -> None:
    """Deny unsigned messages of other hosts where Windows has no entry for anonymous senders.

    Here everyone includes them; on Windows it does not.
    """
    anonymous = wanted.get((ANONYMOUS, "allow"), NONE)
    only_known = wanted[EVERYONE, "allow"] - anonymous
    if only_known:
        key = ANONYMOUS, "deny"
        wanted[key] = wanted.get(key, NONE) | only_known


def _owner(
    gaps: list[Gap],
    queue: str,
    descriptor: SecurityDescriptor,
    names: Mapping[str, str],
    accounts: Accounts,
) -> str | None:
    sid = descriptor.owner
    if sid is None or sid in _ADMINISTRATORS:
        return None
    owner = accounts.principal(sid, names.get(sid, ""))
    if owner is None:
        shown = names.get(sid) or sid
        gaps.append(
            Gap(
                queue,
                f"the owner {shown}",
                "no principal here stands for this account",
                f"Name one: --account '{shown}=user:NAME'.",
            )
        )
    return owner


def differences(
    wanted: Mapping[tuple[str, Effect], Rights],
    shown: Mapping[str, object],
    *,
    prune: bool = False,
) -> list[tuple[str, str, Rights]]:
    """Return the changes (action, principal, rights) that give an object the wanted entries.

    `shown` is the answer of `AccessControl.show`.  Entries of principals that are not wanted stay,
    unless `prune`.  The actions are "revoke", "deny" and "grant", in this order for each principal.
    """
    have = _present(shown)
    principals = sorted({principal for principal, _ in wanted})
    if prune:
        principals = sorted({*principals, *(principal for principal, _ in have)})
    changes: list[tuple[str, str, Rights]] = []
    for principal in principals:
        allow = wanted.get((principal, "allow"), NONE)
        deny = wanted.get((principal, "deny"), NONE)
        has_allow, has_deny = (
            have.get((principal, "allow"), NONE),
            have.get((principal, "deny"), NONE),
        )
        extra = (has_allow - rights_of.granted(allow)) | (has_deny - deny)
        if extra:
            changes.append(("revoke", principal, extra))
            has_allow, has_deny = rights_of.without(has_allow, extra), has_deny - extra
        if deny - has_deny:
            changes.append(("deny", principal, deny))
        if rights_of.granted(allow) - has_allow:
            changes.append(("grant", principal, allow))
    return changes


def _present(shown: Mapping[str, object]) -> dict[tuple[str, Effect], Rights]:
    found: dict[tuple[str, Effect], Rights] = {}
    entries = shown["entries"]
    assert isinstance(entries, list)
    for entry in entries:
        found[entry["principal"], entry["effect"]] = _parsed(entry["rights"])
    default = shown["default"]
    if isinstance(default, str):
        found[EVERYONE, "allow"] = _parsed(default)
    return found


def _parsed(text: str) -> Rights:
    return rights_of.parse_rights(text, of_host=False) if text else NONE
