"""Values as text for pages: hostile labels and bodies stay text, and stay in their place."""

from __future__ import annotations

import math
import re
import unicodedata
from datetime import UTC, datetime
from typing import Any

LABEL_CHARACTERS_MAX = 250

# Characters that change the direction or the look of the text around them.
_FORMATTING = re.compile(
    "[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]"
    "|[\U000e0000-\U000e007f]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]|[\ud800-\udfff]")
_LINE_ENDS = re.compile(r"\r\n?")


def visible(value: Any, most: int = 0) -> str:
    """Return a value as one line, with characters that control the display made visible.

    `most`: the number of characters, of which the rest is cut off; 0: all.
    """
    text = "" if value is None else str(value)
    is_long = 0 < most < len(text)
    text = _shown(text[:most] if is_long else text)
    text = text.replace("\n", "\u240a").replace("\t", "\u2409")
    return f"{text}\u2026" if is_long else text


def lines(value: str) -> str:
    """Return a text with its lines and tabs, and with other control characters made visible."""
    return _shown(_LINE_ENDS.sub("\n", value))


def _shown(text: str) -> str:
    text = _FORMATTING.sub(lambda found: f"\u27e8U+{ord(found[0]):04X}\u27e9", text)
    text = _CONTROL.sub(_picture, text)
    # Piles of combining marks reach over the lines above and below.
    return _without_piles(text) if not text.isascii() else text


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\u27e8U+{code:04X}\u27e9"


def _without_piles(text: str) -> str:
    kept: list[str] = []
    height = 0
    for each in text:
        height = height + 1 if unicodedata.combining(each) else 0
        if height <= 3:
            kept.append(each)
    return "".join(kept)


def size(count: Any) -> str:
    """Return a number of bytes: `0 B`, `12.3 kB`, `4.0 GB`."""
    if count is None:
        return "\u2013"
    number = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def number(count: Any) -> str:
    """Return a number with separators: `1,234,567`."""
    if count is None:
        return "\u2013"
    return f"{count:,}"


def age(seconds: Any) -> str:
    """Return a duration: `12 s`, `3 min`, `5 h`, `2 d`."""
    if seconds is None:
        return "\u2013"
    value = max(0.0, float(seconds))
    for unit, length, below in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if value < below:
            return f"{math.floor(value / length)} {unit}"
    return f"{math.floor(value / 86_400)} d"


def milliseconds(seconds: Any) -> str:
    """Return a short duration: `0.4 ms`, `12 ms`, `1,500 ms`."""
    if seconds is None:
        return "\u2013"
    value = 1000 * float(seconds)
    return f"{value:.1f} ms" if value < 10 else f"{value:,.0f} ms"


def moment(at_ms: Any) -> str:
    """Return a time in milliseconds since 1970, in UTC."""
    if not at_ms:
        return "\u2013"
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return str(at_ms)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 message`, `2 messages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
