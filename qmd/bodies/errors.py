"""The error of a body that does not have the format which it is read as."""

from __future__ import annotations


class UnreadableBody(ValueError):
    """A body that breaks a rule of its format.

    `format` names the format; `offset` is in bytes from the start of the body, or -1 if the fault
    has no single place.
    """

    def __init__(self, format: str, offset: int, rule: str) -> None:
        super().__init__(format, offset, rule)
        self.format = format
        self.offset = offset
        self.rule = rule

    def __str__(self) -> str:
        place = "" if self.offset < 0 else f" at offset {self.offset}"
        return f"the body is no valid {self.format}{place}: {self.rule}"
