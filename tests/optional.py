"""Large libraries that a few tests use: looked for during collection, and imported by the tests.

Each process of a test run collects all tests.  An import of some of these libraries takes it longer
than the collection of a hundred test files.

"""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(library: str, *, reason: str) -> pytest.MarkDecorator:
    """Return the mark that skips tests for `reason` unless `library`, a top-level name, exists."""
    return pytest.mark.skipif(find_spec(library) is None, reason=reason)
