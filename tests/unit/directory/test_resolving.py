"""Resolving names into targets: all or none, from recent entries of the directory."""

import asyncio

import pytest

from protocol.identifiers import guid_bytes, guid_text
from protocol.names.format_name import parse_format_name
from qmd.config.settings import DirectorySettings
from qmd.directory.file.format import made_guid
from qmd.directory.interface import DirectoryAway, EntryUnusable, NoDirectory, NotInDirectory
from qmd.directory.null import NullDirectory
from qmd.directory.resolver import Own, Resolver
from qmd.errors import Refusal
from tests.unit.directory.directories import HOST_GUID, Desk, with_desk

ORDERS = "[[queue]]\npath = 'hostb\\orders'\ntransactional = true\n"
ORDERS_NAME = "PUBLIC=" + guid_text(made_guid("queue", "hostb\\orders"))


@with_desk()
async def test_direct_and_private_names_need_no_directory(desk: Desk) -> None:
    name = parse_format_name(f"DIRECT=OS:hostc\\private$\\a,PRIVATE={HOST_GUID}\\00000011")

    found = desk.resolver.resolve_cached(name)

    assert found is not None
    assert [str(target.name) for target in found.targets] == str(name).split(",")
    assert [target.element for target in found.targets] == [0, 1]
    assert desk.directory.questions == 0


@with_desk()
async def test_a_public_name_is_resolved_to_its_machine(desk: Desk) -> None:
    await desk.write(ORDERS)
    name = parse_format_name(ORDERS_NAME)

    assert desk.resolver.resolve_cached(name) is None
    (target,) = (await desk.resolver.resolve(name)).targets

    assert target.name == name
    assert str(target.direct) == r"DIRECT=TCP:10.0.0.5:1802\orders"
    assert target.machine is not None
    assert target.machine.addresses == ("10.0.0.5:1802", "hostb.lan")
    assert target.transactional is True
    assert desk.resolver.resolve_cached(name) is not None


@with_desk()
async def test_a_path_name_is_resolved_to_its_public_queue(desk: Desk) -> None:
    await desk.write(ORDERS)

    found = await desk.resolve("HOSTB\\Orders")

    assert str(found.name) == ORDERS_NAME
    assert await desk.names("hostb\\orders,orders@hostc") == [
        ORDERS_NAME,
        r"DIRECT=OS:hostc\private$\orders",
    ]


@with_desk()
async def test_a_path_missing_in_the_directory_is_not_taken_for_a_direct_name(desk: Desk) -> None:
    with pytest.raises(NotInDirectory, match=r"no public queue hostb\\nothing") as caught:
        await desk.resolve("hostb\\nothing")

    assert "DIRECT=OS:hostb\\nothing" in caught.value.remedy
    assert await desk.names("DIRECT=OS:hostb\\nothing") == ["DIRECT=OS:hostb\\nothing"]
    assert await desk.names("FormatName:DIRECT=OS:hostb\\nothing") == ["DIRECT=OS:hostb\\nothing"]


@with_desk()
async def test_local_queues_are_resolved_locally(desk: Desk) -> None:
    await desk.write("[[queue]]\npath = 'hosta\\mine'\n")
    known = guid_bytes("00000000-0000-0000-0000-000000000001")
    desk.own_queues[known] = ".\\known"
    registered = guid_text(made_guid("queue", "hosta\\mine"))

    assert await desk.names(f"PUBLIC={guid_text(known)}") == [f"PUBLIC={guid_text(known)}"]
    assert desk.directory.questions == 0
    assert await desk.names(f"PUBLIC={registered}") == ["DIRECT=OS:.\\mine"]
    assert await desk.names("hosta\\mine") == ["DIRECT=OS:hosta\\mine"], "no directory is needed"


@with_desk()
async def test_lists_within_lists_are_expanded_and_cycles_end(desk: Desk) -> None:
    await desk.write(
        ORDERS
        + "[[list]]\nname = 'a'\nmembers = ['q1@h', 'list:b', 'list:a', 'q3@h']\n"
        + "[[list]]\nname = 'b'\nmembers = ['q2@h', 'list:a', 'Q1@h', 'hostb\\orders']\n"
    )

    assert await desk.names("list:a") == [
        r"DIRECT=OS:h\private$\q1",
        r"DIRECT=OS:h\private$\q2",
        ORDERS_NAME,
        r"DIRECT=OS:h\private$\q3",
    ]


