"""The commands of `qmd pipeline`, each in a module of its own."""
