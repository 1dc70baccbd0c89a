"""Conversion of messages to packets: building, templates, shared parts."""
