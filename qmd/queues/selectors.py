"""Selectors of requests and subscriptions, parsed once."""

from __future__ import annotations

from functools import lru_cache

from qmd.core.selectors.parser import Selector, parse_selector
from qmd.core.selectors.tokens import BadSelector
from qmd.errors import Refusal

KEPT_MAX = 256  # parsed ones
SHOWN_CHARACTERS = 100  # of a selector, in an error


@lru_cache(KEPT_MAX)
def selector_of(text: str) -> Selector:
    """Return the selector of a text.  Raises Refusal."""
    try:
        return parse_selector(text)
    except BadSelector as error:
        raise Refusal(
            "bad_selector",
            f"the selector {_shortened(text)} is not valid: {error}",
            "Write, for example, region = 'east' AND weight > 3: see docs/client.md.",
        ) from error


def _shortened(text: str) -> str:
    """Return the beginning of a selector for an error."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}...")
