"""A token for one thing on one queue, at the port for remote control: every verb of the protocol.

The verbs come from the code, so a new one is tried as well.  Each request is made about things of
others, in many spellings, and about things that do not exist: the replies must be alike.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from qmd.access.demands import ADMIN, READ, WRITE
from qmd.access.tokens import revoke
from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import Done, Refused, Request
from tests.attack.spellings import OF_A_QUEUE
from tests.integration.control.test_verb_rights import still_whole
from tests.integration.control.verb_tries import MINE, SECRET, TRIES, others
from tests.integration.managers import Hosts, hosted
from tests.process.remote_daemon import Remote
from tests.process.test_remote_control import reply_of

ABSENT = "absent"
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is needed to make certificates"
)
SPELLINGS = (*OF_A_QUEUE, "alias:{}", "list:{}", "topic:{}")
#: Names in the things of others, which no reply may contain unless the request does.
NAMES = ("secret", "archive", "etl", "news", "others", "staged")
#: The whole id of a transaction is known to its client only.
NOT_ALIKE = {(frames.Outcome, 0)}


def nothing() -> Any:
    """Return ids that stand for nothing, as the fields of a World."""
    unknown = [{"queue": "b0b0b0b0-0000-5000-8000-000000000000"}]
    return SimpleNamespace(
        transaction=os.urandom(16),
        committed=os.urandom(16),
        message_id="b0b0b0b0-0000-4000-8000-000000000000\\4096",
        delayed_id="b0b0b0b0-0000-4000-8000-000000000000\\4097",
        lookup_id=1 << 50,
        fence=99,
        positions=1,
        host=SimpleNamespace(readers=SimpleNamespace(overview=lambda: unknown)),
    )


def renamed(value: Any, name: Callable[[str], str]) -> Any:
    """Return a request with other texts."""
    if isinstance(value, str):
        return name(value)
    if isinstance(value, msgspec.Struct):
        fields = {each: renamed(getattr(value, each), name) for each in value.__struct_fields__}
        return type(value)(**fields)
    if isinstance(value, dict):
        return {renamed(key, name): renamed(each, name) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [renamed(each, name) for each in value]
    return value


def about(request: Request, spelling: str, queue: str) -> Any:
    """Return a request about a queue, instead of the secret one."""
    whole = {SECRET: spelling.format(queue)}
    plain = re.compile(re.escape(SECRET), re.IGNORECASE)
    return renamed(request, lambda text: whole.get(text) or plain.sub(queue, text))


def shape(reply: Any) -> str:
    """Return the text of a reply without the names and ids that its request states."""
    told = reply.result if isinstance(reply, Done) else (reply.code, reply.text, reply.remedy)
    ids = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\\+\d+)?|[0-9a-f]{32,}"
    return re.sub(ids, "ID", repr(told).casefold().replace(SECRET, ABSENT))


@pytest.mark.parametrize("scope", [READ, WRITE, ADMIN])
def test_no_verb_changes_what_others_have_or_names_it(scope: str, tmp_path: Path) -> None:
    @hosted
    async def attack(hosts: Hosts) -> None:
        async with others(hosts) as world:
            narrow, none = await world.log_in(scope, queues=(MINE,)), nothing()
            before = await world.state()
            for verb, tries in TRIES.items():
                for at, each in enumerate(tries):
                    for spelling in SPELLINGS:
                        request = about(each.request(world), spelling, SECRET)
                        reply = await narrow.ask_as(request)
                        where = f"{verb.__name__}, try {at}, {spelling}: {reply}"
                        text, asked = repr(reply).casefold(), repr(request).casefold()
                        assert not [n for n in NAMES if n in text and n not in asked], where
                        if (verb, at) not in NOT_ALIKE:
                            twin = about(each.request(none), spelling, ABSENT)
                            assert shape(await narrow.ask_as(twin)) == shape(reply), where
                        if spelling.startswith("{}"):
                            assert await world.state() == before, where
            assert await world.state() == before
            await still_whole(world)

    attack(tmp_path)


@needs_openssl
def test_a_request_after_its_token_was_revoked_is_refused_at_once(tmp_path: Path) -> None:
    """Each request is checked: the end of the connection, which comes soon, would be too late."""
    remote = Remote(tmp_path)
    remote.daemon.create(MINE)
    try:
        for number in range(5):
            name = f"at-once-{number}"
            token = remote.token("read", name=name).read_text().strip()
            with remote.raw() as client:
                client.sendall(frames.frame(frames.Login(1, frames.VERSION, token)))
                assert isinstance(reply_of(client), frames.Done)
                assert revoke(remote.tokens, name)
                try:
                    client.sendall(frames.frame(frames.Peek(2, MINE)))
                    reply = reply_of(client)
                except (OSError, AssertionError):
                    continue  # the connection has ended
                assert isinstance(reply, Refused), "the token was revoked before"
                assert reply.code == "token_refused"
    finally:
        remote.daemon.kill()
