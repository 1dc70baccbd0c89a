"""Parse texts of configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from qmd.config.file import ConfigError, Settings, parse_settings

FILE = Path("/etc/qmd/qmd.toml")


def parse(text: str, **environment: str) -> Settings:
    return parse_settings(text, file=FILE, environment=environment)


def refusal(text: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, **environment)
    return str(caught.value)
