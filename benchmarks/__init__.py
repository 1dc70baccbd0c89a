"""Benchmarks of the promised figures, and demonstrations."""
