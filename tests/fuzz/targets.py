"""All targets, by name."""

from __future__ import annotations

import importlib.util

from tests.fuzz import (
    bodies,
    bridge,
    captures,
    control,
    directory,
    http_requests,
    imports,
    migration,
    names,
    packets,
    questions,
    registry,
    srmp,
    streams,
)
from tests.fuzz.target import Target

# The engine of the door for AMQP is optional: it needs a compiler.
HAS_PROTON = importlib.util.find_spec("proton") is not None
if HAS_PROTON:
    from tests.fuzz import amqp

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        *(*packets.TARGETS, *streams.TARGETS, *names.TARGETS, *control.TARGETS),
        *questions.TARGETS,
        *directory.TARGETS,
        *imports.TARGETS,
        *migration.TARGETS,
        *(amqp.TARGETS if HAS_PROTON else ()),
        *bridge.TARGETS,
        *(bridge.amqp_targets() if HAS_PROTON else ()),
        *captures.TARGETS,
        *http_requests.TARGETS,
        *bodies.TARGETS,
        *registry.TARGETS,
        *srmp.TARGETS,
    )
}
