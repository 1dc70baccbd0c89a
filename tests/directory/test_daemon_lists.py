"""Real daemons that send to distribution lists of a real Active Directory, during changes."""

from __future__ import annotations

import asyncio

from qmd.directory.ldap.messages import Change
from tests.directory.domain import administrator
from tests.directory.hosts import public


def test_a_change_of_a_list_applies_to_the_next_send(hosts):
    first, second = (public(hosts.pc1, queue) for queue in ("till1", "till2"))
    hosts.pc2.create("copy")
    (inner,) = hosts.pc2.json("dl", "create", "inner", second, "DIRECT=OS:pc2\\private$\\copy")
    (outer,) = hosts.pc2.json("dl", "create", "outer", first, "list:inner")
    hosts.pc2.cli("dl", "add", "inner", "list:outer")  # a cycle
    name = outer["format_name"]
    assert name.startswith("DL=")

    hosts.pc2.send(name, b"to all")
    for daemon, queue in ((hosts.pc1, ".\\till1"), (hosts.pc1, ".\\till2"), (hosts.pc2, "copy")):
        assert daemon.wait_for(queue, 1)

    hosts.pc2.cli("dl", "remove", "inner", second)
    hosts.pc2.send(name, b"to those that are left")

    assert len(hosts.pc1.wait_for(".\\till1", 2)) == 2
    assert len(hosts.pc2.wait_for("copy", 2)) == 2
    assert len(hosts.pc1.peek(".\\till2")) == 1
    assert inner["format_name"] != name


def test_a_change_by_another_administrator_applies_after_the_cache_age(hosts):
    public(hosts.pc1, "late")
    (made,) = hosts.pc2.json("dl", "create", "growing")
    dn = f"CN=growing,CN=Users,{hosts.controller.base}"

    async def grow() -> None:
        async with administrator(hosts.controller) as domain:
            queue = f"CN=late,CN=msmq,CN=PC1,{domain.computers}"
            await domain.change(dn, [(Change.ADD, "member", [queue.encode()])])

    asyncio.run(grow())
    hosts.pc2.cli("directory", "lookup", "list:growing", "--fresh")
    hosts.pc2.send(made["format_name"], b"new")

    assert len(hosts.pc1.wait_for(".\\late", 1)) == 1
