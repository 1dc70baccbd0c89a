"""Become the program of a trigger: set its limits, and let it end with the process that runs it.

This file runs as a script, so that no code runs between fork and exec of a process that has
threads: `python -I -S launch.py PARENT MEMORY_BYTES PROGRAM ARGUMENT ...`.  It imports no part of
qmd.
"""

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
FAILED = 127


def main() -> None:
    parent, memory_bytes, *command = sys.argv[1:]
    prctl = ctypes.CDLL(None).prctl
    # The kernel kills the program when the process of the triggers ends, however that happens.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(FAILED)
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    limit = int(memory_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(command[0], command, os.environ)  # nosec B606: no shell is the purpose
    except OSError as error:
        os.write(2, f"{command[0]} cannot be run: {error.strerror}\n".encode())
        os._exit(FAILED)


if __name__ == "__main__":
    main()
