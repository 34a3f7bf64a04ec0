"""Log lines as JSON and metrics as EMF. Both are written to stdout, so neither needs a call to AWS."""

import functools
import json
import logging
from collections.abc import Mapping
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics.base import SingleMetric
from pydantic.alias_generators import to_camel, to_pascal

from evenkeel.domain.metrics import FLEET_DIMENSION, Unit, check_declared
from evenkeel.runtime.settings import Settings

SECRET_KEYS = frozenset({"token", "taskToken", "env", "credentials", "authorization"})
"""Keys that are never logged, even if a caller passes them."""

_RESERVED = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "level",
    "location",
    "timestamp",
    "service",
    "exception",
    "exception_name",
    "stack_trace",
}
"""Key names of log records and their formatter. A caller's key of this name gets the suffix `_`."""


class LambdaTelemetry:
    """The port Telemetry on Powertools' logger and EMF. Every line has the keys of the last `bind`.

    Each data point has the dimension `Fleet` (the fleet's name) and exactly the dimensions that its metric declares:
    `count("Heartbeat", function="sweep_fleet")` has `Fleet` and `Function`.
    """

    def __init__(self, settings: Settings) -> None:
        # ASCII only: surrogates, bidirectional marks and terminal codes of an event are written as escapes.
        serializer = functools.partial(json.dumps, default=str, separators=(",", ":"), ensure_ascii=True)
        self._logger = Logger(service=settings.service_name, utc=True, json_serializer=serializer)
        self._namespace = settings.metrics_namespace
        self._fleet = settings.fleet or "none"

    def bind(self, keys: Mapping[str, Any]) -> None:
        """Replace the keys that every line has."""
        self._logger.structure_logs(append=False, **_log_keys(keys))

    def count(self, name: str, value: float = 1.0, **dimensions: str) -> None:
        self._emit(name, Unit.COUNT, value, dimensions)

    def gauge(self, name: str, value: float, **dimensions: str) -> None:
        self._emit(name, Unit.NONE, value, dimensions)

    def seconds(self, name: str, value: float, **dimensions: str) -> None:
        self._emit(name, Unit.SECONDS, value, dimensions)

    def info(self, message: str, **keys: Any) -> None:
        self._logger.info(message, extra=_log_keys(keys), stacklevel=3)

    def warning(self, message: str, **keys: Any) -> None:
        self._logger.warning(message, extra=_log_keys(keys), stacklevel=3)

    def error(self, message: str, **keys: Any) -> None:
        self._logger.error(message, extra=_log_keys(keys), stacklevel=3)

    def exception(self, message: str, error: BaseException, **keys: Any) -> None:
        """Log a bug with its stack trace."""
        self._logger.error(message, exc_info=error, extra=_log_keys(keys))

    def _emit(self, name: str, unit: Unit, value: float, dimensions: Mapping[str, str]) -> None:
        check_declared(name, unit, dimensions)
        # With an empty service, the library adds no dimension for POWERTOOLS_SERVICE_NAME.
        metric = SingleMetric(namespace=self._namespace, service="")
        metric.add_metric(name=name, unit=unit.value, value=value)
        metric.add_dimension(name=FLEET_DIMENSION, value=self._fleet)
        for dimension, text in dimensions.items():
            metric.add_dimension(name=to_pascal(dimension), value=text or "none")
        print(json.dumps(metric.serialize_metric_set(), separators=(",", ":")))


def _log_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    named_values = ((to_camel(name), value) for name, value in keys.items() if value is not None)
    return {f"{name}_" if name in _RESERVED else name: value for name, value in named_values if name not in SECRET_KEYS}
