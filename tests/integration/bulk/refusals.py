"""The code of a refusal."""

from __future__ import annotations

from typing import Any

import pytest

from qmd.errors import Refusal


async def refused(work: Any) -> str:
    with pytest.raises(Refusal) as error:
        await work
    return error.value.code
