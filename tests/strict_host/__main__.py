"""Random walks of a daemon and a strict host: `python -m tests.strict_host --walks 100`.

Exit code 1 when a walk finds a fault; its seed is printed, and `--first SEED --walks 1` repeats its
choices (the order of two processes is not repeated).
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.process.harness import Hosts
from tests.strict_host.walk import DELIVERY, Walk


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.strict_host", description=__doc__)
    parser.add_argument("--walks", type=int, default=20, help="the number of walks")
    parser.add_argument("--first", type=int, default=1, help="the seed of the first one")
    parser.add_argument("--steps", type=int, default=60, help="the acts of each")
    parser.add_argument("--seconds", type=float, help="walk for this time instead of --walks")
    arguments = parser.parse_args()
    started, seed, faults = time.monotonic(), arguments.first, 0
    seen: Counter[str] = Counter()

    def goes_on() -> bool:
        if arguments.seconds is not None:
            return time.monotonic() - started < float(arguments.seconds)
        return bool(seed < arguments.first + arguments.walks)

    while goes_on():
        hosts = Hosts()
        try:
            daemon = hosts.daemon(delivery=DELIVERY)
            daemon.create("plain")
            daemon.create("orders", transactional=True)
            walk = Walk(daemon, seed, steps=arguments.steps, kills=seed % 2 == 0)
            walk.run()
            seen += walk.seen
        except (AssertionError, TimeoutError):
            faults += 1
            print(f"seed {seed}:\n{traceback.format_exc()}\n{hosts.logs()}", flush=True)
        finally:
            hosts.close()
        seed += 1
    acts = ", ".join(f"{count} {name.strip('_')}" for name, count in sorted(seen.items()))
    print(f"{seed - arguments.first} walks, {faults} with a fault; {acts}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
