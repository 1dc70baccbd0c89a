"""The surroundings of the queue manager: clock, timers, identifiers, scheduling, log, systemd."""
