"""Results of jobs among the files of an input: they are no logs, wherever their folder is."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from pipeline.results.runs import ANNOUNCED, COMMITS, LATEST, RUNS, STATE

_MANIFEST = "_manifest"  # of an archive: pipeline/jobs/archive.py


def results_among(system: Any, paths: Collection[str]) -> Callable[[str], bool]:
    """Return a function that says of a path whether a job or an archive wrote that file.

    `paths` are all files of an input in the file system `system` (fsspec).  A folder of results has
    commits, the newest of which names what it publishes; other files there, as the copied logs of a
    watch, are none of them.
    """
    newest: dict[str, str] = {}
    archives: set[str] = set()
    for path in paths:
        root, is_found, name = path.rpartition(f"/{COMMITS}/")
        if is_found and name.endswith(".json"):
            newest[root] = max(newest.get(root, ""), path)
        root, is_found, _ = path.rpartition(f"/{_MANIFEST}/day=")
        if is_found:
            archives.add(root)
    published = {root: _names(system, path) for root, path in newest.items()}

    def is_result(path: str) -> bool:
        for root, names in published.items():
            if path.startswith(f"{root}/") and _first(path, root) in names:
                return True
        return any(
            path.startswith(f"{root}/day=") and "/run=" in path[len(root) :] for root in archives
        )

    return is_result


def _names(system: Any, path: str) -> set[str]:
    """Return the names of the files and folders that a commit and its predecessors published."""
    try:
        files = json.loads(system.cat_file(path))["files"]
    except (ValueError, KeyError, TypeError, FileNotFoundError):
        files = ()  # a commit that no job wrote, or which a run has just replaced
    # A store has no links, so a file names the newest run there.
    return {RUNS, STATE, LATEST, f"{LATEST}.json", ANNOUNCED, *map(str, files)}


def _first(path: str, root: str) -> str:
    return path[len(root) + 1 :].split("/", 1)[0]
