"""A fleet: its hosts, streams and messages as columns, each step for all messages at once.

Steps: the times at which each message is sent, arrives, is acknowledged and received
(`messages.py`); the messages that get a fault (`injected_faults.py`); the resulting events
(`events.py`); one file for each host and day (`files.py`).  The same fleet gives the same bytes:
all randomness comes from `seed`.

The fleet follows the rules of real daemons, except where a fault breaks one on purpose: numbers of
a sequence count from 1, and a new sequence begins when everything before it is acknowledged;
arrival numbers grow with every message that arrives at a host; the blocks of a log are numbered
without gaps.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.generator.files import write
from pipeline.generator.injected_faults import InjectedFaults
from pipeline.generator.messages import Messages
from pipeline.generator.plan import Fleet, Progress

TRUTH = "_truth.json"  # beside the files; jobs ignore names that begin with `_`


def generate(fleet: Fleet, folder: Path, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Write the log of `fleet` below `folder`, which is replaced; return the truth."""
    rng = np.random.default_rng(fleet.seed)
    progress("messages")
    messages = Messages(fleet, rng)
    progress("faults")
    faults = InjectedFaults(fleet, rng, messages)
    faults.settle()
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    progress("files")
    written = write(fleet, messages, faults, folder)
    truth = {
        "fleet": {"hosts": fleet.hosts, "streams": fleet.streams, "days": fleet.days},
        "seed": fleet.seed,
        "events": written,
        "findings": faults.truth,
        "hosts": faults.host_truth,
        "left_out": faults.left_out,
    }
    (folder / TRUTH).write_text(json.dumps(truth, indent=1) + "\n")
    return truth
