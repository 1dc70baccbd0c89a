"""The components of a queue manager: how they are made, connected and restored."""
