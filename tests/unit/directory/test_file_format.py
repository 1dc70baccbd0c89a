"""The directory file: strict reading, and changes that keep all handwritten text."""

import tomllib
from pathlib import Path

import pytest

from protocol.identifiers import guid_bytes
from protocol.names.format_name import parse_format_name
from qmd.directory.file import editing
from qmd.directory.file.contents import Contents
from qmd.directory.file.format import DirectoryFileError, made_guid, parse
from qmd.directory.interface import NewQueue

FILE = Path("/etc/qmd/directory.toml")
GUID_A = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
GUID_B = "1f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f1"

WHOLE = rf"""
# Our computers.
[[machine]]
name = "hosta"
guid = "{GUID_A}"
addresses = ["10.0.0.5", "[fd00::5]:1802", "hosta.lan"]
sites = ["berlin"]
in_routers = ["hostb.example.com"]

[[machine]]
name = "hostb.example.com"
guid = "{GUID_B}"
routes = true

# Where orders arrive.
[[queue]]
path = 'hosta\orders'
label = "Orders"
transactional = true

[[queue]]
path = 'hostb\billing'
guid = "2f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f2"

[[list]]
name = "all"
members = [
    'hosta\orders',   # first of all
    "list:others",
    "alias:sales",
]

[[list]]
name = "others"
members = ['hostb\billing', "list:all"]

[[alias]]
name = "sales"
target = 'DIRECT=TCP:10.0.0.9\private$\sales'

[[site]]
name = "berlin"
gates = ["hostb"]

[[site]]
name = "paris"

[[link]]
sites = ["berlin", "paris"]
cost = 10
gates = ["hostb"]
"""


def read(text: str) -> Contents:
    return parse(text, FILE)


def test_every_entry_of_a_file_is_read():
    found = read(WHOLE)

    orders = found.queue_by_path("HOSTA.example.com\\Orders")
    assert orders is not None
    assert (orders.label, orders.transactional) == ("Orders", True)
    assert orders.machine.addresses == ("10.0.0.5", "[fd00::5]:1802", "hosta.lan")
    assert orders.machine.in_routers == (guid_bytes(GUID_B),)
    assert orders.guid == made_guid("queue", "hosta\\orders")
    billing = found.queue_by_path("hostb\\billing")
    assert billing is not None
    assert billing.path == "hostb.example.com\\billing"
    everybody = found.list_by_name("ALL")
    assert everybody is not None
    others = found.list_by_name("others")
    assert others is not None
    assert list(map(str, everybody.members)) == [
        str(parse_format_name(f"PUBLIC={_text(orders.guid)}")),
        f"DL={_text(others.guid)}",
        r"DIRECT=TCP:10.0.0.9\private$\sales",
    ]
    berlin, paris = found.sites.values()
    assert berlin.gates == (guid_bytes(GUID_B),)
    assert [(link.site, link.cost) for link in paris.links] == [(berlin.guid, 10)]
    assert dict(found.counts)["machines"] == 2


