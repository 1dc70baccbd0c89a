"""Templates: everything is escaped, and texts of messages cannot leave their place."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup

from qmd.console import text
from qmd.console.flow_map import sparkline

FOLDER = Path(__file__).parent
NESTED_CHARACTERS_MAX = 20_000
_MEDIA = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
          ".svg": "image/svg+xml"}  # fmt: skip


def _isolated(value: Any, most: int = 0) -> Markup:
    """Return a text of a message or a peer: its direction does not affect what surrounds it."""
    return Markup("<bdi>{}</bdi>").format(text.visible(value, most))


def _nested(value: Any) -> str:
    """Return lists and mappings within a fact as lines."""
    shown = json.dumps(value, ensure_ascii=False, indent=1, default=str)
    return text.lines(shown[:NESTED_CHARACTERS_MAX])


def address(*segments: str, **query: Any) -> str:
    """Return the address of a page; a query that is None or empty is left out."""
    path = "/" + "/".join(quote(each, safe="") for each in segments)
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def command_line(words: list[str]) -> str:
    """Return a command as it is typed into a shell."""
    return text.visible(shlex.join(words))


class Templates:
    """The templates of the package."""

    def __init__(self) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        filters: dict[str, Any] = {
            "t": _isolated,
            "visible": text.visible,
            "lines": text.lines,
            "nested": _nested,
            "size": text.size,
            "number": text.number,
            "age": text.age,
            "ms": text.milliseconds,
            "moment": text.moment,
            "sparkline": sparkline,
            "shell": command_line,
        }
        self._environment.filters.update(filters)
        self._environment.globals.update(address=address, counted=text.counted)

    def render(self, name: str, values: Mapping[str, Any]) -> bytes:
        """Return a page."""
        return (
            self._environment.get_template(f"{name}.html").render(values).encode("utf-8", "replace")
        )


def static_files() -> dict[str, tuple[bytes, str]]:
    """Return name -> content and media type of the files that pages refer to."""
    return {
        file.name: (file.read_bytes(), _MEDIA[file.suffix])
        for file in sorted((FOLDER / "static").iterdir())
        if file.suffix in _MEDIA
    }
