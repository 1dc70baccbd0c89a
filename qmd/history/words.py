"""Times, durations and numbers as words of a sentence."""

from __future__ import annotations


def moment(at_ms: int, now_ms: int) -> str:
    """Return a time as text, with the time that has passed since."""
    from datetime import UTC, datetime

    text = f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    return f"{text} ({span((now_ms - at_ms) / 1000)} ago)" if now_ms >= at_ms else text


def span(seconds: float) -> str:
    """Return a duration as text, in the largest suitable unit."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def ordinal(number: int) -> str:
    """Return an ordinal number as a word: "first" for 1."""
    words = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
    if number <= len(words):
        return words[number - 1]
    tail = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{tail or 'th'}"


def times(count: int) -> str:
    """Return a number of repetitions as text: "once" for 1."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
