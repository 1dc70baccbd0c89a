"""Maintenance: expiry of messages, retention of old data, housekeeping, the disk watch."""
