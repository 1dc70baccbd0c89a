"""Event logs of invented fleets, with faults that are known.  docs/jobs.md

    generate(Fleet(hosts=200, streams=2000, messages=5_000_000, faults={"lost": 20}), folder)

The files are those of `qmd ship`: one for each day and host, in the schema of `qmd events export`,
so that every job can be tried, and the audit be tested, without a fleet.
"""

from pipeline.generator.faults import FAULTS, HOST_FAULTS, parse_faults
from pipeline.generator.fleet import generate
from pipeline.generator.plan import Fleet

__all__ = ["FAULTS", "HOST_FAULTS", "Fleet", "generate", "parse_faults"]