@with_desk()
async def test_a_queue_is_one_target_of_each_element_that_has_it(desk: Desk) -> None:
    await desk.write(
        "[[list]]\nname = 'a'\nmembers = ['q1@h']\n[[list]]\nname = 'b'\nmembers = ['q1@h']\n"
    )

    found = await desk.resolve("list:a,q1@h,list:b,q1@h")

    assert [target.element for target in found.targets] == [0, 1, 2, 3]
    assert {str(target.name) for target in found.targets} == {r"DIRECT=OS:h\private$\q1"}
    assert str(found.name).startswith("DL=")


@with_desk()
async def test_an_alias_is_resolved_to_its_target(desk: Desk) -> None:
    await desk.write("[[alias]]\nname = 'sales'\ntarget = 'q1@h'\n")

    assert await desk.names("alias:Sales") == [r"DIRECT=OS:h\private$\q1"]


CONNECTOR = "CONNECTOR=" + ORDERS_NAME.removeprefix("PUBLIC=")


@with_desk()
async def test_the_queue_of_a_connector_is_found_as_a_public_one(desk: Desk) -> None:
    await desk.write(ORDERS + "[[list]]\nname = 'a'\nmembers = ['q1@h', '" + CONNECTOR + "']\n")

    found = await desk.resolve(f"{CONNECTOR},q2@h,list:a")
    again = await desk.resolve(f"q3@h,{CONNECTOR}")

    assert str(found.name).startswith(CONNECTOR)
    assert [(str(each.name), each.element) for each in found.targets] == [
        (ORDERS_NAME, 0),
        (r"DIRECT=OS:h\private$\q2", 1),
        (r"DIRECT=OS:h\private$\q1", 2),
        (ORDERS_NAME, 2),
    ]
    assert [str(each.name) for each in again.targets][1:] == [ORDERS_NAME]


@with_desk()
async def test_a_local_connector_queue_needs_no_directory(desk: Desk) -> None:
    known = "00000000-0000-0000-0000-000000000001"
    desk.own_queues[guid_bytes(known)] = ".\\known"

    assert await desk.names(f"CONNECTOR={known}") == [f"PUBLIC={known}"]
    assert desk.directory.questions == 0


@with_desk()
async def test_a_queue_of_a_foreign_computer_needs_a_route_to_a_connector_server(
    desk: Desk,
) -> None:
    foreign = "[[machine]]\nname = 'mainframe'\nguid = '00000000-0000-0000-0000-0000000000cc'\n"
    foreign += "foreign = true\n"
    queue = "[[queue]]\npath = 'mainframe\\q'\n"
    await desk.write(foreign + queue)
    with pytest.raises(Refusal, match="neither its site nor a routing server") as caught:
        await desk.resolve("mainframe\\q")
    assert caught.value.code == "name_not_reachable"

    await desk.write(foreign + "in_routers = ['hostb']\n" + queue)
    (target,) = (await desk.resolve("mainframe\\q")).targets

    assert target.direct is None, "it is never dialled itself"
    assert target.machine is not None


@with_desk()
async def test_an_unresolved_name_is_reported_with_its_element(desk: Desk) -> None:
    unknown = "PUBLIC=00000000-0000-0000-0000-00000000dead"

    with pytest.raises(NotInDirectory, match=f"element 2 of 3, {unknown}: the directory has no"):
        await desk.resolve(f"q1@h,{unknown},q2@h")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("MACHINE=00000000-0000-0000-0000-00000000dead;JOURNAL", "queue_read_only"),
        ("PUBLIC=00000000-0000-0000-0000-00000000dead;JOURNAL", "queue_read_only"),
        ("CONNECTOR=00000000-0000-0000-0000-00000000dead", "not_in_directory"),
        ("CONNECTOR=00000000-0000-0000-0000-00000000dead;XACTONLY", "name_not_reachable"),
        ("MULTICAST=224.0.0.1:8001", "name_not_reachable"),
        ("q1@h,MULTICAST=224.0.0.1:8001", "name_not_reachable"),
        ("a\\b\\c", "name_not_understood"),
        ("list:", "name_not_understood"),
    ],
)
def test_a_name_that_cannot_receive_messages_is_refused(tmp_path, text, code):
    @with_desk()
    async def check(desk: Desk) -> None:
        with pytest.raises(Refusal) as caught:
            await desk.resolve(text)
        assert caught.value.code == code

    check(tmp_path)


