"""The broken rules that a strict host has seen."""

from __future__ import annotations

from dataclasses import dataclass, field


class Unreadable(Exception):
    """A packet that cannot be taken apart: the text demands the end of the session."""


@dataclass(frozen=True)
class Breach:
    clause: str
    text: str

    def __str__(self) -> str:
        return f"[{self.clause}] {self.text}"


@dataclass
class Verdict:
    """All breaches of one conversation, in their order."""

    breaches: list[Breach] = field(default_factory=list)

    def require(self, condition: object, clause: str, text: str) -> bool:
        """Record a breach unless `condition` holds; return whether it holds."""
        if not condition:
            self.breaches.append(Breach(clause, text))
        return bool(condition)

    def clauses(self) -> set[str]:
        return {breach.clause for breach in self.breaches}

    def assert_clean(self) -> None:
        assert not self.breaches, "\n".join(map(str, self.breaches))
