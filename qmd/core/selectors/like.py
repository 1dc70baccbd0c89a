"""Patterns of LIKE: % stands for any number of characters, _ for one.

Pieces between two % have a fixed length, and the first place of each that fits is as good as any
later one.  Matching therefore never goes back: it takes at most pattern times text steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable

TEXT_CHARACTERS_MAX = 4096  # a longer text is not compared

Matches = Callable[[str], bool | None]


class Piece:
    """A part of a pattern without %: `length` characters, some of them any character."""

    def __init__(self, characters: list[str | None]) -> None:
        self.length = len(characters)
        texts = [each for each in characters if each is not None]
        self._text = "".join(texts) if len(texts) == len(characters) else None
        self._pattern = re.compile(
            "".join("." if each is None else re.escape(each) for each in characters), re.DOTALL
        )

    def is_at(self, text: str, at: int) -> bool:
        """Return whether it fits at this place of a text."""
        if self._text is not None:
            return text.startswith(self._text, at)
        return self._pattern.match(text, at) is not None

    def find(self, text: str, start: int, end: int) -> int:
        """Return the first place where it fits between two places of a text, or -1."""
        if self._text is not None:
            return text.find(self._text, start, end)
        found = self._pattern.search(text, start, end)
        return -1 if found is None else found.start()


def compile_like(pattern: str, escape: str = "") -> Matches:
    """Return a function that compares texts with the pattern; None for a text that is too long.

    The character after `escape` stands for itself.  Raises ValueError if the pattern ends with it.
    """
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            following = next(characters, None)
            if following is None:
                raise ValueError("the pattern ends with the escape character")
            pieces[-1].append(following)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    first, *others = map(Piece, pieces)
    if not others:
        return lambda text: _is_short(text) and (len(text) == first.length and first.is_at(text, 0))
    *middle, last = others
    between = [piece for piece in middle if piece.length]
    least = first.length + last.length

    def matches(text: str) -> bool | None:
        if len(text) > TEXT_CHARACTERS_MAX:
            return None
        if len(text) < least or not first.is_at(text, 0):
            return False
        at, end = first.length, len(text) - last.length
        for piece in between:
            at = piece.find(text, at, end)
            if at < 0:
                return False
            at += piece.length
        return last.is_at(text, end)

    return matches


def _is_short(text: str) -> bool | None:
    return True if len(text) <= TEXT_CHARACTERS_MAX else None
