"""Files with keys and passwords: paths, or credentials of systemd."""

from __future__ import annotations

from pathlib import Path

import pytest

from qmd.config.value_types import OptionalSecretFile, SecretFile, SecretFiles
from tests.unit.config.parsing import parse, refusal


def test_a_credential_is_in_the_folder_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/other.service")

    settings = parse('[remote]\nkey = "credential:remote-key"\n')

    assert settings.remote.key == Path("/run/credentials/other.service/remote-key")


def test_a_command_outside_of_the_service_looks_in_the_same_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)

    settings = parse('[storage]\nkey_files = ["credential:storage-key", "old.key"]\n')

    assert settings.storage.key_files == (
        Path("/run/credentials/qmd.service/storage-key"),
        Path("/etc/qmd/old.key"),
    )


@pytest.mark.parametrize("name", ["", "../key", "a/b", ".", "..", ".hidden"])
def test_a_credential_has_a_plain_name(name: str) -> None:
    assert "credential:NAME" in refusal(f'[remote]\nkey = "credential:{name}"\n')
    with pytest.raises(ValueError):  # noqa: PT011
        SecretFiles().parse([f"credential:{name}"])


def test_other_values_are_paths() -> None:
    assert SecretFile().parse("keys/credential:one") == Path("keys/credential:one")
    assert OptionalSecretFile().parse("") is None
