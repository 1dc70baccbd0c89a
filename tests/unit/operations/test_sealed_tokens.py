"""Sealed tokens: an answer that nothing was done stays true."""

from __future__ import annotations

import pytest

from qmd.errors import Refusal
from qmd.operations.sealed_tokens import ALL_CONNECTIONS, SealedTokens

TOKEN = b"token"


def test_a_sealed_token_is_refused_over_older_connections_only():
    sealed = SealedTokens()
    sealed.seal(TOKEN, 7, "connection 7 asked")

    with pytest.raises(Refusal, match="connection 7 asked") as refused:
        sealed.check(TOKEN, 6)
    assert refused.value.code == "transaction_aborted"
    sealed.check(TOKEN, 7)
    sealed.check(b"another", 6)


def test_a_token_stays_sealed_for_the_newest_connection_that_asked():
    sealed = SealedTokens()
    sealed.seal(TOKEN, 7, "first")
    sealed.seal(TOKEN, 3, "second")

    with pytest.raises(Refusal, match="first"):
        sealed.check(TOKEN, 6)
    assert sealed.reason(TOKEN) == "first"


def test_an_unsealed_token_is_accepted():
    sealed = SealedTokens()
    sealed.seal(TOKEN, ALL_CONNECTIONS, "aborted")
    sealed.unseal(TOKEN)

    sealed.check(TOKEN, 1)
    assert sealed.reason(TOKEN) is None


def test_the_oldest_sealed_tokens_are_dropped():
    sealed = SealedTokens(2)
    for each in (b"1", b"2", b"3"):
        sealed.seal(each, 1, "aborted")

    assert [sealed.reason(each) for each in (b"1", b"2", b"3")] == [None, "aborted", "aborted"]
