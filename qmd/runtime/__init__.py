"""Runtime environment: clock, timers, identifiers, scheduling, log, systemd."""
