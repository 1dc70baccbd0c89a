"""Route rules of the configuration."""

import pytest

from qmd.config.route_rules import Hop, parse_hop, parse_pattern, parse_rule

GUID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"


def test_a_rule_has_destinations_and_then_hops():
    rule = parse_rule("10.2.0.0/16 via gate-a then [fd00::7]:1802 then direct")

    assert rule.hops == (Hop("gate-a", 1801), Hop("fd00::7", 1802), Hop())
    assert rule.destinations.has_host("10.2.3.4")
    assert not rule.destinations.has_host("10.3.3.4")
    assert not rule.destinations.has_host("gate-a")


@pytest.mark.parametrize(
    ("pattern", "host", "fits"),
    [
        ("*", "anything", True),
        ("hostb", "HOSTB", True),
        ("hostb", "hostb.example", False),
        ("*.example", "b.example", True),
        ("*.example", "example", False),
        ("10.0.0.5", "10.0.0.5", True),
        ("10.0.0.0/8", "::ffff:10.1.1.1", True),
        ("fd00::/16", "fd00::5", True),
        ("fd00::/16", "10.0.0.1", False),
        (GUID, "10.0.0.1", False),
    ],
)
def test_a_pattern_matches_hosts(pattern, host, fits):
    assert parse_pattern(pattern).has_host(host) is fits


def test_a_guid_matches_its_queue_manager_and_a_wildcard_matches_all():
    guid = parse_pattern(GUID).guid

    assert parse_pattern(GUID).has_guid(guid)
    assert parse_pattern("*").has_guid(guid)
    assert not parse_pattern("10.0.0.0/8").has_guid(guid)
    assert not parse_pattern(GUID).has_guid(bytes(16))


@pytest.mark.parametrize("text", ["10.0.0.1", "a via", "a via b:0", "a via b:x", "a b via c"])
def test_an_invalid_rule_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_rule(text)


@pytest.mark.parametrize("text", ["", "a:99999", "[fd00::1]x", "[zz]:1"])
def test_an_invalid_hop_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_hop(text)
