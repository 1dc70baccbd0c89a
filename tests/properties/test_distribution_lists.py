"""Random distribution lists, nested and with cycles, against an independent oracle.

Changing the file line by line never changes anything else.
"""

from __future__ import annotations

import asyncio
import tempfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.identifiers import guid_text
from protocol.names.format_name import parse_format_name
from qmd.directory.file import editing
from qmd.directory.file.format import made_guid
from qmd.errors import Refusal
from tests.unit.directory.directories import Desk

QUEUES, LISTS = 6, 6
#: The members of each list: the first few names are queues, the others are lists.
Graph = list[list[int]]

graphs = st.lists(
    st.lists(st.integers(0, QUEUES + LISTS - 1), max_size=8, unique=True),
    min_size=LISTS,
    max_size=LISTS,
)


def _file(graph: Graph) -> str:
    return "".join(f"[[queue]]\npath = 'hostb\\q{each}'\n" for each in range(3)) + "".join(
        f"[[list]]\nname = 'l{number}'\nmembers = [\n"
        + "".join(f"    '{_member(each)}',  # {each}\n" for each in members)
        + "]\n"
        for number, members in enumerate(graph)
    )


def _member(each: int) -> str:
    """Draw a member: half of the queues are public, the others direct."""
    if each >= QUEUES:
        return f"list:l{each - QUEUES}"
    return f"q{each}@hostc" if each >= 3 else f"hostb\\q{each}"


def _name(each: int) -> str:
    if each >= 3:
        return f"DIRECT=OS:hostc\\private$\\q{each}"
    return "PUBLIC=" + guid_text(made_guid("queue", f"hostb\\q{each}"))


def _reachable(graph: Graph, number: int) -> set[int]:
    """Compute the reachable queues by Warshall's closure, independent of the code's search."""
    reach = [[each in members for each in range(QUEUES + LISTS)] for members in graph]
    for middle in range(LISTS):
        for row in reach:
            if row[QUEUES + middle]:
                for column, there in enumerate(reach[middle]):
                    row[column] |= there
    return {each for each in range(QUEUES) if reach[number][each]}


@settings(max_examples=60, deadline=None)
@given(graphs, st.lists(st.integers(0, LISTS - 1), min_size=1, max_size=4))
def test_a_list_expands_to_its_reachable_queues(graph: Graph, elements: list[int]) -> None:
    text = ",".join(f"list:l{each}" for each in elements)
    expected = [_reachable(graph, each) for each in elements]

    async def resolve(folder: str) -> list[tuple[int, str]]:
        desk = Desk(Path(folder) / "directory.toml")
        await desk.write(_file(graph))
        return [(target.element, str(target.name)) for target in (await desk.resolve(text)).targets]

    with tempfile.TemporaryDirectory() as folder:
        if not any(expected):
            with pytest.raises(Refusal, match="stands for no queue"):
                asyncio.run(resolve(folder))
            return
        found = asyncio.run(resolve(folder))

    assert sorted(found) == sorted(
        (place, _name(each)) for place, queues in enumerate(expected) for each in queues
    )
    assert [element for element, _ in found] == sorted(element for element, _ in found)


@settings(max_examples=60, deadline=None)
@given(graphs, st.data())
def test_changing_members_changes_nothing_else(graph: Graph, data: st.DataObject) -> None:
    text = "# By hand.\n" + _file(graph)
    place = data.draw(st.integers(0, LISTS - 1))
    gone = {_member(each) for each in data.draw(st.sets(st.sampled_from(range(QUEUES + LISTS))))}
    new = data.draw(st.lists(st.sampled_from(["a@x", "b@x", "h\\c"]), unique=True))

    changed = editing.remove_members(text, place, lambda member: member in gone)
    changed = editing.add_members(changed, place, new)

    expected = tomllib.loads(text)
    members = [each for each in expected["list"][place]["members"] if each not in gone]
    expected["list"][place]["members"] = members + new
    assert tomllib.loads(changed) == expected
    kept = [line for line in text.splitlines() if not any(each in line for each in gone)]
    assert [line for line in kept if "#" in line] == [
        line for line in changed.splitlines() if "#" in line and line in kept
    ]


@settings(max_examples=60, deadline=None)
@given(graphs, st.data())
def test_entries_are_removed_one_by_one(graph: Graph, data: st.DataObject) -> None:
    text = _file(graph)

    for left in range(LISTS, 0, -1):
        place = data.draw(st.integers(0, left - 1))
        expected = tomllib.loads(text)
        del expected["list"][place]
        text = editing.remove_entry(text, "list", place)
        assert tomllib.loads(text).get("list", []) == expected["list"]

    assert text == _file([])


def test_the_names_of_the_oracle_are_names() -> None:
    assert str(parse_format_name(_name(0))) == _name(0)
    assert str(parse_format_name(_name(5))) == _name(5)
