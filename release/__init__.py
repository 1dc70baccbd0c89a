"""The tools of a release: a check of locked versions, reproducible archives, signatures."""
