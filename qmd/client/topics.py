"""Topics: names of which a message goes to the queues of all subscriptions that match it.

await qm.topics.create("news")
await qm.topics.subscribe("news", "east", "news-east", where="region = 'east'")
await qm.send("topic:news", b"rain", properties={"region": "east"})
"""

from __future__ import annotations

from typing import Any

from qmd.client.caller import Caller
from qmd.control_protocol import topics as frames
from qmd.control_protocol.messages import Request

Facts = dict[str, Any]


class Topics:
    """The topics of the queue manager, as `QueueManager.topics`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def create(self, name: str, *, unmatched: str = "") -> Facts:
        """Create a topic, or change `unmatched` of one that exists.

        `unmatched`: the queue for messages that no subscription takes; without one, sending such a
        message is refused.
        """
        return await self._change(frames.CreateTopic, name, unmatched)

    async def delete(self, name: str) -> Facts:
        """Delete a topic with its subscriptions; return it as it was.  Queues stay."""
        return await self._change(frames.DeleteTopic, name)

    async def subscribe(self, topic: str, name: str, destination: str, *, where: str = "") -> Facts:
        """Add a subscription, or change it: messages that match `where` go to `destination`."""
        return await self._change(frames.Subscribe, topic, name, destination, where)

    async def unsubscribe(self, topic: str, name: str) -> Facts:
        """Remove a subscription."""
        return await self._change(frames.Unsubscribe, topic, name)

    async def show(self, name: str) -> Facts:
        """Return a topic with its subscriptions."""
        result: Facts = await self._caller.ask(frames.ShowTopic, name)
        return result

    async def list_all(self) -> list[Facts]:
        """Return all topics with their subscriptions."""
        result: list[Facts] = await self._caller.ask(frames.ListTopics)
        return result

    async def _change(self, verb: type[Request], *arguments: object) -> Facts:
        result: Facts = await self._caller.change(verb, *arguments, safe_to_retry=True)
        return result
