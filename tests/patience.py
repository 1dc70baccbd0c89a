"""How long a test waits for an event that has to come: one end for all of them.

The end is there so that a failure is reported, and not to measure anything: a test that passes
does not wait for it, and a machine that has ten times as much to do passes as well.  A test that
waits for something *not* to happen has a time of its own, and may only become weaker by a load.
"""

END_S = 150.0
