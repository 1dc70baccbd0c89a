"""The file of tokens: its folder may belong to another user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qmd.access.tokens import Grant, TokenFileError, create, read


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
    monkeypatch.setattr(os, "urandom", lambda count: b"\xaa" * count)
    (folder / f".tokens.{'a' * 16}").symlink_to(victim)

    with pytest.raises(FileExistsError):
        create(folder / "tokens", "archive", frozenset({"read"}), ())

    assert victim.read_text() == "precious\n"
    assert read(folder / "tokens") == []


def grant_of(folder: Path, *queues: str) -> Grant:
    create(folder / "tokens", "t", frozenset({"read"}), queues)
    [found] = read(folder / "tokens")
    return found


def test_a_bracket_in_a_pattern_stands_for_itself(tmp_path: Path) -> None:
    """Names of queues may have brackets, and so do addresses of IPv6."""
    grant = grant_of(tmp_path, "orders[12]", r"direct=tcp:[fd00::5]\private$\q*")

    assert grant.reaches(r"private$\orders[12]")
    assert grant.reaches(r"direct=tcp:[fd00::5]\private$\q1")
    assert not grant.reaches(r"private$\orders1")
    assert not grant.reaches(r"direct=tcp:f\private$\q1")


@pytest.mark.parametrize("odd", ["a\u2028b", "a\x85b", "a\x1cb", "a\x00b"])
def test_a_name_cannot_end_the_line_of_a_token(tmp_path: Path, odd: str) -> None:
    """The daemon would refuse the whole file, and with it all tokens."""
    for name, queue in ((odd, "orders"), ("t", odd)):
        with pytest.raises(TokenFileError, match="does not allow"):
            create(tmp_path / "tokens", name, frozenset({"read"}), (queue,))
