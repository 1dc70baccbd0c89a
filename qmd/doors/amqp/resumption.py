"""The deliveries of a link that are committed: a sender that resumes the link learns of them.

The daemon keeps them, in the commit of the messages (`qmd.control_protocol.links`), so that they
outlast this door.  A delivery is its tag and a digest of its message: with the receiver settle mode
"first" a client may use a tag again as soon as it has an outcome, so that the tag alone does not
identify a message.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from qmd.client.errors import ClientError
from qmd.control_protocol import links as frames
from qmd.control_protocol import messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from qmd.doors.control import UserConnection

DIGEST_BYTES = 8
TAG_BYTES_MAX = 32  # clause 2.8.7
ACCEPTED, REJECTED = 0x24, 0x25
NAMES = {"amqp:accepted:list": ACCEPTED, "amqp:rejected:list": REJECTED}
TAKE_MAX = 1000
DIGITS_MAX = 18  # of a lookup id
RETURN_S = 1.0
REASON = "rejected by its receiver over AMQP"


def link_id(container: str, name: str) -> bytes:
    """Return the id of a link for the daemon, which adds the client to it."""
    text = f"{len(container)} {container}{name}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[: frames.LINK_BYTES]


def delivery_of(tag: bytes, message: bytes, bare: int) -> bytes:
    """Return a delivery as it is recorded; b"": its tag is too long for a client that resumes.

    The sender does not change the part of its message from `bare` on.
    """
    if len(tag) > TAG_BYTES_MAX:
        return b""
    unchanged = memoryview(message)[bare:]
    return hashlib.blake2b(unchanged, digest_size=DIGEST_BYTES).digest() + tag


async def settle_resumed(control: UserConnection, queue: str, states: Mapping[bytes, Any]) -> None:
    """Settle messages of a queue as a receiver states that resumes its link.

    `states` are the delivery states by the tags, which are the lookup ids of the messages.
    Messages without an outcome, and those that another receiver has by now, are left alone.
    Raises ClientError.
    """
    outcomes = {
        int(tag): code
        for tag, state in states.items()
        if tag.isdigit() and len(tag) <= DIGITS_MAX and (code := _outcome(state))
    }
    left = await _settle(control, queue, outcomes, messages.NO_WAIT)
    # Those that were just given back for a connection that was lost are there in a moment.
    await _settle(control, queue, left, RETURN_S)


async def _settle(
    control: UserConnection, queue: str, outcomes: dict[int, int], wait_s: float
) -> dict[int, int]:
    """Settle messages that are at their places; return the outcomes of the others."""
    left, numbers = dict(outcomes), sorted(outcomes)
    for first in range(0, len(numbers), TAKE_MAX):
        choice = messages.Choice(lookup_ids=numbers[first : first + TAKE_MAX])
        found = messages.stored_messages(
            await control.request(messages.TakeChosen, queue, choice, TAKE_MAX, wait_s)
        )
        codes = {each.lookup_id: left.pop(each.lookup_id) for each in found}
        if accepted := [number for number, code in codes.items() if code == ACCEPTED]:
            await control.request(messages.Remove, queue, accepted)
        if rejected := [number for number, code in codes.items() if code == REJECTED]:
            await control.request(messages.Reject, queue, rejected, REASON)
    return left


def _outcome(state: Any) -> int:
    """Return the code of a delivery state that ends a message; 0: it does not."""
    code: Any = getattr(state, "descriptor", 0)
    number = int(code) if isinstance(code, int) else NAMES.get(str(code), 0)
    return number if number in (ACCEPTED, REJECTED) else 0


class LinkRecord:
    """The committed deliveries of one link of a sender."""

    def __init__(self, link: bytes, kept: int) -> None:
        """`kept`: how many deliveries may have no outcome in the eyes of the sender."""
        self._link = link
        self._kept = kept
        self._position = 0
        #: Deliveries that the client has resumed, by their tags, and that are committed.
        self._committed: dict[bytes, bytes] = {}
        self.is_resumed = False

    async def begin(self, control: UserConnection) -> None:
        """Begin a new link: earlier deliveries are not known any more.  Raises ClientError."""
        await control.request(frames.ForgetLink, self._link)

    async def resume(self, control: UserConnection, tags: Iterable[bytes]) -> None:
        """Go on after the recorded deliveries; `tags` are those that the client resumes.

        Raises ClientError.
        """
        self.is_resumed = True
        answer = await control.request(frames.ResumeLink, self._link)
        self._position, found = answer or (0, [])
        by_tag = {each[DIGEST_BYTES:]: each for each in found}
        self._committed = {tag: by_tag[tag] for tag in tags if tag in by_tag}

    async def end(self, control: UserConnection) -> None:
        """Forget the link: it was closed."""
        try:
            await control.ask(frames.ForgetLink, self._link)
        except ClientError:
            return  # it ends by its age

    @property
    def is_used(self) -> bool:
        """Whether deliveries of the link are recorded."""
        return self._position > 0

    @property
    def committed_tags(self) -> list[bytes]:
        """The tags of resumed deliveries that are committed."""
        return list(self._committed)

    def was_committed(self, tag: bytes, delivery: bytes | None) -> bool:
        """Return whether a resumed delivery is committed, once for each.

        `delivery` as of `delivery_of`; None: the tag alone identifies it.
        """
        known = self._committed.pop(tag, None) if self._committed else None
        return known is not None and (delivery is None or delivery == known)

    def entry(self, deliveries: list[bytes]) -> Any:
        """Return the next deliveries for the request that commits them."""
        first = self._position
        self._position += len(deliveries)
        return frames.LinkDeliveries(self._link, first, max(0, first - self._kept), deliveries)

    def take_back(self) -> None:
        """Note that the last delivery was not recorded: its message was refused."""
        self._position -= 1
