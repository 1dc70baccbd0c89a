"""Parsers and builders, derived from declared layouts."""
