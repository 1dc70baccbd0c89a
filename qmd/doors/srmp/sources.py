"""The queue managers at the other end, as the daemon knows them: by GUID and address.

Nothing in an envelope proves its source, and all sessions of this door come from one address.  So
the first address that states a GUID keeps it; another one that states it too is another queue
manager to the daemon, with a GUID derived from both, and has sequences and a history of its own.
It can neither take the places of the first one's messages nor lock it out (docs/decisions/0031).
"""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec

from qmd.runtime.definition_file import DefinitionFile

#: GUIDs that one address, and all together, can keep; any further one is derived.
OF_ADDRESS_MAX = 100
ALL_MAX = 10_000


class FirstAddress(msgspec.Struct, frozen=True):
    """The address that has stated a GUID first; its name is the GUID."""

    name: str
    address: str


class Sources:
    """The addresses to which GUIDs belong, in a file."""

    def __init__(self, path: Path) -> None:
        self._file = DefinitionFile(path, FirstAddress, OSError)

    def guid_of(self, stated: uuid.UUID, address: str) -> uuid.UUID:
        """Return the GUID for a host that states one; the first address is kept durably.

        Raises OSError.
        """
        found = self._file.read()
        first = found.get(str(stated))
        if first is None and self._has_room(found, address):
            new = FirstAddress(str(stated), address)

            def keep(known: dict[str, FirstAddress]) -> None:
                known.setdefault(new.name, new)

            self._file.change(keep)
            first = self._file.read().get(str(stated))
        if first is not None and first.address == address:
            return stated
        return uuid.uuid5(stated, address)

    @staticmethod
    def _has_room(found: dict[str, FirstAddress], address: str) -> bool:
        own = sum(each.address == address for each in found.values())
        return len(found) < ALL_MAX and own < OF_ADDRESS_MAX
