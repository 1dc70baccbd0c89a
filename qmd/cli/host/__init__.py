"""Commands that work on this computer itself: its daemon, its services, its files."""
