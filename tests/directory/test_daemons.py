"""Real daemons in a real Active Directory: public queues, and a controller that fails."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from protocol.identifiers import guid_text
from qmd.catalogue import id_of
from tests.directory.domain import administrator
from tests.directory.domain_controller import DomainController
from tests.directory.hosts import (
    COMPUTER_PASSWORD,
    address,
    fails,
    lookup,
    public,
    status,
    unknown,
    until_available,
)
from tests.patience import END_S
from tests.process.harness import Daemon


async def _id_of(controller: DomainController, computer: str) -> str:
    async with administrator(controller) as domain:
        return guid_text(await domain.guid(f"CN=msmq,CN={computer},{domain.computers}"))


def test_a_queue_manager_takes_its_id_from_the_directory_at_its_first_start(hosts):
    (facts,) = hosts.pc1.json("status")

    assert asyncio.run(_id_of(hosts.controller, "PC1")) in json.dumps(facts)
    assert status(hosts.pc1)["state"] == "available"
    assert status(hosts.pc1)["where"] == hosts.controller.url


def test_a_public_queue_is_registered_used_by_others_and_unregistered(hosts):
    name = public(hosts.pc1, "orders")

    assert lookup(hosts.pc2, "pc1\\orders")["format_name"] == name
    hosts.pc2.send(name, b"by its GUID")
    hosts.pc2.send("pc1\\orders", b"by its path")
    received = {message["body_base64"] for message in hosts.pc1.wait_for(".\\orders", 2)}
    assert len(received) == 2

    hosts.pc1.cli("queue", "delete", name, "--yes")

    assert "has no public queue" in fails(
        hosts.pc2, "directory", "lookup", "pc1\\orders", "--fresh"
    )
    assert id_of("not_in_directory") in fails(hosts.pc2, "send", name, "--body-base64", "eA==")


def test_without_rights_to_lists_there_is_an_error_and_queues_still_work(hosts):
    text = fails(hosts.pc1, "dl", "create", "mine", "--json")

    assert id_of("directory_denied") in text


@pytest.mark.parametrize("when", ["at once", "after the connection was lost"])
def test_with_a_silent_domain_controller_the_daemon_works_and_reports_it(hosts, when):
    queue = f"private$\\going-{when.split()[0]}"
    hosts.pc1.cli("queue", "create", queue)
    assert id_of("not_in_directory") in fails(hosts.pc2, "send", unknown(), "--body-base64", "eA==")

    hosts.controller.freeze()
    try:
        if when != "at once":
            fails(hosts.pc2, "send", unknown(), "--body-base64", "eA==")
        text = fails(hosts.pc2, "send", unknown(), "--body-base64", "eA==")
        hosts.pc2.send(f"DIRECT=OS:{address(hosts.pc1)}\\{queue}", b"meanwhile")
        assert hosts.pc1.wait_for(queue, 1)
        away = status(hosts.pc2)
    finally:
        hosts.controller.thaw()

    assert id_of("directory_away") in text
    assert hosts.controller.url in text
    assert "within" in text or "next try" in text
    if when != "at once":
        assert "TLS handshake" in text
    assert away["state"] == "away"
    until_available(hosts.pc2)


def test_a_domain_controller_that_was_killed_is_used_after_its_restart(hosts):
    name = public(hosts.pc1, "lasting")
    hosts.pc2.send(name, b"before")
    hosts.controller.kill()
    try:
        text = fails(hosts.pc2, "send", unknown(), "--body-base64", "eA==")
        assert hosts.controller.url in text
        assert status(hosts.pc2)["state"] == "away"
        assert id_of("directory_away") in fails(
            hosts.pc1, "queue", "create", "no", "--public", "--json"
        )
        assert hosts.pc1.wait_for(".\\lasting", 1)
    finally:
        hosts.controller.start()
    until_available(hosts.pc1)
    until_available(hosts.pc2)

    hosts.pc2.send(name, b"after")
    public(hosts.pc1, "again")

    assert len(hosts.pc1.wait_for(".\\lasting", 2)) == 2


def test_a_first_start_without_the_directory_reports_its_needs(hosts, tmp_path: Path):
    settings = {
        "queue_manager": {"name": "pc1"},
        "directory": {
            "kind": "active-directory",
            "servers": [f"ldaps://{hosts.controller.address}:9"],
            "ca_file": str(hosts.controller.ca_file),
            "user": "PC1$@msmq.test",
            "password_file": str(hosts.controller.password_file),
            "join": True,
        },
    }
    daemon = Daemon(tmp_path / "lonely", settings=settings)

    process = daemon.spawn()

    assert process.wait(END_S) != 0
    assert "takes the queue manager's id from the directory" in daemon.tail()
    assert "Connection refused" in daemon.tail()
    assert hosts.controller.password not in daemon.tail()


def test_no_password_is_in_any_log(hosts):
    for daemon in (hosts.pc1, hosts.pc2):
        assert "directory_connected" in daemon.tail(10_000_000)
        for password in (COMPUTER_PASSWORD, hosts.controller.password):
            assert password not in daemon.tail(10_000_000)
