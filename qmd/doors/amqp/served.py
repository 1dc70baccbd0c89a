"""The base of the objects that serve the links of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qmd.doors.amqp.attach_frames import Resumed


class ServedLink:
    """An object that serves a link; `link` is the one of proton."""

    link: Any
    #: Proton has freed the link.  Its deliveries must not be touched any more: proton uses their
    #: memory for those of other links, so that an outcome would be that of another message.
    is_freed = False
    #: The tags of deliveries that a sender has resumed, and that are accepted.
    accepted_tags: Sequence[bytes] = ()

    async def begin(self, resumed: Resumed | None) -> None:
        """Prepare the link before it is opened; `resumed` if its client resumes it.

        Raises ClientError.
        """

    @property
    def is_settled(self) -> bool:
        """Whether no message of the link waits for its commit."""
        return True
