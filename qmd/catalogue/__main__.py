"""`python -m qmd.catalogue` rewrites docs/errors.md and keeps the text above the first area.

It writes `numbers.py` too.
"""

from pathlib import Path

from qmd.catalogue.areas import AREAS, numbers_text, reference

file = Path(__file__).parents[2] / "docs" / "errors.md"
introduction = file.read_text().partition(f"## {AREAS[0].name}\n")[0]
file.write_text(introduction + reference())
(Path(__file__).parent / "numbers.py").write_text(numbers_text())
