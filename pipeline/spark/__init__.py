"""Spark and Java: sessions, settings and streams."""
