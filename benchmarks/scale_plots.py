"""Plots of the scale curves, and their section of the manual."""

from __future__ import annotations

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
        place.set_xscale("log")
        place.grid(visible=True, alpha=0.3)
    places[-1, 0].set_xlabel(axis)
    chart.tight_layout()
    file = f"scale-{name}.svg"
    chart.savefig(DOCS / "images" / file, metadata={"Date": None})
    pyplot.close(chart)
    return file


def write(section: str, file: Path = DOCS / "benchmarks.md") -> None:
    """Put the section between its marks."""
    before, _, rest = file.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"{file} has no section of curves")
    file.write_text(f"{before}{BEGIN}\n\n{section}\n\n{END}{after}")
