"""The type of options that are a number of seconds."""

from __future__ import annotations

import math
from typing import Any

import click

YEAR_S = 31_622_400.0


class Seconds(click.FloatRange):
    """A time of at least `min` seconds and at most a year.

    FloatRange accepts "nan" and, without an upper limit, "1e999", which is infinite.
    """

    name = "seconds"

    def __init__(self, min: float) -> None:
        super().__init__(min=min, max=YEAR_S)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return found
