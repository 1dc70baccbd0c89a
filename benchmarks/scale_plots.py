"""Plots of the scale curves, and their section of the manual."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN, END = "<!-- scale: written by `python -m benchmarks.scale` -->", "<!-- scale: end -->"

Curve = list[dict[str, float]]


def draw(name: str, curve: Curve) -> str:
    """Draw each figure of a curve below the others; return the name of the file."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "qmd"  # equal figures give an equal file
    from matplotlib import pyplot

    axis, *figures = curve[0]
    chart, places = pyplot.subplots(
        len(figures), 1, sharex=True, figsize=(6, 1.3 * len(figures) + 0.5), squeeze=False
    )
    x = [point[axis] for point in curve]
    for place, figure in zip(places[:, 0], figures, strict=True):
        place.plot(x, [point[figure] for point in curve], marker="o")
        place.set_title(figure, fontsize=9, loc="left")
        place.set_ylim(bottom=0)
        place.set_xscale("symlog" if 0 in x else "log")
        place.grid(visible=True, alpha=0.3)
    places[-1, 0].set_xlabel(axis)
    chart.tight_layout()
    file = f"scale-{name}.svg"
    chart.savefig(DOCS / "images" / file, metadata={"Date": None})
    pyplot.close(chart)
    return file


def write(sections: dict[str, str], file: Path = DOCS / "benchmarks.md") -> None:
    """Put the sections of curves, by name, between the marks; others stay as they are."""
    before, _, rest = file.read_text().partition(BEGIN)
    inner, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"{file} has no section of curves")
    parts = {
        name: text.strip()
        for name, text in re.findall(r"^### (\S+)\n(.*?)(?=^### |\Z)", inner, re.M | re.S)
    } | sections
    made = "\n\n".join(f"### {name}\n\n{text}" for name, text in parts.items())
    file.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}")
