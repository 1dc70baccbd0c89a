"""The section [directory] of the configuration for Active Directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from qmd.config.file import ConfigError, parse_settings
from qmd.config.settings import Settings
from qmd.directory import machine_object as joining
from qmd.directory.active_directory import ActiveDirectory

FILE = Path("/etc/qmd/qmd.toml")
WHOLE = 'kind = "active-directory"\nuser = "me@x"\n'


def settings(text: str) -> Settings:
    return parse_settings(f"[directory]\n{text}", file=FILE, environment={})


@pytest.mark.parametrize(
    ("given", "server"),
    [
        ("ldaps://dc1.example.com", "ldaps://dc1.example.com:636"),
        ("LDAPS://10.0.0.5:1636/", "ldaps://10.0.0.5:1636"),
        ("ldap://dc1", "ldap://dc1:389"),
        ("ldaps://[fd00::5]", "ldaps://[fd00::5]:636"),
        ("ldaps://[fd00::5]:3269", "ldaps://[fd00::5]:3269"),
    ],
)
def test_a_server_is_an_address_with_its_usual_port(given, server):
    found = settings(f'{WHOLE}servers = ["{given}"]').directory

    assert found.servers == (server,)
    assert ActiveDirectory.of(found).status().where == server


@pytest.mark.parametrize(
    "given",
    [
        *("dc1.example.com", "http://dc1", "ldaps://", "ldaps://dc1:0", "ldaps://dc1:65536"),
        *("ldaps://dc1:x", "ldaps://[10.0.0.5", "ldaps://fd00::5", "ldaps://user@dc1/x"),
        "ldaps://dc1/DC=x",
    ],
)
def test_an_invalid_server_is_refused(given):
    with pytest.raises(ConfigError, match="servers"):
        settings(f'{WHOLE}servers = ["{given}"]')


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (WHOLE, "servers"),
        ('kind = "active-directory"\nservers = ["ldaps://dc1"]', "user"),
        (f'{WHOLE}servers = ["ldaps://dc1"]\nbind = "external"', "certificate"),
    ],
)
def test_a_missing_setting_is_named(text, missing):
    with pytest.raises(ConfigError, match=f"needs {missing}") as refused:
        settings(text)

    assert refused.value.code == "config_conflict"


def test_a_ticket_needs_no_user():
    assert settings('kind = "active-directory"\nservers = ["ldap://dc1"]\nbind = "negotiate"')


def test_relative_paths_start_at_the_folder_of_the_configuration():
    found = settings(f'{WHOLE}servers = ["ldaps://dc1"]\nca_file = "ca.pem"').directory

    assert (found.ca_file, found.password_file) == (Path("/etc/qmd/ca.pem"), None)


def test_a_missing_package_is_named(monkeypatch):
    whole = settings(f'{WHOLE}servers = ["ldaps://dc1"]')
    assert joining.missing_package(whole) == ""

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    assert ".[directory]" in joining.missing_package(whole)
    assert joining.missing_package(settings('kind = "none"')) == ""
