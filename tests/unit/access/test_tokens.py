"""The file of tokens: its folder may belong to another user."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from qmd.access.tokens import TokenFileError, create, read


def test_a_link_in_place_of_the_token_file_is_not_followed(tmp_path: Path) -> None:
    victim, tokens = tmp_path / "victim", tmp_path / "tokens"
    victim.write_text("# precious\n")
    tokens.symlink_to(victim)

    with pytest.raises(TokenFileError, match="not a regular file"):
        create(tokens, "archive", frozenset({"read"}), ())

    assert victim.read_text() == "# precious\n"


def test_a_link_in_place_of_the_temporary_file_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is random; here the attacker has guessed it."""
    folder, victim = tmp_path / "data", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("precious\n")
    monkeypatch.setattr(secrets, "token_hex", lambda count: "a" * 2 * count)
    (folder / f".tokens.{'a' * 16}").symlink_to(victim)

    with pytest.raises(FileExistsError):
        create(folder / "tokens", "archive", frozenset({"read"}), ())

    assert victim.read_text() == "precious\n"
    assert read(folder / "tokens") == []
