"""Import finder that prefers our packages over modules of the same name in a program's folder.

A program may have its own `protocol.py`, `storage.py` or `pipeline.py`, and Python searches the
program's folder first. From the first `import qmd` on, these names mean our packages. A file that
is skipped for this reason causes a warning; a file that was imported before causes an ImportError.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

NAMES = ("protocol", "storage", "pipeline")  # `qmd` itself is already imported
ROOT = Path(__file__).resolve().parents[2]


class OursFirst:
    """A finder of modules, placed in front of the others."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or name not in NAMES:
            return None
        ours = PathFinder.find_spec(name, [str(ROOT)])
        if ours is None or ours.origin is None:
            return None
        usual = PathFinder.find_spec(name)
        if usual is not None and usual.origin is not None and not is_ours(name, usual.origin):
            warnings.warn(
                f"{usual.origin} has the name of a package of qmd, and is ignored: give it"
                " another name",
                RuntimeWarning,
                stacklevel=2,
            )
        return ours


def come_first() -> None:
    """Install the finder. Raises ImportError if another module already has one of the names."""
    for name in NAMES:
        module = sys.modules.get(name)
        file = None if module is None else getattr(module, "__file__", None)
        if file is not None and not is_ours(name, file):
            raise ImportError(
                f"{file} has the name of a package of qmd, and was imported before it: give it"
                " another name",
                name=name,
                path=file,
            )
    if OursFirst not in sys.meta_path:
        sys.meta_path.insert(0, OursFirst)


def is_ours(name: str, file: str) -> bool:
    """Return whether the file is our package with that name."""
    return Path(file).resolve() == ROOT / name / "__init__.py"
