"""Names of queues of Windows, also odd ones: none of them ends an import."""

from __future__ import annotations

import json

import pytest

from qmd.migration.collection import QUEUES_MAX, WindowsQueue, parse_collection
from qmd.migration.rights import Gap
from qmd.migration.targets import target_of
from tests import windows_files


def target(name: str, *, public: bool = False, private: frozenset[str] = frozenset()) -> str | Gap:
    return target_of(
        WindowsQueue(name=name, public=public), "none", as_private=True, private=private
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (r"private$\orders", r"private$\orders"),
        (r"PRIVATE$\Orders.In", r"private$\orders.in"),
        (r"private$\100%", r"private$\100%"),
        (r"private$\a/b='c'", r"private$\a/b='c'"),
        ("private$\\" + "x" * 124, "private$\\" + "x" * 124),
        *(("private$\\" + name, "private$\\" + name) for name in ("aufträge", "日本", "e\u0301")),
    ],
)
def test_names_are_the_same(name: str, expected: str) -> None:
    assert target(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        *(" x", "x ", "a\tb", "a;b", "a;journal", "a,b", "a+b", 'a"b'),
        *("straße", "a\u2003b", "a\u200bb", "journal$", "", "x" * 125, "a\\b"),
    ],
)
def test_a_name_that_no_queue_here_can_have_is_a_gap(name: str) -> None:
    for found in (target(f"private$\\{name}"), target(name, public=True)):
        assert isinstance(found, Gap)
        assert "no queue here can have it" in found.why
        assert found.remedy


@pytest.mark.parametrize("name", ["order_queue$", "Admin_Queue$", "notify_queue$", "mqis_queue$"])
def test_queues_of_msmq_itself_are_not_created(name: str) -> None:
    found = target(f"private$\\{name}")

    assert isinstance(found, Gap)
    assert found.what == "a queue of MSMQ itself"


def test_a_public_queue_does_not_replace_a_private_one() -> None:
    private = frozenset({r"private$\orders"})

    assert target(r"private$\ORDERS", private=private) == r"private$\orders"
    assert isinstance(target("Orders", public=True, private=private), Gap)
    assert target("parts", public=True, private=private) == r"private$\parts"


def test_the_greatest_number_of_queues_fits_into_a_file() -> None:
    queue = windows_files.queue("x" * 24)
    rows = b",".join(
        json.dumps({**queue, "name": f"private$\\{'x' * 20}{number}"}).encode()
        for number in range(QUEUES_MAX)
    )
    whole = json.dumps(windows_files.collection()).encode()
    assert b'"queues": []' in whole

    found = parse_collection(whole.replace(b'"queues": []', b'"queues": [' + rows + b"]"))
    assert len(found.queues) == QUEUES_MAX
