"""A page: plain HTML with its style and its pictures inside.  The verdict comes first.

No scripts, no fonts, no addresses: it opens from a mail, a file share or an archive.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

GOOD, BAD, UNSURE = "good", "bad", "unsure"
ROWS_MAX = 200

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2430; background: #f4f5f7; margin: 0; }
main { max-width: 1080px; margin: 0 auto; padding: 24px; }
section, .verdict { background: #fff; border: 1px solid #dfe3e8; border-radius: 8px;
  padding: 16px 20px; margin: 0 0 16px; }
.verdict { border-left: 10px solid; }
.verdict h1 { margin: 0; font-size: 26px; line-height: 1.25; }
.verdict p { margin: 8px 0 0; font-size: 16px; }
.good { border-left-color: #1a7f4b; } .good h1 { color: #1a7f4b; }
.bad { border-left-color: #c4232b; } .bad h1 { color: #c4232b; }
.unsure { border-left-color: #b26a00; } .unsure h1 { color: #8a5200; }
h2 { font-size: 18px; margin: 0 0 4px; } section > p { margin: 0 0 10px; color: #4c5866; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: #4c5866; font-weight: 600; border-bottom: 2px solid #dfe3e8; }
th, td { padding: 5px 12px 5px 0; vertical-align: top; } td { border-bottom: 1px solid #eef0f2; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
code { font: 13px ui-monospace, monospace; background: #f4f5f7; padding: 1px 4px;
  border-radius: 3px;
  overflow-wrap: anywhere; }
.figures { display: flex; flex-wrap: wrap; gap: 28px; margin: 12px 0 0; }
.figures div b { display: block; font-size: 22px; } .figures div span { color: #4c5866; }
svg { max-width: 100%; height: auto; } footer { color: #6b7683; font-size: 13px; }
.scroll { overflow-x: auto; }
"""


class Page:
    """Built from above: `verdict` first."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []

    def verdict(
        self, mood: str, sentence: str, text: str, figures: Sequence[tuple[str, str]]
    ) -> None:
        shown = "".join(
            f"<div><b>{_text(value)}</b><span>{_text(name)}</span></div>" for name, value in figures
        )
        self._parts.append(
            f'<div class="verdict {mood}"><h1>{_text(sentence)}</h1><p>{_text(text)}</p>'
            f'<div class="figures">{shown}</div></div>'
        )

    def section(self, title: str, text: str = "", *parts: str) -> None:
        lead = f"<p>{_text(text)}</p>" if text else ""
        self._parts.append(f"<section><h2>{_text(title)}</h2>{lead}{''.join(parts)}</section>")

    def html(self, made_of: str) -> str:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            # Whatever anybody writes into a label: a browser loads and runs nothing.
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
            " style-src 'unsafe-inline'; img-src data:\">"
            '<link rel="icon" href="data:,">'  # else browsers ask for one
            f"<title>{_text(self._title)}</title><style>{_STYLE}</style></head><body><main>"
            + "".join(self._parts)
            + f"<footer>{_text(made_of)} {now}. All times are UTC.</footer></main></body></html>\n"
        )


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, code: Sequence[str] = ()
) -> str:
    """At most `ROWS_MAX` rows, and a line that says how many more there are.

    Numbers stand right; columns in `code` are to be copied.
    """
    listed = list(rows)
    shown = listed[:ROWS_MAX]
    is_number = [
        bool(shown) and all(isinstance(row[at], int | float) or row[at] is None for row in shown)
        for at in range(len(columns))
    ]
    kinds = [' class="number"' if number else "" for number in is_number]
    head = "".join(
        f"<th{kind}>{_text(name)}</th>" for name, kind in zip(columns, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{kind}>{_code(value) if name in code and value else _text(value)}</td>"
            for name, kind, value in zip(columns, kinds, row, strict=True)
        )
        + "</tr>"
        for row in shown
    )
    more = len(listed) - len(shown)
    rest = f"<p>{more} more are in the tables beside this page.</p>" if more else ""
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>{rest}'


def _code(value: Any) -> str:
    return f"<code>{_text(value)}</code>"


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float):
        value = f"{value:,.1f}"
    elif isinstance(value, int):
        value = f"{value:,}"
    return html.escape(str(value))


def moment(ms: Any) -> str:
    """A time in milliseconds since 1970 for people."""
    try:
        return datetime.fromtimestamp(int(ms) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (TypeError, ValueError, OverflowError):
        return ""


def size_text(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError
