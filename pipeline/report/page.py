"""A page: plain HTML with inline style and pictures.  The verdict comes first.

It has no scripts, fonts or addresses, so it opens from a mail, a file share or an archive.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

GOOD, BAD, UNSURE = "good", "bad", "unsure"
ROWS_MAX = 200
#: A picture of this width fits on a narrow screen, and is scaled to it.
SMALL_PT = 400

#: Colours follow the preference of the reader's browser; pictures use the same ones (`plots.py`).
#: Each has a contrast of 4.5 to 1 or more to its background (WCAG AA).
STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #4c5866; --ground: #f4f5f7;
  --paper: #fff; --line: #dfe3e8; --red: #b81f27; --amber: #8a5200; --green: #166b3f;
  --blue: #2563a0; --grey: #667180; --violet: #6b4e9b; --teal: #1f7674; --brown: #7c5c33; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ecf1; --soft: #b3bcc8; --ground: #12161c;
  --paper: #1b2129; --line: #353e4a; --red: #ff7b7b; --amber: #f0a83c; --green: #57c98a;
  --blue: #6cb0f0; --grey: #97a2b0; --violet: #b79bea; --teal: #5cc4c1; --brown: #cba678; } }
@media print { :root { color-scheme: light; } body { background: #fff; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  margin: 0; }
main { max-width: 1080px; margin: 0 auto; padding: 24px; }
section, .verdict { background: var(--paper); border: 1px solid var(--line); border-radius: 8px;
  padding: 16px 20px; margin: 0 0 16px; }
.verdict { border-left: 10px solid; }
.verdict h1 { margin: 0; font-size: 26px; line-height: 1.25; }
.verdict h1, .verdict p, .verdict li { overflow-wrap: anywhere; }
.verdict p { margin: 8px 0 0; font-size: 16px; }
.verdict .word { display: inline-block; font-size: 13px; font-weight: 700; letter-spacing: .06em;
  border: 2px solid; border-radius: 4px; padding: 1px 8px; margin: 0 0 6px; }
.good { border-left-color: var(--green); } .good h1, .good .word { color: var(--green); }
.bad { border-left-color: var(--red); } .bad h1, .bad .word { color: var(--red); }
.unsure { border-left-color: var(--amber); } .unsure h1, .unsure .word { color: var(--amber); }
h2 { font-size: 18px; margin: 0 0 4px; } section > p { margin: 0 0 10px; color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--line); }
th, td { padding: 5px 12px 5px 0; vertical-align: top; }
td { border-bottom: 1px solid var(--line); overflow-wrap: break-word; }
tr:hover td { background: var(--ground); }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.over td { border-bottom: 0; } .under { font-size: 13px; padding-bottom: 10px; }
.under span { color: var(--soft); }
td:first-child { white-space: nowrap; } td.under { white-space: normal; }
.some { color: var(--red); font-weight: 700; }
code { font: 13px ui-monospace, monospace; background: var(--ground); padding: 1px 4px;
  border-radius: 3px; overflow-wrap: anywhere; }
.figures { display: flex; flex-wrap: wrap; gap: 10px 28px; margin: 12px 0 0; }
.figures div b { display: block; font-size: 22px; } .figures div span { color: var(--soft); }
svg { max-width: 100%; height: auto; display: block; margin: 0 auto; }
.scroll:focus-visible { outline: 3px solid var(--blue); outline-offset: 2px; }
@media (max-width: 680px) { main { padding: 12px; } section, .verdict { padding: 12px; }
  .picture svg { max-width: none; width: 680px; } .picture.small svg { width: 100%; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table, tbody, tr, td { display: block; } tr { border-bottom: 1px solid var(--line);
  padding: 6px 0; } td, td:first-child { border: 0; padding: 2px 0; white-space: normal;
  overflow-wrap: anywhere; } td[data-name] { display: flex; gap: 12px; text-align: left; }
  td[data-name]::before { content: attr(data-name); flex: 0 0 34%; color: var(--soft); }
  td:empty { display: none; } .over { border-bottom: 0; padding-bottom: 0; } }
@media print { section, .verdict { border: 1px solid #999; } section h2 { break-after: avoid; }
  tr, svg, .verdict { break-inside: avoid; } thead { display: table-header-group; }
  .scroll { overflow: visible; } main { max-width: none; padding: 0; } }
footer { color: var(--soft); font-size: 13px; } .scroll { overflow-x: auto; }
details summary { cursor: pointer; color: var(--blue); padding: 8px 0 2px; }
.filters { display: flex; flex-wrap: wrap; gap: 8px 16px; margin: 0 0 8px; }
.filters fieldset { border: 1px solid var(--line); border-radius: 6px; padding: 2px 10px 6px;
  margin: 0; min-width: 0; max-height: 9.5em; overflow-y: auto; }
.filters legend, .filters span { color: var(--soft); font-size: 13px; }
.filters label { display: inline-block; margin: 2px 12px 2px 0; overflow-wrap: anywhere; }
.filters .all { align-self: end; } a { color: var(--blue); overflow-wrap: anywhere; }
@media print { .filters { display: none; } }
ul { margin: 8px 0 0; padding-left: 22px; } li { margin: 2px 0; }
"""
_WORDS = {GOOD: "\u2714 ALL WELL", BAD: "\u2716 NOT WELL", UNSURE: "? LOOK HERE"}


