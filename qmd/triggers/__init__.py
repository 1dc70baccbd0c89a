"""Triggers: messages that arrive in a queue run a program or call a URL.

    definition   triggers, rules, conditions and actions; checked when they are stored
    store        the file of definitions
    conditions   which rules a message matches
    arguments    the values that a message gives to a program or URL
    scanner      finds each message of a queue once
    programs     runs one program with limits, through `launch`
    calls        calls one URL
    handling     peeks or receives a message, runs its rules, and settles it
    runner       the process: one loop for each trigger
    registry     reads the definitions of Windows

The process is a client of the daemon like any other: its end gives its messages back.
docs/triggers.md
"""
