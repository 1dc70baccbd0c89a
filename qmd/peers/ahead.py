"""The stored end of the large packet of a session that is decided about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.queues.parts_ahead import PartAhead


class LargeSink(Protocol):
    """Stores the ends of large packets: `LargeArrivals` of qmd/transfer."""

    def store_ahead(
        self, connection: Any, packet: bytes, on_end: Callable[[], None]
    ) -> PartAhead | None: ...
    def forget(self, part: PartAhead) -> None: ...


class Ahead:
    """The state of a session: nothing is stored ahead, or the end of one packet."""

    __slots__ = ("_sink", "part")

    def __init__(self, sink: LargeSink) -> None:
        self._sink = sink
        self.part: PartAhead | None = None

    def store(self, session: Any, packet: bytes, on_end: Callable[[], None]) -> bool:
        """Store the end of a packet that the session will process; return whether that is useful.

        A reference to the session would keep it alive after its end. `on_end` is called when the
        end is stored. `forget` follows when the packet was decided about.
        """
        self.part = self._sink.store_ahead(session, packet, on_end)
        return self.part is not None

    def forget(self) -> None:
        """Delete what was stored and is not part of a message."""
        part, self.part = self.part, None
        if part is not None:
            self._sink.forget(part)
