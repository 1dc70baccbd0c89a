"""Trace context of the application: messages that it sends carry it, if it uses OpenTelemetry.

The client does not load the library: an application that makes spans has loaded it already.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_USED = "opentelemetry.trace"  # by an application that makes spans


def current() -> dict[str, str]:
    """Return `traceparent` and `tracestate` of the current span; {}: there is none."""
    if _USED not in sys.modules:
        return {}
    library: Any = importlib.import_module("opentelemetry.propagate")
    carrier: dict[str, str] = {}
    library.inject(carrier)
    return {name: value for name, value in carrier.items() if name in ("traceparent", "tracestate")}
