"""The base of the objects that serve the links of a client."""

from __future__ import annotations

from typing import Any


class ServedLink:
    """An object that serves a link; `link` is the one of proton."""

    link: Any
    #: Proton has freed the link.  Its deliveries must not be touched any more: proton uses their
    #: memory for those of other links, so that an outcome would be that of another message.
    is_freed = False

    @property
    def is_settled(self) -> bool:
        """Whether no message of the link waits for its commit."""
        return True
