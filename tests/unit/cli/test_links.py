"""Files that commands write: a symbolic link in the place of such a file is never followed."""

from pathlib import Path

import pytest

from pipeline.results.places import Place
from pipeline.ship.position import ShippedPosition
from pipeline.ship.shipment import Notes
from qmd.cli.archive import _save
from qmd.directory.file.changes import _locked


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return another file that the user of the command (often root) owns."""
    path = tmp_path / "victim"
    path.write_bytes(b"precious")
    return path


def test_the_position_of_an_import_is_not_written_through_a_link(
    victim: Path, tmp_path: Path
) -> None:
    position = tmp_path / "position"
    Path(f"{position}.part").symlink_to(victim)

    _save(position, "orders", 1, 2, b"token")

    assert victim.read_bytes() == b"precious"
    assert not position.is_symlink()
    assert b"orders" in position.read_bytes()


def test_the_state_of_shipping_is_not_written_through_a_link(victim: Path, tmp_path: Path) -> None:
    notes = Notes(tmp_path / "state", "target")
    (tmp_path / "state/target.part").symlink_to(victim)

    notes.write({"orders": ShippedPosition(last=7)})

    assert victim.read_bytes() == b"precious"
    assert notes.read() == {"orders": ShippedPosition(last=7)}


def test_the_lock_of_shipping_does_not_follow_a_link(victim: Path, tmp_path: Path) -> None:
    notes = Notes(tmp_path / "state", "target")
    (tmp_path / "state/target.lock").symlink_to(victim)

    with pytest.raises(OSError, match="symbolic links"), notes.locked():
        pass

    assert victim.read_bytes() == b"precious"


def test_the_lock_of_a_directory_file_does_not_follow_a_link(victim: Path, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    (tmp_path / "directory.toml.lock").symlink_to(absent)

    with pytest.raises(OSError, match="symbolic links"), _locked(tmp_path / "directory.toml"):
        pass

    assert not absent.exists()


def test_the_state_of_a_job_is_not_written_through_a_link(victim: Path, tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "state.json").symlink_to(victim)

    Place(folder).write("state.json", lambda file: file.write(b"run"))

    assert victim.read_bytes() == b"precious"
    assert (folder / "state.json").read_bytes() == b"run"
