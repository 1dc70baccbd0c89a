"""What the queue manager answers when it will not do what was asked."""

from __future__ import annotations

from qmd.catalogue import id_of


class Refusal(Exception):
    """A request that was not done; nothing of it was kept.

    `code` is for programs and stands for one cause, which has its entry in
    `qmd.catalogue`; `text` says what and why, `remedy` what to do about it.
    """

    def __init__(self, code: str, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.remedy = remedy

    @property
    def id(self) -> str:
        """For people, as "QM-1201": `qmd explain` tells more about it."""
        return id_of(self.code)


def placed(error: Refusal, where: str) -> Refusal:
    """A copy of the error, with the place before its text if there is one to tell."""
    copy = Refusal.__new__(type(error))
    copy.__dict__.update(error.__dict__)
    copy.text = f"{where}: {error.text}" if where else error.text
    copy.args = (copy.text,)
    return copy
