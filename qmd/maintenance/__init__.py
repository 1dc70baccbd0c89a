"""Maintenance: retention of old data, housekeeping that may fail, the disk watch."""
