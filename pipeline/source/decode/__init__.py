"""Decoding of packets into columns."""
