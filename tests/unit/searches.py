"""Searches of regular expressions that must not go back over their text."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

#: Processor time of a search that surely goes back; others take a hundredth of a second.
GOES_BACK_S = 20


@contextlib.contextmanager
def never_going_back() -> Iterator[None]:
    """End a search that goes back: `re` looks at signals while it searches."""

    def fail(*_: object) -> None:
        raise AssertionError("the search goes back")

    before = signal.signal(signal.SIGVTALRM, fail)
    signal.setitimer(signal.ITIMER_VIRTUAL, GOES_BACK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
