"""Spellings of names that may need a directory; all others are read as without one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import InvalidName
from protocol.names.format_name import parse_destination
from qmd.directory.spelling import (
    AliasPath,
    ListPath,
    QueuePath,
    elements_of,
    parse_spelling,
)

PARTS = (
    "orders", "Orders@hostb", "hostb\\orders", "hostb\\private$\\orders", ".\\orders",
    "orders;retry",
    "hostb\\orders;journal", "DIRECT=OS:hostb\\orders", "os:hostb\\orders", "10.0.0.5\\orders",
    "PUBLIC=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "system$;deadletter", "a+b", "", "x=y", "host\\",
)  # fmt: skip


def read(text, **changes):
    return parse_spelling(text, **{"local_host": "hosta", "is_local": lambda name: False} | changes)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4), st.booleans())
def test_a_name_without_directory_entries_is_read_as_before(parts, prefixed):
    text = "FormatName:" * prefixed + ",".join(parts)

    assert outcome(lambda: direct(read(text))) == outcome(
        lambda: elements_of(parse_destination(text, local_host="hosta"))
    )


def direct(elements):
    """Return the names of the elements as they are read without a directory."""
    return tuple(each.direct if isinstance(each, QueuePath) else each for each in elements)


def outcome(parse):
    """Return the result of `parse`, or the text of its error."""
    try:
        return parse()
    except InvalidName as error:
        return str(error)


@pytest.mark.parametrize(
    ("text", "is_path"),
    [
        ("hostb\\orders", True),
        ("HOSTB.example.com\\Orders", True),
        ("hostb\\private$\\orders", False),
        ("hostb\\orders;retry", False),
        ("hostb\\orders;journal", False),
        ("10.0.0.5\\orders", False),
        ("DIRECT=OS:hostb\\orders", False),
        ("OS:hostb\\orders", False),
        ("FormatName:DIRECT=OS:hostb\\orders", False),
        ("orders@hostb", False),
    ],
)
def test_only_the_path_of_a_public_queue_is_a_queue_path(text, is_path):
    (found,) = read(text)

    assert isinstance(found, QueuePath) == is_path


def test_local_queues_need_no_directory():
    (found,) = read("hosta\\orders", is_local=lambda name: name.host == "hosta")

    assert not isinstance(found, QueuePath)


def test_lists_and_aliases_can_be_elements_among_others():
    assert read("LIST:All,orders@hostb,alias:x")[::2] == (ListPath("All"), AliasPath("x"))


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("list:", 5),
        ("orders,list:a b", 13),
        ("list:a,orders@hostb,a+b", 21),
        ("list:a,dl=1", 11),
        ("alias:" + "x" * 256, 261),
    ],
)
def test_an_error_is_reported_with_its_position(text, offset):
    with pytest.raises(InvalidName) as caught:
        read(text)

    assert caught.value.offset == offset
