"""The limit of a test's wait for an event that must happen: one limit for all tests.

The limit only ends the wait of a failed test; it measures nothing: a passing test does not wait
for it, and passes also on a machine under ten times the load.  A test that waits for something
*not* to happen has a time of its own, and may only become weaker under load.

"""

import os

#: Seconds.  A search for faults, in which most tests fail, sets it lower.
END_S = float(os.environ.get("QMD_TESTS_END_S", "150"))

#: Seconds between two looks at a daemon by a command.  A command keeps the processor busy for
#: 30 ms, which the daemon and other tests need.
LOOK_S = 0.2
