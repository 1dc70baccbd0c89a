"""New connections to the port for remote control, by host and by network."""

from __future__ import annotations

from qmd.control import remote
from qmd.control.remote import limit_of_arrivals
from qmd.runtime.shares import owner_of


class Arrivals:
    """The limit, at a time that stands still."""

    def __init__(self) -> None:
        self.now = 0.0
        self._limit = limit_of_arrivals(lambda: self.now)

    def of(self, host: str, *, known: bool = False) -> bool:
        """Return whether a connection of a host is accepted."""
        owner = owner_of(host)
        return self._limit.allows(owner.name, group=owner.group, in_any_case=known)


def test_new_addresses_of_one_network_keep_no_other_network_out() -> None:
    arrivals = Arrivals()
    for network in ("127.0", "10.1.2"):
        many = [f"{network}.{number}.9" if network == "127.0" else f"{network}.{number}"
                for number in range(250)]  # fmt: skip
        for _ in range(10):
            accepted = [arrivals.of(host) for host in many]
        assert not any(accepted)
        if network == "127.0":
            assert arrivals.of("10.9.9.9")
            assert arrivals.of("127.0.0.1", known=True)


def test_a_host_has_a_limit_of_its_own_although_it_is_known() -> None:
    arrivals = Arrivals()
    burst = int(remote.HOST_RATE * remote.ARRIVAL_BURST_S)
    assert [arrivals.of("10.0.0.1", known=True) for _ in range(burst + 1)] == [True] * burst + [
        False
    ]
    assert arrivals.of("10.0.0.2")
    arrivals.now += 1 / remote.HOST_RATE
    assert arrivals.of("10.0.0.1", known=True)
