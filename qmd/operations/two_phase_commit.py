"""Databases that take part in a transaction: two-phase commit, with the queue manager deciding.

    enlist ─► (commit) ─► the database prepares ─► our commit: this is the decision ─► it commits
                                                     └ or none, ever: it rolls back ─► forget

The application moves the databases (`qmd.client.two_phase`); here is what has to survive it.  A
branch is on disk before its database prepares, the decision is the outcome of the transaction, in
one commit with everything else that the transaction does; and no outcome means "roll back", for a
transaction that is not under way can never commit any more.
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
RESOURCE_CHARACTERS_MAX = 64  # PostgreSQL takes 64 bytes of it


class Branches:
    """Those whose databases may not have heard the decision."""

    def __init__(
        self, services: Services, request_outcomes: RequestOutcomes, transactions: Transactions
    ) -> None:
        self._services = services
        self._request_outcomes = request_outcomes
        self._transactions = transactions
        self._rows: dict[tuple[bytes, str], BranchRow] = {}

    def restore(self, rows: list[BranchRow]) -> None:
        self._rows = {(row.transaction_id, row.resource): row for row in rows}

    async def enlist(self, transaction_id: bytes, owner: Hashable, resource: str) -> None:
        """The database may prepare when this has returned.  Raises Refusal."""
        self._transactions.reader(transaction_id, owner)  # it is under way
        if not resource.isascii() or not 0 < len(resource) <= RESOURCE_CHARACTERS_MAX:
            raise Refusal(
                "bad_resource_name",
                f"{resource!r} cannot be the name of a database in a transaction",
                f"Take 1 to {RESOURCE_CHARACTERS_MAX} characters of ASCII, always the same ones.",
            )
        if len(self._rows) >= BRANCHES_MAX:
            raise Refusal(
                "too_many_branches",
                f"{len(self._rows)} databases have not heard how their transactions ended",
                "See `qmd transaction list`, and let them be recovered.",
            )
        row = BranchRow(transaction_id, resource, self._services.clock.now_s)
        self._rows[transaction_id, resource] = row
        await self._services.storage.batch.run(partial(branch_rows.add, row=row))

    async def forget(self, transaction_id: bytes, resource: str) -> int:
        """The database has done what was decided; how many branches that were.  Raises Refusal."""
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
        """All of them, with what was decided: "commit", "roll back", or "undecided"."""
        now_s = self._services.clock.now_s
        found: list[dict[str, Any]] = []
        for row in list(self._rows.values()):
            # In this order: what ends between the two questions has an outcome.
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
