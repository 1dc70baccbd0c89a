"""Errors of `qmd migrate`: files that come from Windows."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        9401,
        "bad_collection",
        "A file for a migration cannot be used.",
        "It was not written by the scripts of this release, was changed or cut off, or an option"
        " that goes with it is not valid.",
        "Extract the scripts again (`qmd migrate windows extract`), and repeat the collection.",
    ),
    Entry(
        9402,
        "script_changed",
        "A script for Windows is not the one that was released.",
        "The file in the installation was changed: its SHA-256 is not the listed one.",
        "Install qmd again. Do not run the script.",
    ),
    Entry(
        9403,
        "no_such_script",
        "There is no script of this name.",
        "The name is misspelled, or is one of another release.",
        "See `qmd migrate windows scripts`.",
    ),
)
