"""Parsers and builders, written by `python -m protocol.codec.write`."""
