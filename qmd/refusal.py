"""What the queue manager answers when it will not do what was asked."""

from __future__ import annotations


class Refusal(Exception):
    """A request that was not done; nothing of it was kept.

    `code` is for programs (see `qmd.frames.Refused`), `text` says what and why,
    `remedy` what to do about it.
    """

    def __init__(self, code: str, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.remedy = remedy
