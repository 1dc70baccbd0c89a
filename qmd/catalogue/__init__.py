"""The catalogue of errors: each has an id, a cause, a remedy, and mostly a name of Microsoft's.

    find_by_code("no_such_queue").id      "QM-1201", by the code for programs
    find("0xC00E0003")                    by id, code, HRESULT, message class or Microsoft's name
    reference()                           docs/errors.md

An error is raised with a code, `Refusal("no_such_queue", ...)`, and its id is looked up when the
error is shown.  A code stands for one cause.  **Ids are permanent**: when an error no longer exists
its entry is removed, and its number is never used again (`RETIRED`).  To add an error, append an
`Entry` to the module of its area, with the next number of that area;
`tests/unit/catalogue/test_catalogue.py` reports which number that is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qmd.catalogue.numbers import NUMBERS

if TYPE_CHECKING:
    from qmd.catalogue.areas import AREAS as AREAS
    from qmd.catalogue.areas import ENTRIES as ENTRIES
    from qmd.catalogue.areas import RETIRED as RETIRED
    from qmd.catalogue.areas import Found as Found
    from qmd.catalogue.areas import find as find
    from qmd.catalogue.areas import find_class as find_class
    from qmd.catalogue.areas import hexadecimal as hexadecimal
    from qmd.catalogue.areas import hresult as hresult
    from qmd.catalogue.areas import near as near
    from qmd.catalogue.areas import numbers_text as numbers_text
    from qmd.catalogue.areas import reference as reference
    from qmd.catalogue.entry import Entry as Entry


def find_by_code(code: str) -> Entry | None:
    """Return the entry of a code, or None."""
    if code not in NUMBERS:  # most lines of a log: the entries need not be loaded
        return None
    from qmd.catalogue.areas import entry_of

    return entry_of(code)


def id_of(code: str) -> str:
    """Return the id of a code, such as "QM-1201"; "" for a code of another release."""
    number = NUMBERS.get(code)
    return "" if number is None else f"QM-{number:04}"


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("qmd.catalogue.areas"), name)
