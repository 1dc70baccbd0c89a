"""The commands `qmd acl`, and the client's `access`, with a real daemon."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from qmd.client import QueueManagerError, connect
from tests.patience import END_S
from tests.process.harness import Daemon, Hosts

DEFAULT = "send,get-properties,get-permissions"


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    daemon = hosts.daemon()
    daemon.create("orders")
    return daemon


def acl(daemon: Daemon, *words: str, check: bool = True) -> dict[str, Any]:
    (found,) = daemon.json("acl", *words, check=check)
    return found


def entries(shown: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {(each["effect"], each["principal"], each["rights"]) for each in shown["entries"]}


def test_a_queue_shows_its_owner_its_default_and_its_entries(daemon: Daemon) -> None:
    shown = acl(daemon, "show", "orders")
    assert shown["object"] == r"private$\orders"
    assert shown["kind"] == "queue"
    assert shown["default"] == DEFAULT
    assert entries(shown) == set()

    acl(daemon, "grant", "user:4711", "receive,send", "orders")
    shown = acl(daemon, "deny", "user:4711", "send", "orders")
    assert entries(shown) == {
        ("allow", "user:4711", "send,receive,peek"),
        ("deny", "user:4711", "send"),
    }
    assert acl(daemon, "show", r"DIRECT=OS:.\private$\ORDERS") == shown

    shown = acl(daemon, "revoke", "user:4711", "send", "orders")
    assert entries(shown) == {("allow", "user:4711", "receive,peek")}
    shown = acl(daemon, "revoke", "everyone", "send", "orders")
    assert shown["default"] is None
    text = daemon.cli("acl", "show", "orders").stdout.decode()
    assert "user:4711" in text
    assert "default for everyone" not in text


def test_a_right_is_tested_with_a_reason_and_an_exit_code(daemon: Daemon) -> None:
    found = acl(daemon, "test", "user:4711", "receive", "orders", check=False)
    assert not found["allowed"]
    assert daemon.cli("acl", "test", "user:4711", "receive", "orders", check=False).returncode == 1

    acl(daemon, "grant", "user:4711", "receive", "*")
    found = acl(daemon, "test", "user:4711", "receive", "orders")
    assert found["allowed"]
    assert found["entry"] == "allow user:4711 receive,peek"
    assert found["entry_of"]
    assert daemon.cli("acl", "test", "user:4711", "receive", "orders").stdout.startswith(b"yes")
    assert acl(daemon, "test", "me", "full", "host")["reason"].endswith("is an administrator")


def test_a_queue_is_given_to_an_owner(daemon: Daemon) -> None:
    assert acl(daemon, "owner", "orders", "user:4711")["owner"] == "user:4711"
    assert acl(daemon, "test", "user:4711", "purge", "orders")["allowed"]
    taken = acl(daemon, "owner", "orders")["owner"]
    assert taken != "user:4711"
    assert acl(daemon, "owner", "orders", "me")["owner"] == taken
    refused = daemon.cli("acl", "owner", "orders", "everyone", check=False)
    assert refused.returncode != 0
    assert b"cannot own" in refused.stderr


def test_an_export_is_imported_whole_or_not_at_all(daemon: Daemon, tmp_path: Path) -> None:
    acl(daemon, "grant", "user:4711", "receive", "orders")
    acl(daemon, "grant", "token:shop", "see-status", "host")
    acl(daemon, "owner", "orders", "user:4712")
    exported = daemon.cli("acl", "export").stdout
    file = tmp_path / "rights"
    file.write_bytes(exported)
    acl(daemon, "revoke", "user:4711", "receive", "orders")
    acl(daemon, "grant", "user:4713", "full", "orders")

    bad = json.dumps(
        {"object": "nowhere", "principal": "everyone", "effect": "allow", "rights": "send"}
    )
    file.write_bytes(exported + bad.encode() + b"\n")
    assert daemon.cli("acl", "import", str(file), check=False).returncode != 0
    assert entries(acl(daemon, "show", "orders")) == {("allow", "user:4713", "full")}

    file.write_bytes(exported)
    acl(daemon, "import", str(file))
    both = {("allow", "user:4711", "receive,peek"), ("allow", "user:4713", "full")}
    assert entries(acl(daemon, "show", "orders")) == both
    acl(daemon, "import", str(file), "--replace", "--yes")
    daemon.restart()
    assert daemon.cli("acl", "export").stdout == exported


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("grant", "somewhere", "send", "orders"), b"somewhere"),
        (("grant", "user:no-such-user", "send", "orders"), b"no-such-user"),
        (("grant", "everyone", "fly", "orders"), b"'fly' is not a right"),
        (("grant", "everyone", "create-queue", "orders"), b"not a right on a queue"),
        (("revoke", "user:4711", "send", "orders"), b"no entry"),
        (("show", "none-such"), b"none-such"),
    ],
)
def test_a_mistake_is_named_and_changes_nothing(
    daemon: Daemon, words: tuple[str, ...], part: bytes
) -> None:
    before = daemon.cli("acl", "export").stdout

    refused = daemon.cli("acl", *words, check=False)

    assert refused.returncode not in (0, 1)
    assert part in refused.stderr
    assert daemon.cli("acl", "export").stdout == before


def test_a_program_manages_rights(daemon: Daemon) -> None:
    async def main() -> None:
        async with asyncio.timeout(END_S), connect(daemon.folder / "qmd.sock") as qm:
            await qm.access.grant("user:4711", "receive", "orders")
            await qm.access.deny("user:4711", "send", "orders")
            shown = await qm.access.revoke("user:4711", "send", "orders")
            assert entries(shown) == {("allow", "user:4711", "receive,peek")}
            assert await qm.access.show("orders") == shown
            assert (await qm.access.test("user:4711", "peek", "orders"))["allowed"]
            assert not (await qm.access.test("user:4711", "purge", "orders"))["allowed"]
            assert (await qm.access.test("", "full", "host"))["allowed"]
            assert (await qm.access.set_owner("orders", "user:4711"))["owner"] == "user:4711"
            exported = await qm.access.export()
            await qm.access.grant("everyone", "full", "orders")
            done = await qm.access.import_(exported["entries"], exported["owners"], replace=True)
            assert done == {
                "entries": len(exported["entries"]),
                "owners": len(exported["owners"]),
            }
            assert await qm.access.export() == exported
            with pytest.raises(QueueManagerError) as refused:
                await qm.access.grant("everyone", "fly", "orders")
            assert refused.value.code == "bad_right"

    asyncio.run(main())


def test_the_creator_of_a_queue_is_its_owner(daemon: Daemon) -> None:
    owner = acl(daemon, "show", "orders")["owner"]
    found = acl(daemon, "test", "me", "send", "orders")

    assert os.geteuid() == 0 or owner == found["principal"]
