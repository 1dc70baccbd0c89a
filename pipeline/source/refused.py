"""A stream reader for wrong options: each call of Spark gets the error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from pipeline.source.errors import plainly


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that raises `error` at the first call, which comes before the first batch."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @plainly
    def _refuse(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def getDefaultReadLimit(self) -> Any:
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        self._refuse()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self._refuse()
