"""Parsers and builders that are derived from declared layouts."""
