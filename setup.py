"""The parts of the wheel that are made when it is built: man pages, and completion for shells.

All else is declared in pyproject.toml.
"""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent


class Build(build):
    """Build the packages, and add the generated files to the data files of the distribution."""

    def run(self) -> None:
        super().run()
        sys.path.insert(0, str(ROOT))
        try:
            from release.manual.files import write
        finally:
            sys.path.remove(str(ROOT))
        made = Path(self.build_base) / "manual"
        found: dict[str, list[str]] = {}
        for file in write(made):
            found.setdefault(str(file.parent.relative_to(made)), []).append(str(file))
        self.distribution.data_files = [*(self.distribution.data_files or ()), *found.items()]


setup(cmdclass={"build": Build})
