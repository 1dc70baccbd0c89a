"""The event logs of live queue managers, copied to a folder as they grow.

The files are those of `qmd ship`, but copying them here does not count as shipping: a queue manager
that keeps its events until they were shipped goes on to keep them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.ship.destination import Target
from pipeline.ship.shipment import Notes, Ship, ShipFailed
from qmd.client import ClientError, blocking

NOTES = ".notes"
#: The audit sees that a host was idle by the age of its newest inventory.
INVENTORY_AGE_S = 15.0


class SourceFailed(Exception):
    """The log of a queue manager cannot be copied; the text names it and the reason."""


@dataclass(frozen=True)
class LiveLog:
    """The event log of one queue manager: a control socket, or tls://host:port."""

    address: str
    token_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def copy(self, folder: Path, *, new_epoch: bool = False) -> int:
        """Copy the new events to `folder`; return their number.  Raises SourceFailed.

        `new_epoch`: also those of a log that is not the copied one, beside it.
        """
        named: dict[str, Any] = {"reconnect_s": 0.0}
        if self.address.startswith("tls://"):
            named |= {
                "token_file": self.token_file,
                "ca_file": self.ca_file,
                "client_certificate": self.certificate_file,
                "client_key": self.key_file,
            }
        try:
            notes = Notes(folder / NOTES, self.address)
            with notes.locked(), blocking.connect(self.address, **named) as qm:
                ship = Ship(
                    qm,
                    Target(str(folder)),
                    notes,
                    is_primary=False,
                    new_epoch=new_epoch,
                    inventory_age_s=INVENTORY_AGE_S,
                )
                ship.events()
        except (ClientError, ShipFailed, OSError) as error:
            raise SourceFailed(f"{self.address}: {error}") from error
        return ship.done.events
