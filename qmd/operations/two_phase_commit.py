"""Two-phase commit: transactions that databases take part in, decided by the queue manager.

    enlist ─► (commit) ─► the database prepares ─► our commit: this is the decision ─► it commits
                                                     └ or no commit: it rolls back ──► forget

The application controls the databases (`qmd.client.two_phase`); this module keeps the state that
must survive the application.  A branch is on disk before its database prepares.  The decision is
the outcome of the transaction, in one commit with all its other changes.  No outcome means "roll
back": a transaction that is not open any more can never commit.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

from qmd.errors import Refusal
from storage.tables import branches as branch_rows
from storage.tables.branches import BranchRow

if TYPE_CHECKING:
    from qmd.operations.request_outcomes import RequestOutcomes
    from qmd.operations.transactions import Transactions
    from qmd.runtime.services import Services

BRANCHES_MAX = 10_000
RESOURCE_CHARACTERS_MAX = 64  # PostgreSQL takes 64 bytes of the name


class Branches:
    """The branches of databases that may not know the decision yet."""

    def __init__(
        self, services: Services, request_outcomes: RequestOutcomes, transactions: Transactions
    ) -> None:
        self._services = services
        self._request_outcomes = request_outcomes
        self._transactions = transactions
        self._rows: dict[tuple[bytes, str], BranchRow] = {}

    def restore(self, rows: list[BranchRow]) -> None:
        """Restore the branches from the database."""
        self._rows = {(row.transaction_id, row.resource): row for row in rows}

    async def enlist(self, transaction_id: bytes, owner: Hashable, resource: str) -> None:
        """Store a branch: its database may prepare after this.  Raises Refusal."""
        self._transactions.reader(transaction_id, owner)  # raises Refusal if it is not open
        if not resource.isascii() or not 0 < len(resource) <= RESOURCE_CHARACTERS_MAX:
            raise Refusal(
                "bad_resource_name",
                f"{resource!r} cannot be the name of a database in a transaction",
                f"Take 1 to {RESOURCE_CHARACTERS_MAX} characters of ASCII, always the same ones.",
            )
        if len(self._rows) >= BRANCHES_MAX:
            raise Refusal(
                "too_many_branches",
                f"{len(self._rows)} databases do not know how their transactions ended",
                "See `qmd transaction list`; run `qmd transaction recover` where the databases"
                " are.",
            )
        row = BranchRow(transaction_id, resource, self._services.clock.now_s)
        self._rows[transaction_id, resource] = row
        await self._services.storage.batch.run(partial(branch_rows.add, row=row))

    async def forget(self, transaction_id: bytes, resource: str) -> int:
        """Remove the branch of a database that has carried out the decision; return the number
        of branches removed, 0 or 1.  Raises Refusal.
        """
        if self._transactions.is_under_way(transaction_id):
            raise Refusal(
                "transaction_under_way",
                f"transaction {transaction_id.hex()} is under way: nothing is decided yet",
                "Wait until it has ended, or end its application.",
            )
        if self._rows.pop((transaction_id, resource), None) is None:
            return 0
        return await self._services.storage.batch.run(
            partial(branch_rows.forget, transaction_id=transaction_id, resource=resource)
        )

    async def overview(self) -> list[dict[str, Any]]:
        """Return all branches with their decisions: "commit", "roll back" or "undecided"."""
        now_s = self._services.clock.now_s
        found: list[dict[str, Any]] = []
        for row in list(self._rows.values()):
            # In this order: a transaction that commits between the two questions has an outcome.
            under_way = self._transactions.is_under_way(row.transaction_id)
            if under_way:
                decision = "undecided"
            elif await self._request_outcomes.find(row.transaction_id) is not None:
                decision = "commit"
            else:
                decision = "roll back"
            found.append(
                {
                    "transaction": row.transaction_id.hex(),
                    "resource": row.resource,
                    "decision": decision,
                    "age_s": max(0, now_s - row.at_s),
                }
            )
        return found
