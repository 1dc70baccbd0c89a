"""Bulk access for data pipelines: range reads, readers with reservations, staged publication."""
