"""Man pages and shell completion, generated from the declarations of commands and settings.

    python -m release.manual FOLDER

writes them as they stand below a prefix: FOLDER/share/man/man1/qmd.1 and so on.  `setup.py` puts
them into the wheel, and `deploy/install.py` into an installation.
"""
