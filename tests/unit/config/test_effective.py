"""The texts by which the settings of a daemon and of its file are compared, and shown."""

from __future__ import annotations

import pytest

from qmd.config.effective import texts
from qmd.config.route_rules import parse_pattern, parse_rule
from qmd.config.tls_rules import parse_tls_rule
from qmd.config.units import format_duration, parse_duration
from tests.unit.config.parsing import parse


@pytest.mark.parametrize("text", ["0s", "250ms", "1s", "75s", "5m", "36h", "14d"])
def test_a_duration_is_shown_as_it_is_written(text: str) -> None:
    assert format_duration(parse_duration(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("*", "10.0.0.0/8", "host-b", "*.example.com", "2001:db8::/32"),
        "67e55044-10b1-426f-9247-bb680e5fe0c8",
    ],
)
def test_a_pattern_is_shown_as_it_is_written(text: str) -> None:
    assert str(parse_pattern(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.0/8 via hop-b:1802 then [2001:db8::1]:1803 then hop-c",
        "*.example.com via direct",
    ],
)
def test_a_route_is_shown_as_it_is_written(text: str) -> None:
    assert str(parse_rule(text)) == text


@pytest.mark.parametrize("text", ["* required", "host-b preferred 1817"])
def test_a_rule_of_tls_is_shown_as_it_is_written(text: str) -> None:
    assert str(parse_tls_rule(text)) == text


def test_settings_are_shown_as_they_are_written() -> None:
    shown = texts(
        parse(
            """
            [peers]
            acknowledge_to = ["127.0.0.0/8", "*.example.com"]
            [quotas]
            computer = "7GB"
            [events]
            age = "6d"
            [delivery]
            resend = ["30s", "5m"]
            """
        )
    )

    assert shown["peers.acknowledge_to"] == "127.0.0.0/8, *.example.com"
    assert shown["quotas.computer"] == "7GB"
    assert shown["events.age"] == "6d"
    assert shown["delivery.resend"] == "30s, 5m"
