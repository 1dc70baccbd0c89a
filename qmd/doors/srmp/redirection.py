"""Mapping of URLs, for queues that have moved and for hosts behind a gateway; and networks.

[MC-MQSRM] 3.1.1.1.10
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Redirection(NamedTuple):
    """A URL, which may end in `*`, and the URL that takes its place."""

    source: str
    target: str


def redirected(url: str, rules: Sequence[Redirection]) -> str:
    """Return the URL by the first rule that matches, or unchanged; case does not matter.

    If the rule ends in `*` and its target too, the rest of the URL is kept.
    """
    for rule in rules:
        source = rule.source.casefold()
        if source.endswith("*") and url.casefold().startswith(source[:-1]):
            rest = url[len(source) - 1 :]
            return rule.target[:-1] + rest if rule.target.endswith("*") else rule.target
        if url.casefold() == source:
            return rule.target
    return url


def is_among(address: str, networks: Iterable[object]) -> bool:
    """Return whether an address belongs to one of the networks; names in the list count not."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(
        isinstance(each, ipaddress.IPv4Network | ipaddress.IPv6Network) and found in each
        for each in networks
    )
