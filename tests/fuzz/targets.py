"""All targets, by name."""

from __future__ import annotations

from tests.fuzz import control, directory, imports, names, packets, questions, streams
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        *(*packets.TARGETS, *streams.TARGETS, *names.TARGETS, *control.TARGETS),
        *questions.TARGETS,
        *directory.TARGETS,
        *imports.TARGETS,
    )
}
