"""Our packages beside `qmd` come first, whatever else in a program's folder bears their names.

A program may have a `protocol.py`, a `storage.py` or a `pipeline.py` of its own, and Python looks
into the program's folder first.  From the first `import qmd` on, these names mean our packages; a
file that is passed over is warned about, and one that was imported before is refused with words.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

NAMES = ("protocol", "storage", "pipeline")  # and `qmd` itself, which is found already
ROOT = Path(__file__).resolve().parents[2]


class OursFirst:
    """A finder of modules, which stands in front of the others."""

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
                f"{usual.origin} has the name of a package of qmd, and is passed over: give it"
                " another name",
                RuntimeWarning,
                stacklevel=2,
            )
        return ours


def come_first() -> None:
    """Raises ImportError where a module of another's has one of the names already."""
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
    """Whether that file is the package of ours with that name."""
    return Path(file).resolve() == ROOT / name / "__init__.py"
