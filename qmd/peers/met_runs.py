"""Runs of other queue managers that this one has met, as the event log names them.

Two copies of one queue manager have one GUID, and each logs its own runs only.  Events of the other
hosts name that GUID, and not the copy.  So a queue manager also logs with which run it speaks: an
audit then sees that the log of that run is missing (docs/decisions/0083).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from protocol.identifiers import guid_text
from qmd.core.peer_instance import run_text

if TYPE_CHECKING:
    from qmd.events.recorder import Recorder
    from qmd.peers.connection import PeerConnection

#: Queue managers of which the last run is in memory; a run of another one is logged once more.
KNOWN_MAX = 10_000


class MetRuns:
    """The last run of each queue manager that the log names since the start."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._last: OrderedDict[bytes, bytes] = OrderedDict()  # GUID: nonce

    def met(self, connection: PeerConnection) -> None:
        """Log the run at the other end of a session, unless it is the last one of its GUID."""
        run, session = connection.instance, connection.session
        guid = None if session is None else session.remote_id
        if run is None or guid is None or connection.peer != guid_text(guid):
            return  # it does not run qmd, or events name another origin of that GUID
        if self._last.get(guid) == run.nonce:
            self._last.move_to_end(guid)
        elif self._recorder.met(run_text(guid, run), connection.host):
            self._last[guid] = run.nonce
            self._last.move_to_end(guid)
            if len(self._last) > KNOWN_MAX:
                self._last.popitem(last=False)
