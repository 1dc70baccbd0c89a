"""Files that a command of root replaces for the process of another user."""

from __future__ import annotations

import os
import stat

import pytest

from qmd.runtime.replaced_file import replace_file

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def test_the_content_is_replaced_and_nothing_is_left_over(tmp_path):
    file = tmp_path / "users"
    file.write_text("before")

    replace_file(file, b"after", mode=0o640)

    assert file.read_bytes() == b"after"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [file]


@needs_root
def test_root_gives_the_file_to_the_owner_of_its_folder(tmp_path):
    os.chown(tmp_path, 1234, 5678)
    file = tmp_path / "users"
    file.write_text("of root")

    replace_file(file, b"new")

    found = file.stat()
    assert (found.st_uid, found.st_gid) == (1234, 5678)


@needs_root
def test_root_gives_the_file_to_a_named_owner(tmp_path):
    other = tmp_path / "other"
    other.touch()
    os.chown(other, 1, 2)

    replace_file(tmp_path / "file", b"new", owner=other.stat())

    found = (tmp_path / "file").stat()
    assert (found.st_uid, found.st_gid) == (1, 2)


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("untouched")
    link = tmp_path / "link"
    link.symlink_to(target)

    replace_file(link, b"new")

    assert not link.is_symlink()
    assert target.read_text() == "untouched"


def test_a_file_that_cannot_be_replaced_stays(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "inner").touch()

    with pytest.raises(OSError, match="folder"):
        replace_file(folder, b"new")

    assert [each.name for each in tmp_path.iterdir()] == ["folder"]
