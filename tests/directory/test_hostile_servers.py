"""Servers that break the protocol: only the connection ends, with a reason."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from sansldap import (
    BindResponse,
    ExtendedResponse,
    LDAPMessage,
    LDAPResult,
    LDAPResultCode,
    PagedResultControl,
    PartialAttribute,
    SearchResultDone,
    SearchResultEntry,
)
from sansldap._messages import PackingOptions

from qmd.directory.active_directory import ActiveDirectory
from qmd.directory.interface import DirectoryError
from qmd.directory.ldap import client as ldap_client
from qmd.directory.ldap import connection as ldap_connection
from qmd.directory.ldap.access import Access, Security, Server

SUCCESS = LDAPResult(LDAPResultCode.SUCCESS, "", "", None)
ROOT = [PartialAttribute("defaultNamingContext", [b"DC=x"])]

Behave = Callable[["Session"], Awaitable[None]]


class Session:
    """One connection to a server that a test controls."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def request(self) -> int:
        """Wait for the next request; return its number."""
        head = await self._reader.readexactly(2)
        size = head[1]
        if size & 0x80:
            size = int.from_bytes(await self._reader.readexactly(size & 0x7F), "big")
        body = await self._reader.readexactly(size)
        return int.from_bytes(body[2 : 2 + body[1]], "big")

    async def bind(self) -> None:
        await self.send(BindResponse(await self.request(), [], SUCCESS, None))

    async def root(self) -> None:
        """Answer the request that comes first on each connection."""
        number = await self.request()
        await self.send(SearchResultEntry(number, [], "", ROOT))
        await self.send(SearchResultDone(number, [], SUCCESS))

    async def send(self, *messages: LDAPMessage | bytes) -> None:
        self._writer.write(
            b"".join(
                one if isinstance(one, bytes) else one.pack(PackingOptions()) for one in messages
            )
        )
        await self._writer.drain()


async def ask_for_lists(directory: ActiveDirectory) -> object:
    return await directory.lists()


def refusal(
    behave: Behave,
    tmp_path: Path,
    *,
    security: Security = Security.NONE,
    ask: Callable[[ActiveDirectory], Awaitable[object]] = ask_for_lists,
) -> tuple[str, int]:
    """Return the error of a request to such a server, and the number of its connections."""
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text("secret")
    connections = 0
    serving = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        serving.add(asyncio.current_task())
        try:
            await behave(Session(reader, writer))
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def run() -> str:
        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        access = Access(
            user="me",
            password_file=password,
            plain_allowed=True,
            connect_timeout_s=5,
            timeout_s=5,
        )
        found = ActiveDirectory([Server("127.0.0.1", port, security)], access, retry_first_s=30.0)
        try:
            with pytest.raises(DirectoryError) as refused:
                await ask(found)
            assert type(refused.value) is not DirectoryError
            return refused.value.text
        finally:
            await found.stop()
            listener.close()
            await asyncio.gather(*serving)

    return asyncio.run(run()), connections


async def garbage(session: Session) -> None:
    await session.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def huge_length(session: Session) -> None:
    await session.bind()
    await session.request()
    await session.send(b"\x30\x84\x7f\xff\xff\xff")


async def unasked(session: Session) -> None:
    await session.bind()
    number = await session.request()
    await session.send(SearchResultDone(number + 1000, [], SUCCESS))


async def notice(session: Session) -> None:
    await session.bind()
    await session.request()
    busy = LDAPResult(LDAPResultCode.UNAVAILABLE, "", "maintenance at noon", None)
    await session.send(ExtendedResponse(0, [], busy, "1.3.6.1.4.1.1466.20036", None))


async def another_answer(session: Session) -> None:
    await session.bind()
    await session.send(BindResponse(await session.request(), [], SUCCESS, None))


async def endless_entries(session: Session) -> None:
    await session.bind()
    number = await session.request()
    entry = SearchResultEntry(number, [], "CN=a", []).pack(PackingOptions())
    while True:
        await session.send(entry * 1000)


async def hangs_up(session: Session) -> None:
    await session.bind()
    await session.request()
    raise ConnectionResetError


