"""The failure of an action."""

from __future__ import annotations


class ActionFailed(Exception):
    """An action did not succeed; the text says why.

    `is_final`: the message will never succeed.  `retry_after_s`: the target asks for a pause.
    """

    def __init__(self, text: str, *, is_final: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.is_final = is_final
        self.retry_after_s = retry_after_s
