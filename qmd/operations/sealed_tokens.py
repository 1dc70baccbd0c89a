"""Sealed tokens: requests and transactions that must not be done any more.

A client that lost its connection asks for the outcome of a request by its token, or of a
transaction by its id.  If the answer is that nothing was done, this must stay true: a request that
is still on its way over an older connection is refused.
"""

from __future__ import annotations

from collections import OrderedDict

from qmd.errors import Refusal

SEALED_MAX = 100_000
ALL_CONNECTIONS = 1 << 62  # above the number of any connection


class SealedTokens:
    """Tokens and transaction ids of which a client was notified that nothing was done."""

    def __init__(self, sealed_max: int = SEALED_MAX) -> None:
        self._max = sealed_max
        # The number of the first connection that may use the token again, and the reason.
        self._sealed: OrderedDict[bytes, tuple[int, str]] = OrderedDict()

    def seal(self, token: bytes, newest: int, reason: str) -> None:
        """Refuse `token` from now on over connections with a number below `newest`."""
        before, first_reason = self._sealed.get(token, (0, reason))
        self._sealed[token] = max(before, newest), first_reason
        if len(self._sealed) > self._max:
            self._sealed.popitem(last=False)

    def unseal(self, token: bytes) -> None:
        """Accept `token` again: the request was done, and its outcome is on disk."""
        self._sealed.pop(token, None)

    def reason(self, token: bytes) -> str | None:
        """Return why `token` is sealed; None: it is not."""
        sealed = self._sealed.get(token)
        return None if sealed is None else sealed[1]

    def check(self, token: bytes, connection: int) -> None:
        """Raise Refusal if `token` is sealed for a connection.

        It is sealed for connections that are older than the one that asked for the outcome: the
        client that asked may try again.
        """
        newest, why = self._sealed.get(token, (0, ""))
        if connection < newest:
            raise Refusal(
                "transaction_aborted",
                f"nothing of this request was done: {why}",
                "Repeat it with another id.",
            )
