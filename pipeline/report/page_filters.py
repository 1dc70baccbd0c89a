"""Filters of a table by host, day or kind, without a script: the style sheet hides the other rows.

Each choice is a radio button, and a rule hides the rows that do not have its class while it is
chosen.  A page can therefore be opened from anywhere, and its policy permits no script.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.report.page import ROWS_MAX, escaped, table

CHOICES_MAX = 40


@dataclass(frozen=True)
class Filter:
    """A filter: its name, and for each row the values by which it is found."""

    name: str
    values: Sequence[Iterable[str]]


def filtered_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    filters: Sequence[Filter],
    *,
    number: int = 1,
    first: int = ROWS_MAX,
    **more: Any,
) -> str:
    """Return a table with filters above it; `number` is unique on the page.

    Only the `first` rows are shown as long as neither a filter nor all rows are chosen.  Printed
    pages have all rows.
    """
    rows, name = list(rows), f"t{number}"
    count = min(len(rows), ROWS_MAX)
    classes: list[list[str]] = [[f"{name}-more"] if n >= first else [] for n in range(count)]
    controls, rules = [], []
    for at, each in enumerate(filters):
        values = [sorted(set(filter(None, found))) for found in each.values[:count]]
        weights: dict[str, int] = {}
        for found in values:
            for value in found:
                weights[value] = weights.get(value, 0) + 1
        if len(weights) < 2:
            continue
        kept = sorted(sorted(weights), key=lambda value: -weights[value])[:CHOICES_MAX]
        ids = {value: f"{name}-{at}-{n}" for n, value in enumerate(sorted(kept))}
        for row, found in enumerate(values):
            classes[row] += [ids[value] for value in found if value in ids]
        group = f"{name}-{at}"
        buttons = [_button(group, f"{group}-all", "all", count, chosen=True)]
        buttons += [_button(group, key, value, weights[value]) for value, key in ids.items()]
        controls.append(
            f"<fieldset><legend>{escaped(each.name)}</legend>{''.join(buttons)}</fieldset>"
        )
        rules += [
            f"#{name}:has(#{key}:checked) tbody tr:not(.{key}){{display:none}}"
            for key in ids.values()
        ]
    inner = table(columns, rows, classes=[" ".join(each) for each in classes], **more)
    if not controls:
        return inner
    if count > first:
        controls.append(
            f'<label class="all"><input type="checkbox" id="{name}-every"> show all'
            f" {count:,} rows</label>"
        )
        none = "".join(f":has(#{name}-{at}-all:checked)" for at, each in enumerate(filters)
                       if f"{name}-{at}-all" in "".join(controls))  # fmt: skip
        rules.append(
            f"@media screen{{#{name}{none}:not(:has(#{name}-every:checked))"
            f" .{name}-more{{display:none}}}}"
        )
    return (
        f'<div id="{name}"><style>{"".join(rules)}</style><div class="filters">'
        f"{''.join(controls)}</div>{inner}</div>"
    )


def _button(group: str, key: str, text: str, count: int, *, chosen: bool = False) -> str:
    checked = " checked" if chosen else ""
    return (
        f'<label><input type="radio" name="{group}" id="{key}"{checked}> {escaped(text)}'
        f" <span>{count:,}</span></label>"
    )
