"""A whole queue manager in a thread of its own, for state machines with blocking steps."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop

from protocol import parse_user_message
from qmd.control_protocol.messages import NewMessage
from tests.integration.agreement import check_agreement
from tests.integration.managers import (
    DEAD_LETTERS as PLAIN_DEAD_LETTERS,
)
from tests.integration.managers import TRANSACTIONAL_DEAD_LETTERS, Host, Hosts, until
from tests.patience import END_S
from tests.process import wire

# A short run repeats the same examples: new ones are the work of a search, which may take long.
IS_SHORT = "LIVE_EXAMPLES" not in os.environ
EXAMPLES = int(os.environ.get("LIVE_EXAMPLES", 5))  # of each machine; each takes one or two seconds
STEPS = 40
PATIENCE_S = END_S
DEAD_LETTERS = [PLAIN_DEAD_LETTERS, TRANSACTIONAL_DEAD_LETTERS]
DELIVERY = {"acknowledge_at_once": True, "retry_first_s": 0.005, "retry_max_s": 0.02}


class QueueManager:
    """A queue manager in a thread; its methods block."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="qmd-live-"))
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._hosts = Hosts(self._folder)
        self.host: Host = self.run(self._hosts.start("a", delivery=DELIVERY))

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def create(self, name: str, *, transactional: bool, quota_bytes: int | None = None) -> None:
        self.run(self.host.create(name, transactional=transactional, quota_bytes=quota_bytes))

    def restart(self) -> None:
        self.host = self.run(self._hosts.restart(self.host, delivery={"acknowledge_at_once": True}))

    def send(self, messages: list[NewMessage]) -> list[str]:
        """Send messages in one request; return their ids when they are on disk."""

        async def send() -> list[str]:
            return await self.host.handed_over(messages)

        return self.run(send())  # type: ignore[no-any-return]

    def outgoing(self, destination: str) -> tuple[int, int]:
        """Return the numbers of messages that are on their way, and that await confirmation."""
        queue = self.host.sending_to(destination)
        return queue.messages, queue.awaiting.messages

    def receive(self, queue: str, limit: int) -> list[bytes]:
        return self.run(self.host.receive(queue, limit))  # type: ignore[no-any-return]

    def contents(self, queue: str) -> list[tuple[bytes, int, bool]]:
        """Return the body and the size of each message, and whether it is recoverable."""
        messages = self.run(self.host.peek(queue))
        return [
            (
                parse_user_message(each.packet).properties.body,
                len(each.packet),
                bool(each.packet[60] & wire.DM),
            )
            for each in messages
        ]

    def wait_for(self, queue: str, expected: list[tuple[bytes, int, bool]]) -> None:
        """Wait until a queue has exactly these contents; the last messages may be on their way."""
        end = time.monotonic() + PATIENCE_S
        while (found := self.contents(queue)) != expected:
            assert time.monotonic() < end, (queue, found, expected)
            time.sleep(0.05)

    def settle(self, disconnected: bytes) -> None:
        """Wait until the session with a peer has ended, and its messages are in their places."""

        async def settled() -> None:
            await until(lambda: self.host.peers.connection_to(disconnected) is None)
            await self.host.settled()

        self.run(settled())

    def dead_letters(self) -> Counter[bytes]:
        return Counter(body for name in DEAD_LETTERS for body, *_ in self.contents(name))

    def check(self) -> None:
        """Check that memory, disk and events agree; acknowledgments may still be on their way."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.run(check_agreement(self.host))  # type: ignore[no-any-return]
            except AssertionError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        try:
            self.run(self._hosts.__aexit__(None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_S)
            self._loop.close()
            shutil.rmtree(self._folder)
