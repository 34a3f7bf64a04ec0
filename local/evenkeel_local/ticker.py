"""Invoke the scheduled functions every second.

The engine's schedules run once a minute, as the template says and as on AWS. For demos and tests, the ticker also
invokes the same functions every second or two. Its identity may invoke only these functions. It never invokes a
function whose last invocation still runs.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from evenkeel_local import ACCOUNT_ID, REGION
from evenkeel_local.identities import Credentials, Statement

_LONGEST_INVOCATION_SECONDS: Final = 120
_LONGEST_REST_SECONDS: Final = 10.0
_LOG = logging.getLogger(__name__)


def ticker_statements(function_names: Sequence[str]) -> list[Statement]:
    """Return the permissions of the ticker: to invoke these functions."""
    arns = [f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{name}" for name in function_names]
    return [{"Sid": "InvokeScheduledFunctions", "Effect": "Allow", "Action": "lambda:InvokeFunction", "Resource": arns}]


def rest_seconds(took: float, every_seconds: float, *, is_long_running: bool) -> float:
    """Return the pause after an invocation that took `took` seconds.

    On a busy engine, half of the time remains for other functions. A long-running function waits most of its time, so
    its time does not show how busy the engine is.
    """
    longest_rest = every_seconds if is_long_running else _LONGEST_REST_SECONDS
    return max(every_seconds - took, min(took, longest_rest))


@dataclass
class ScheduleState:
    """The invocations of one function so far."""

    function_name: str
    invoked: int = 0
    failed: int = 0
    last_error: str | None = None


class Ticker:
    """Invokes functions periodically, each on a thread of its own. Call `start()`, or use it as a context manager."""

    def __init__(
        self,
        credentials: Credentials,
        periods: Mapping[str, float],
        payloads: Mapping[str, Any] | None = None,
        long_running_functions: Collection[str] = (),
    ) -> None:
        """Prepare a ticker.

        Args:
            credentials: An identity with `ticker_statements`.
            periods: For each function, the seconds between the starts of two invocations; more after a long one
                (`rest_seconds`).
            payloads: The payload of each function; `{}` by default.
            long_running_functions: Functions that wait during most of an invocation, such as the watch.
        """
        self._periods = dict(periods)
        self._payloads = payloads or {}
        self._long_running_functions = frozenset(long_running_functions)
        self._stopping = threading.Event()
        options = Config(
            connect_timeout=2,
            read_timeout=_LONGEST_INVOCATION_SECONDS,
            retries={"total_max_attempts": 1},
            max_pool_connections=max(10, len(periods)),
            proxies={},
        )
        self._lambda = credentials.client("lambda", config=options)
        self.schedule_states: Mapping[str, ScheduleState] = {name: ScheduleState(name) for name in periods}
        # Daemon threads: an open watch must not delay the end of the process.
        self._threads = [
            threading.Thread(
                target=self._run, args=(schedule_state,), name=f"tick-{schedule_state.function_name}", daemon=True
            )
            for schedule_state in self.schedule_states.values()
        ]

    def start(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def is_running(self) -> bool:
        """Whether each function's thread runs."""
        return all(thread.is_alive() for thread in self._threads)

    def stop(self, wait_seconds: float = 2.0) -> None:
        """Stop. Wait at most `wait_seconds` for a running invocation."""
        self._stopping.set()
        deadline = time.monotonic() + wait_seconds
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, schedule_state: ScheduleState) -> None:
        payload = json.dumps(self._payloads.get(schedule_state.function_name, {})).encode()
        period = self._periods[schedule_state.function_name]
        while not self._stopping.is_set():
            started_at = time.monotonic()
            self._invoke(schedule_state, payload)
            took = time.monotonic() - started_at
            is_long_running = schedule_state.function_name in self._long_running_functions
            self._stopping.wait(rest_seconds(took, period, is_long_running=is_long_running))

    def _invoke(self, schedule_state: ScheduleState, payload: bytes) -> None:
        try:
            answer = self._lambda.invoke(FunctionName=schedule_state.function_name, Payload=payload)
            body = answer["Payload"].read()
            error = body.decode(errors="replace") if answer.get("FunctionError") else None
        except (BotoCoreError, ClientError) as failure:
            error = str(failure)
        if self._stopping.is_set():
            return  # an engine that stops drops its callers
        schedule_state.invoked += 1
        if error is None:
            return
        schedule_state.failed += 1
        if error != schedule_state.last_error:
            _LOG.warning(
                "A scheduled function failed", extra={"function": schedule_state.function_name, "error": error}
            )
        schedule_state.last_error = error
