"""The man pages: one for each command, complete, and without a complaint of groff."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from qmd.cli import main
from qmd.config.settings import SECTIONS, settings_of
from release.manual import commands, files, roff
from tests.patience import END_S

needs_groff = pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manual")
    files.write(folder)
    return folder / "share" / "man"


def groff(*words: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = ["groff", "-man", "-ww", "-Kutf8", "-Tutf8", "-rLL=100n", "-P-c", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=END_S, input=text
    )


def plain(page: Path) -> str:
    """Return a page as a reader sees it, with its lines joined."""
    printed = re.sub(r".\x08", "", groff(page).stdout)
    return " ".join(printed.replace("\u2010\n", "").split())


def test_every_command_has_a_page(folder: Path) -> None:
    pages = {file.stem for file in (folder / "man1").iterdir()}

    assert pages == set(commands.names())
    assert {f"qmd-{name}" for name in main.list_commands(click.Context(main))} <= pages
    assert {"qmd", "qmd-queue-create", "qmd-dead-letter-requeue", "qmd-door-http"} <= pages
    assert len(pages) > 150


@needs_groff
def test_groff_warns_of_nothing(folder: Path) -> None:
    pages = sorted(folder.rglob("*.?"))

    done = groff("-z", *pages)

    assert len(pages) > 150
    assert done.stderr == ""


@needs_groff
def test_a_page_has_all_options_of_its_command(folder: Path) -> None:
    for context in commands.commands():
        if context.command_path in ("qmd", "qmd send", "qmd queue create", "qmd receive"):
            text = plain(folder / "man1" / f"{commands.page_name(context)}.1")
            for parameter in context.command.params:
                for option in parameter.opts if isinstance(parameter, click.Option) else ():
                    assert f" {option} " in text, (context.command_path, option)


@needs_groff
def test_the_page_of_the_configuration_has_every_key(folder: Path) -> None:
    text = plain(folder / "man5" / "qmd.toml.5")

    for section in SECTIONS:
        assert f" [{section}] " in text
        for setting in settings_of(section).values():
            assert f" {setting.key} = " in text
            assert " ".join(setting.meaning.replace("`", "").split()) in text, setting.key


def test_every_page_that_is_named_exists(folder: Path) -> None:
    named = set()
    for page in folder.rglob("*.?"):
        named |= set(re.findall(r"\\fB(qmd[^\s(]*)\\fR\((\d)\)", page.read_text()))

    found = {f"{name}.{section}".replace("\\-", "-") for name, section in named}

    assert len(found) > 150
    assert found <= {file.name for file in folder.rglob("*.?")}


@needs_groff
@pytest.mark.parametrize(
    "text",
    [
        r"DIRECT=OS:hostb\private$\orders",
        ".TH is no macro here",
        "'quoted' and `^~` -- -x \"y\"",
        r"a\fBc \n(.z \*[x]",
    ],
)
def test_groff_prints_every_character_as_it_is_written(text: str) -> None:
    done = groff(text=f".TH X 1\n.nh\n.SH NAME\n{roff.escape(text)}\n")

    assert text in re.sub(r".\x08", "", done.stdout)


def test_lines_of_a_block_are_kept_and_others_are_joined() -> None:
    lines = roff.paragraphs("One\ntwo.\n\n\b\nkept\n  so\n\nlast.")

    assert lines == [".PP", "One two.", ".PP", ".nf", "kept", "  so", ".fi", ".PP", "last."]
