"""Hosts of the console in the configuration."""

from pathlib import Path

import pytest

from qmd.config.console_hosts import parse_console_host
from tests.unit.config.parsing import parse, refusal


def test_a_host_has_tokens_by_role():
    host = parse_console_host(
        "east tls://east.example.com:1806 token=/t/all operator=/t/op ca=/t/ca.pem"
    )

    assert (host.name, host.where) == ("east", "tls://east.example.com:1806")
    assert host.ca_file == Path("/t/ca.pem")
    assert host.token_file("operator") == Path("/t/op")
    assert host.token_file("viewer") == Path("/t/all")


def test_a_host_of_this_computer_needs_only_a_name():
    host = parse_console_host("local")

    assert (host.where, host.token_file("viewer")) == ("", None)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "name"),
        ("a/b", "name"),
        ("east https://x", "neither"),
        ("east tls://x", "no token"),
        ("east tls://x token=relative", "absolute"),
        ("east tls://x token=/a token=/b", "once"),
        ("east tls://x king=/a", "king"),
    ],
)
def test_a_wrong_host_is_refused(text, part):
    with pytest.raises(ValueError, match=part):
        parse_console_host(text)


def test_two_hosts_of_one_name_are_refused():
    assert "one name" in refusal('[console]\nhosts = ["a", "a /x"]')


def test_the_default_is_the_queue_manager_of_the_configuration():
    (host,) = parse("").console.hosts

    assert host.name == "local"
