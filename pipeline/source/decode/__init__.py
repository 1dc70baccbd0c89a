"""Packets become columns."""
