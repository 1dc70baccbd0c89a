"""The gate of signed messages: a directory that does not answer holds up its own sessions only."""

from __future__ import annotations

import asyncio

from protocol import build_user_message, parse_user_message
from qmd.directory.interface import NotInDirectory
from tests.integration.directory.shared_directory import start
from tests.integration.managers import Hosts, hosted, until
from tests.integration.remote import dial, guid, packet
from tests.unit.message_security.secured import SID, certificate, signed


@hosted
async def test_messages_of_others_go_on_while_the_directory_is_asked(hosts: Hosts) -> None:
    a = await start(hosts, "a")
    await a.create("orders")
    answered, asked = asyncio.Event(), 0

    async def certificates(sender: str) -> tuple[bytes, ...]:
        nonlocal asked
        asked += 1
        await answered.wait()
        if sender != SID:
            raise NotInDirectory(f"sender {sender}")
        return (certificate("sender"),)

    a.directory.certificates = certificates
    waiting, other, also = [await dial(a, guid(each)) for each in (1, 2, 3)]

    def message(source: int, body: bytes, sid: str = "") -> bytes:
        plain = parse_user_message(packet(body, source=guid(source), number=1))
        return build_user_message(signed(plain, **({"sid": sid} if sid else {})))

    waiting.send(message(1, b"waits", SID))
    await until(lambda: asked == 1, "the question")
    also.send(message(3, b"waits for its turn", "S-1-5-21-9-9-9-9"))
    other.send(message(2, b"goes on"))
    await until(lambda: a.queue("orders").messages == 1, "the message of another host")
    assert asked == 1  # the sessions of one address ask one after the other

    answered.set()
    await until(lambda: a.queue("orders").messages == 2, "the message that has waited")
    await until(lambda: asked == 2, "the next question")
    await a.settled()
    assert a.queue("orders").messages == 2
    for each in (waiting, other, also):
        each.close()