@pytest.mark.parametrize(
    ("behave", "word"),
    [
        (garbage, "violates the protocol"),
        (huge_length, "bytes; at most"),
        (unasked, "never sent"),
        (notice, "maintenance at noon"),
        (another_answer, "another kind of answer than was requested"),
        (endless_entries, "more than 5000 entries"),
        (hangs_up, "closed the connection"),
    ],
)
def test_an_error_of_a_server_is_reported(behave, word, tmp_path):
    text, connections = refusal(behave, tmp_path)

    assert word in text
    assert "secret" not in text
    assert connections == 1


def test_an_answer_of_too_many_bytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ldap_connection, "OPERATION_BYTES_MAX", 100_000)

    async def heavy(session: Session) -> None:
        await session.bind()
        number = await session.request()
        value = PartialAttribute("a", [b"x" * 60_000])
        await session.send(*[SearchResultEntry(number, [], "CN=a", [value])] * 2)

    assert "an answer of more than 100000 bytes" in refusal(heavy, tmp_path)[0]


def test_pages_without_an_end_have_one(tmp_path, monkeypatch):
    monkeypatch.setattr(ldap_client, "PAGES_MAX", 20)

    async def pages(session: Session) -> None:
        await session.bind()
        await session.root()
        while True:
            page = PagedResultControl(critical=False, size=0, cookie=b"more")
            await session.send(SearchResultDone(await session.request(), [page], SUCCESS))

    assert "20 pages" in refusal(pages, tmp_path)[0]


def test_the_error_for_an_invalid_text_names_the_object(tmp_path):
    async def no_text(session: Session) -> None:
        await session.bind()
        await session.root()
        number = await session.request()
        found = [PartialAttribute("cn", [b"\xff"]), PartialAttribute("objectGUID", [b"x" * 16])]
        await session.send(SearchResultEntry(number, [], "CN=a", found))
        await session.send(SearchResultDone(number, [], SUCCESS))

    assert "not UTF-8" in refusal(no_text, tmp_path)[0]


def test_answers_before_the_start_of_tls_are_ignored(tmp_path):
    """An attacker in between could put an answer before the protected ones."""

    async def inject(session: Session) -> None:
        number = await session.request()
        answer = ExtendedResponse(number, [], SUCCESS, None, None)
        await session.send(answer, SearchResultDone(number + 1, [], SUCCESS))

    text, _ = refusal(inject, tmp_path, security=Security.START_TLS)

    assert "violates the protocol" in text


def test_a_server_without_tls_is_distinguished_from_an_absent_one(tmp_path):
    async def refuse(session: Session) -> None:
        none = LDAPResult(LDAPResultCode.PROTOCOL_ERROR, "", "no TLS here", None)
        await session.send(ExtendedResponse(await session.request(), [], none, None, None))

    text, _ = refusal(refuse, tmp_path, security=Security.START_TLS)

    assert "the server does not offer TLS" in text
    assert "no TLS here" in text


async def refers(session: Session) -> None:
    """Answer as a server of a part of the forest, which refers to another server for the rest."""
    elsewhere = LDAPResult(LDAPResultCode.REFERRAL, "", "", ["ldap://child.x/DC=child,DC=x"])
    await session.bind()
    while True:
        await session.send(SearchResultDone(await session.request(), [], elsewhere))


def test_objects_of_another_domain_are_not_in_the_directory(tmp_path):
    text, _ = refusal(refers, tmp_path, ask=lambda directory: directory.queue(bytes(range(16))))

    assert "has no PUBLIC=" in text


def test_a_read_only_controller_is_reported_as_such(tmp_path):
    async def copy(session: Session) -> None:
        await session.bind()
        number = await session.request()
        kind = PartialAttribute("objectClass", [b"mSMQQueue"])
        await session.send(SearchResultEntry(number, [], "CN=q,DC=x", [kind]))
        await session.send(SearchResultDone(number, [], SUCCESS))
        # The response to a deletion is a result, like that to a search, with a tag of its own.
        number = await session.request()
        await session.send(
            b"\x30\x0c\x02\x01" + bytes((number,)) + b"\x6b\x07\x0a\x01\x0a\x04\0\x04\0"
        )

    text, _ = refusal(
        copy, tmp_path, ask=lambda directory: directory.changes.unregister_queue(bytes(range(16)))
    )

    assert "only a read-only copy" in text
