r"""Names that the directory reads otherwise than a program could: rights are those of its reading.

The file is that of tests/integration/directory/shared_directory.py.
"""

from __future__ import annotations

from typing import Any

from protocol.identifiers import guid_text
from qmd.access.register import holder_of
from qmd.control_protocol import access, directory
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator
from qmd.control_protocol.messages import Refused
from qmd.core.access import DEFAULTS, Kind
from qmd.core.principals import ALL
from qmd.queues.local_queue import LocalQueue
from storage.tables import queues as queue_rows
from tests.integration.control.test_local_users import ANN, user
from tests.integration.control.verb_tries import Client, to
from tests.integration.directory.shared_directory import create_public, directory_of, start
from tests.integration.managers import Host, Hosts, hosted
from tests.users import needs_root

pytestmark = needs_root


async def close(host: Host, queue: LocalQueue) -> None:
    await host.access_register.revoke(holder_of(queue), ALL, DEFAULTS[Kind.ORDINARY])


async def refused(client: Client, name: str) -> None:
    """Try each kind of request about a queue."""
    requests: tuple[tuple[Any, ...], ...] = (
        (frames.Send, [to(name)]),
        (frames.Send, [to(f"own,{name}")]),
        (frames.Send, [to("own", admin_queue=name, acknowledge=1)]),
        (frames.Peek, name),
        (frames.Take, name, 1, 0.0),
        (frames.Move, name, "own"),
        (operator.PurgeQueue, name),
        (operator.DeleteQueue, name),
        (access.ChangeAccess, "grant", "everyone", "full", name),
    )
    for request in requests:
        reply = await client.ask(*request)
        assert isinstance(reply, Refused), (name, request, reply)


@hosted
async def test_a_queue_with_the_name_of_an_alias_gives_no_rights_on_its_queue(
    hosts: Hosts,
) -> None:
    host = await start(hosts, "a")
    secret = await host.create("secret")
    await host.send("secret", b"1")
    await close(host, secret)
    root, ann = await user(host, 0), await user(host, ANN)
    await ann.done(operator.CreateQueue, "own")
    await root.done(directory.CreateAlias, "sales", "secret")
    await root.done(directory.CreateList, "all", ["secret"])
    for name in ("alias:sales", "Alias:sales", "list:all", "topic:news"):
        for spelling in (name, f"formatname:{name}", f"DIRECT=OS:.\\private$\\{name}"):
            assert isinstance(await ann.ask(operator.CreateQueue, spelling), Refused), spelling
    # Queues of these names that exist from before.
    for name in ("alias:sales", "list:all"):
        path = f"private$\\{name}"
        row = await host.storage.batch.run(
            lambda db, path=path: queue_rows.create(  # type: ignore[misc]
                db, name=path, transactional=False, now_s=1
            )
        )
        host.queues.adopt(row, 0, 0)
        host.destinations.forget()
        await root.done(access.SetOwner, path, f"user:{ANN}")

    for name in ("alias:sales", "ALIAS:SALES", "formatname:alias:sales", "list:all"):
        await refused(ann, name)
    assert secret.messages == 1
    await root.done(access.ChangeAccess, "grant", f"user:{ANN}", "send", "secret")
    await ann.done(frames.Send, [to("alias:sales"), to("list:all")])
    assert secret.messages == 3
    await ann.done(frames.Send, [to("private$\\alias:sales")])
    assert len(await ann.done(frames.Take, "private$\\alias:sales", 1, 0.0)) == 1
    ann.close(), root.close()


@hosted
async def test_another_name_of_this_computer_in_the_directory_gives_no_rights(
    hosts: Hosts,
) -> None:
    host = await start(hosts, "a")
    await create_public(host, "closed")
    (closed,) = [each for each in host.queues.by_key.values() if each.is_public]
    await close(host, closed)
    root, ann = await user(host, 0), await user(host, ANN)
    await ann.done(operator.CreateQueue, "own")
    file = directory_of(hosts)
    text = file.read_text().replace('name = "a"', 'name = "sales"')
    file.write_text(text.replace("'a\\closed'", "'sales\\closed'"))
    await root.done(directory.DirectoryReload)

    for name in ("sales\\closed", f"PUBLIC={guid_text(closed.guid)}", "a\\closed"):
        await refused(ann, name)
    assert closed.messages == 0
    await root.done(frames.Send, [to("sales\\closed")])
    assert closed.messages == 1  # it is that queue
    ann.close(), root.close()
