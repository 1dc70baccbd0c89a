"""The commands of `qmd pipeline`, one module each."""
