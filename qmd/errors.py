"""The error of a request that the queue manager refuses."""

from __future__ import annotations

from qmd.catalogue import id_of


class Refusal(Exception):
    """A refused request, of which nothing was done or stored.

    `code` is for programs and stands for one cause, which has its entry in `qmd.catalogue`; `text`
    says what was refused and why, `remedy` what to do about it.
    """

    def __init__(self, code: str, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.remedy = remedy

    @property
    def id(self) -> str:
        """Return the id for readers, such as "QM-1201"; `qmd explain` describes it."""
        return id_of(self.code)


def placed(error: Refusal, where: str) -> Refusal:
    """Return a copy of the error, with the place before its text if `where` is not empty."""
    copy = Refusal.__new__(type(error))
    copy.__dict__.update(error.__dict__)
    copy.text = f"{where}: {error.text}" if where else error.text
    copy.args = (copy.text,)
    return copy
