"""Spark and Java: sessions, their settings, streams."""