def test_a_guid_made_from_a_name_is_always_the_same():
    assert made_guid("queue", "hosta\\Orders") == made_guid("queue", "HOSTA\\orders")
    assert made_guid("queue", "x") != made_guid("list", "x")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[[queue]\n", 1, "]"),
        ("\n[[quue]]\n", 2, "quue is unknown"),
        ("queue = 1\n", 1, "must be separate entries"),
        ('[[machine]]\nname = "a"\n', 1, "guid is missing"),
        (f'[[machine]]\nname = "a"\nguid = "{GUID_A}"\nadress = "b"\n', 4, "unknown key"),
        (f'[[machine]]\nname = "a\\\\b"\nguid = "{GUID_A}"\n', 2, "allowed are"),
        ('[[machine]]\nname = "a"\nguid = "12"\n', 3, "a GUID such as"),
        (f'[[machine]]\nguid = "{GUID_A}"\nname = "a"\naddresses = ["x:y"]\n', 4, "a port"),
        (f'[[machine]]\nguid = "{GUID_A}"\nname = "a"\nsites = ["x"]\n', 4, "no site x"),
        (
            f'[[machine]]\nguid = "{GUID_A}"\nname = "a"\n[[machine]]\nname = "A"\n'
            f'guid = "{GUID_B}"\n',
            5,
            "another machine A",
        ),
        (
            f'[[machine]]\nguid = "{GUID_A}"\nname = "a"\n[[machine]]\nname = "b"\n'
            f'guid = "{GUID_A}"\n',
            6,
            "belongs to another entry",
        ),
        ("[[queue]]\npath = 'a\\q'\n", 2, "no machine a"),
        ("[[queue]]\npath = 'a\\private$\\q'\n", 2, "computer\\queue"),
        ('[[list]]\nname = "a"\nmembers = ["list:b"]\n', 3, "no list b"),
        ('[[list]]\nname = "a"\nmembers = ["alias:b"]\n', 3, "no alias b"),
        ('[[list]]\nname = "a"\nmembers = ["orders"]\n', 3, "names no computer"),
        ("[[list]]\nname = \"a\"\nmembers = ['h\\q']\n", 3, "DIRECT=OS:h\\q"),
        (f'[[list]]\nname = "a"\nmembers = ["PUBLIC={GUID_A}"]\n', 3, "not a queue of this file"),
        (f'[[list]]\nname = "a"\nmembers = ["DL={GUID_A}"]\n', 3, "not a list of this file"),
        ('[[list]]\nname = "a"\nmembers = [\n  "q@h",\n  "Q@H",\n]\n', 3, "twice"),
        ('[[list]]\nname = "a"\nmembers = ["q@h;journal"]\n', 3, ""),
        (f'[[list]]\nname = "a"\nmembers = ["MACHINE={GUID_A}"]\n', 3, "cannot be sent to"),
        ('[[list]]\nname = "a"\nmembers = ["a@b,c@d"]\n', 3, "without commas"),
        ('[[alias]]\nname = "a"\ntarget = "alias:b"\n', 3, "another alias"),
        ('[[site]]\nname = "a"\n[[link]]\nsites = ["a", "a"]\ncost = 1\n', 4, "appears twice"),
        ('[[site]]\nname = "a"\n[[link]]\nsites = ["a", "b"]\ncost = true\n', 5, "whole number"),
        ('[[machine]]\nname = "a\n', 2, ""),
    ],
)
def test_an_error_is_reported_with_its_line(text, line, says):
    with pytest.raises(DirectoryFileError) as caught:
        read(text)

    assert caught.value.line == line, str(caught.value)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{FILE}:{line}: ")


def test_a_member_is_added_on_its_own_line_and_comments_stay():
    changed = editing.add_members(WHOLE, 0, ["q@hostc"])

    assert "    'hosta\\orders',   # first of all\n" in changed or (
        "    'hosta\\orders',  # first of all\n" in changed
    )
    assert '    "alias:sales",\n    "q@hostc",\n]' in changed
    assert changed.replace('    "q@hostc",\n', "").split() == WHOLE.split()


def test_removing_a_member_deletes_only_its_line():
    changed = editing.remove_members(WHOLE, 0, lambda member: member == "list:others")

    assert changed == WHOLE.replace('    "list:others",\n', "")


def test_a_member_of_a_list_on_one_line_is_removed_as_well():
    changed = editing.remove_members(WHOLE, 1, lambda member: member == "list:all")

    assert tomllib.loads(changed)["list"][1]["members"] == ["hostb\\billing"]
    assert "# first of all" in changed


def test_removing_an_entry_deletes_only_the_entry_and_its_comment():
    changed = editing.remove_entry(WHOLE, "queue", 0)

    assert "Where orders arrive" not in changed
    assert "# Our computers." in changed
    assert len(tomllib.loads(changed)["queue"]) == 1
    assert changed.count("[[machine]]") == 2


def test_a_queue_is_added_at_the_end():
    new = NewQueue(machine=guid_bytes(GUID_A), computer="hosta", queue="new", label='a "b" \\c')

    changed = editing.add_queue(WHOLE, "hosta\\new", new)

    assert changed.startswith(WHOLE)
    found = read(changed).queue_by_path("hosta\\new")
    assert found is not None
    assert found.label == 'a "b" \\c'


@pytest.mark.parametrize(
    "text",
    [
        'list = [{name = "a", members = []}]\n',
        '[["list"]]\nname = "a"\n',
        '[[list]]\n"name" = "a"\n',
    ],
)
def test_an_unusual_format_is_not_edited(text):
    with pytest.raises(editing.CannotEdit):
        editing.add_members(text, 0, ["q@h"])


def _text(guid: bytes) -> str:
    from protocol.identifiers import guid_text

    return guid_text(guid)


def test_a_label_is_set_changed_and_removed_without_other_changes() -> None:
    bare = "# ours\n[[queue]]\npath = 'hosta\\orders'  # the first\ntransactional = true\n"

    labelled = editing.set_values(bare, "queue", 0, {"label": 'Orders "all"'})
    changed = editing.set_values(labelled, "queue", 0, {"label": "Others"})

    assert labelled == bare.replace("# the first\n", '# the first\nlabel = "Orders \\"all\\""\n')
    assert changed == bare.replace("# the first\n", '# the first\nlabel = "Others"\n')
    assert editing.set_values(changed, "queue", 0, {"label": ""}) == bare
    assert editing.set_values(bare, "queue", 0, {"label": ""}) == bare