class Page:
    """A page, built from top to bottom: `verdict` first."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []

    def verdict(
        self,
        mood: str,
        sentence: str,
        text: str,
        figures: Sequence[tuple[str, str]],
        steps: Sequence[str] = (),
    ) -> None:
        """Add the verdict: `mood` gives colour and word; `steps` are the next steps."""
        shown = "".join(
            f"<div><b>{_text(value)}</b><span>{_text(name)}</span></div>" for name, value in figures
        )
        self._parts.append(
            f'<div class="verdict {mood}"><span class="word">{_WORDS[mood]}</span>'
            f"<h1>{_text(sentence)}</h1><p>{_text(text)}</p>{_list(steps)}"
            f'<div class="figures">{shown}</div></div>'
        )

    def section(self, title: str, text: str = "", *parts: str) -> None:
        lead = f"<p>{_text(text)}</p>" if text else ""
        parts = tuple(_picture(part, title) if part.startswith("<svg") else part for part in parts)
        self._parts.append(f"<section><h2>{_text(title)}</h2>{lead}{''.join(parts)}</section>")

    def html(self, made_of: str) -> str:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            # A label may contain any text: the browser must load and run nothing.
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
            " style-src 'unsafe-inline'; img-src data:\">"
            '<link rel="icon" href="data:,">'  # otherwise browsers request one
            f"<title>{_text(self._title)}</title><style>{STYLE}</style></head><body><main>"
            + "".join(self._parts)
            + f"<footer>{_text(made_of)} {now}. All times are UTC.</footer></main></body></html>\n"
        )


def link(address: str, text: str) -> str:
    """Return a link to a file beside the page."""
    return f'<a href="{html.escape(address)}">{_text(text)}</a>'


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    code: Sequence[str] = (),
    marked: Sequence[str] = (),
    below: Sequence[str] = (),
    numbers: Sequence[str] = (),
    first: int = ROWS_MAX,
    classes: Sequence[str] = (),
) -> str:
    """Return a table of at most `ROWS_MAX` rows, and a line with the number of further rows.

    Numbers are aligned to the right, and so are the texts of `numbers`; columns in `code` are
    meant for copying; numbers in columns in `marked` are bad if not 0.  Columns in `below` are
    long, and get a line of their own under the others.  Rows after the `first` ones are folded.
    `classes` are those of each row.
    """
    listed = list(rows)
    shown = listed[:ROWS_MAX]
    is_number = [
        columns[at] in numbers
        or (
            bool(shown)
            and all(isinstance(row[at], int | float) or row[at] is None for row in shown)
        )
        for at in range(len(columns))
    ]
    beside = [at for at, name in enumerate(columns) if name not in below]
    under = [at for at, name in enumerate(columns) if name in below]
    head = "".join(
        f'<th scope="col"{_class(is_number[at])}>{_text(columns[at])}</th>' for at in beside
    )

    def cell(row: Sequence[Any], at: int) -> str:
        value = row[at]
        return _code(value) if columns[at] in code and value else _text(value)

    def line(row: Sequence[Any], of_row: str) -> str:
        cells = "".join(
            f"<td{_named(columns[at])}{_class(is_number[at], columns[at] in marked and row[at])}>"
            f"{cell(row, at)}</td>"
            for at in beside
        )
        if not under:
            return f'<tr class="{of_row}">{cells}</tr>' if of_row else f"<tr>{cells}</tr>"
        more = "".join(
            f"<div><span>{_text(columns[at])}</span> {cell(row, at)}</div>"
            for at in under
            if row[at]
        )
        span = f'colspan="{len(beside)}"'
        return f'<tr class="over">{cells}</tr><tr><td class="under" {span}>{more}</td></tr>'

    def body(rows: Sequence[Sequence[Any]], of_rows: Sequence[str]) -> str:
        lines = "".join(map(line, rows, of_rows or [""] * len(rows)))
        return (
            f'<div class="scroll" tabindex="0" role="group" aria-label="Table: {_label(columns)}">'
            f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
        )

    folded = shown[first:]
    rest = (
        f"<details><summary>{len(folded)} more</summary>{body(folded, classes[first:])}</details>"
        if folded
        else ""
    )
    more = len(listed) - len(shown)
    rest += f"<p>{more:,} more are in the tables beside this page.</p>" if more else ""
    return body(shown[:first], classes[:first]) + rest


def _picture(svg: str, title: str) -> str:
    """Return a picture in a part of its own; a wide one scrolls on narrow screens."""
    width = re.search(r'\bwidth="([\d.]+)', svg)
    small = " small" if width and float(width[1]) < SMALL_PT else ""
    return (
        f'<div class="scroll picture{small}" tabindex="0" role="group" aria-label="Picture:'
        f' {_text(title)}">{svg}</div>'
    )


def _label(columns: Sequence[str]) -> str:
    return _text(", ".join(column for column in columns if column))


def _named(column: str) -> str:
    """Return the attribute that shows the column's name beside the value on narrow screens."""
    return f' data-name="{_text(column)}"' if column else ""


def _class(number: bool, marked: Any = False) -> str:
    names = [name for name, there in (("number", number), ("some", marked)) if there]
    return f' class="{" ".join(names)}"' if names else ""


def _list(steps: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(step)}</li>' for step in steps)}</ul>" if steps else ""


def _code(value: Any) -> str:
    return f"<code>{_text(value)}</code>"


def escaped(value: Any) -> str:
    """Return a value as the text of an element."""
    return _text(value)


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float):
        value = f"{value:,.1f}"
    elif isinstance(value, int):
        value = f"{value:,}"
    return html.escape(str(value))


def moment(at_ms: Any, *, ms: bool = False) -> str:
    """Format a time in milliseconds since 1970; with `ms`, to the millisecond."""
    try:
        text = datetime.fromtimestamp(int(at_ms) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        return f"{text}.{int(at_ms) % 1000:03d}" if ms else text
    except (TypeError, ValueError, OverflowError):
        return ""


def size_text(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError
