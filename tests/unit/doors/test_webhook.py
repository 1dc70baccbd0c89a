"""The targets of webhooks: only addresses that the configuration permits are ever connected to."""

from __future__ import annotations

import ipaddress

import pytest

from qmd.doors.http.webhook import is_permitted, signature

NETWORK = ipaddress.ip_network("10.1.0.0/16")
LOCAL = ipaddress.ip_network("127.0.0.0/8")


@pytest.mark.parametrize(
    ("address", "host", "allowed", "expected"),
    [
        ("10.1.2.3", "any.example", [NETWORK], True),
        ("10.2.2.3", "any.example", [NETWORK], False),
        ("192.0.2.1", "hooks.example", ["hooks.example"], True),
        ("192.0.2.1", "HOOKS.example", ["hooks.example"], True),
        ("192.0.2.1", "evil.hooks.example", ["hooks.example"], False),
        # A permitted name that resolves to this computer, or to the metadata of a cloud.
        ("127.0.0.1", "hooks.example", ["hooks.example"], False),
        ("169.254.169.254", "hooks.example", ["hooks.example"], False),
        ("0.0.0.0", "hooks.example", ["hooks.example"], False),
        ("::1", "hooks.example", ["hooks.example"], False),
        ("::ffff:127.0.0.1", "hooks.example", ["hooks.example"], False),
        ("fe80::1", "hooks.example", ["hooks.example"], False),
        # IPv6 addresses that gateways take for those IPv4 addresses.
        ("64:ff9b::a9fe:a9fe", "hooks.example", ["hooks.example"], False),
        ("2002:7f00:1::", "hooks.example", ["hooks.example"], False),
        ("2002:c000:201::", "hooks.example", ["hooks.example"], True),
        ("::ffff:127.0.0.1", "x", [LOCAL], True),
        ("127.0.0.1", "localhost", [LOCAL], True),
        ("192.0.2.1", "hooks.example", [], False),
    ],
)
def test_an_address_must_be_permitted(
    address: str, host: str, allowed: list[object], expected: bool
) -> None:
    found = is_permitted(ipaddress.ip_address(address), host, allowed)  # type: ignore[arg-type]
    assert found is expected


def test_a_signature_is_that_of_standard_webhooks() -> None:
    """The example of the specification."""
    import base64

    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    found = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')

    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