@with_desk(age_s=60.0)
async def test_cached_entries_are_used_until_they_are_too_old_while_the_directory_is_unavailable(
    desk: Desk,
) -> None:
    await desk.write(ORDERS)
    await desk.names(ORDERS_NAME)
    desk.directory.is_away = True

    desk.now += 59
    assert await desk.names(ORDERS_NAME) == [ORDERS_NAME]
    desk.now += 2
    with pytest.raises(DirectoryAway, match="the line is cut"):
        await desk.names(ORDERS_NAME)


@with_desk(negative_age_s=15.0)
async def test_a_missing_entry_is_cached_for_a_while(desk: Desk) -> None:
    with pytest.raises(NotInDirectory):
        await desk.names(ORDERS_NAME)
    with pytest.raises(NotInDirectory):
        await desk.names(ORDERS_NAME)
    assert desk.directory.questions == 1

    desk.now += 16
    with pytest.raises(NotInDirectory):
        await desk.names(ORDERS_NAME)
    assert desk.directory.questions == 2


@with_desk(timeout_s=0.1, pause_s=30.0)
async def test_a_stalled_directory_counts_as_unavailable_and_is_not_asked_for_a_while(
    desk: Desk,
) -> None:
    await desk.write(ORDERS)
    desk.directory.stalled = asyncio.Event()

    with pytest.raises(DirectoryAway, match=r"no answer within 0\.1 s"):
        await desk.names(f"q1@h,{ORDERS_NAME}")
    asked = desk.directory.questions
    with pytest.raises(DirectoryAway, match="element 2 of 2"):
        await desk.names(f"q1@h,{ORDERS_NAME}")

    assert desk.directory.questions == asked
    assert await desk.names("q1@h") == [r"DIRECT=OS:h\private$\q1"]


@with_desk()
async def test_concurrent_equal_queries_are_sent_once(desk: Desk) -> None:
    await desk.write(ORDERS)
    desk.directory.stalled = asyncio.Event()

    waiting = [asyncio.ensure_future(desk.names(ORDERS_NAME)) for _ in range(50)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    desk.directory.stalled.set()

    assert await asyncio.gather(*waiting[1:]) == [[ORDERS_NAME]] * 49
    assert desk.directory.questions == 1


@with_desk()
async def test_a_changed_file_is_used_at_once_and_an_invalid_one_is_ignored(desk: Desk) -> None:
    await desk.write("[[list]]\nname = 'a'\nmembers = ['q1@h']\n")
    assert await desk.names("list:a") == [r"DIRECT=OS:h\private$\q1"]

    await desk.write("[[list]]\nname = 'a'\nmembers = ['q2@h']\n")
    assert await desk.names("list:a") == [r"DIRECT=OS:h\private$\q2"]

    await desk.write("[[list]]\nname = 'a'\nmembers = ['q3@h'\n")
    assert await desk.names("list:a") == [r"DIRECT=OS:h\private$\q2"]
    status = desk.directory.status()
    assert status.state == "stale"
    assert "directory.toml:" in status.problem


@with_desk()
async def test_an_invalid_address_makes_its_entry_unusable(desk: Desk) -> None:
    await desk.write(ORDERS)
    entry = desk.directory._contents.machines[guid_bytes(HOST_GUID)]  # no file can contain this
    queue = next(iter(desk.directory._contents.queues.values()))
    object.__setattr__(queue.machine, "addresses", ("a:b",))
    assert entry.addresses

    with pytest.raises(EntryUnusable, match="hostb has an address that is not valid"):
        await desk.names(ORDERS_NAME)


def test_without_a_directory_paths_are_direct_names_and_lists_are_refused():
    async def main() -> None:
        own = Own(b"\1" * 16, lambda name: name.host == ".", lambda guid: None)
        resolver = Resolver(NullDirectory(), own, DirectorySettings(), now=lambda: 0.0)

        (target,) = (await resolver.resolve_text("hostb\\orders")).targets
        assert str(target.name) == "DIRECT=OS:hostb\\orders"
        for text in ("list:a", "alias:a", ORDERS_NAME, f"DL={HOST_GUID}", f"a,{ORDERS_NAME}"):
            with pytest.raises(NoDirectory) as caught:
                await resolver.resolve_text(text)
            assert caught.value.code == "name_needs_directory"

    asyncio.run(main())


@with_desk()
async def test_an_empty_list_is_refused_unless_another_element_has_queues(desk: Desk) -> None:
    await desk.write("[[list]]\nname = 'a'\n[[list]]\nname = 'b'\nmembers = ['list:a']\n")

    with pytest.raises(Refusal, match="stands for no queue"):
        await desk.resolve("list:b")

    assert await desk.names("list:b,q1@h") == [r"DIRECT=OS:h\private$\q1"]
