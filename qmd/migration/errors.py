"""The error of files that come from another computer."""

from __future__ import annotations


class BadSource(ValueError):
    """A collected file that breaks its format, or exceeds a limit; the text names the place."""
