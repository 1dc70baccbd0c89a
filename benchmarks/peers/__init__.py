"""Other queues under the same load as qmd, by turns: `python -m benchmarks.peers`."""
