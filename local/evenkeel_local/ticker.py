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


def rest_seconds(took: float, every_seconds: float, *, waits: bool) -> float:
    """Return the pause after an invocation that took `took` seconds.

    On a busy engine, half of the time remains for other functions. The time of an invocation that `waits` does not
    show how busy the engine is.
    """
    longest = every_seconds if waits else _LONGEST_REST_SECONDS
    return max(every_seconds - took, min(took, longest))


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
        waiting: Collection[str] = (),
    ) -> None:
        """Prepare a ticker.

        Args:
            credentials: An identity with `ticker_statements`.
            periods: For each function, the seconds between the starts of two invocations; more after a long one
                (`rest_seconds`).
            payloads: The payload of each function; `{}` by default.
            waiting: Functions that wait during most of an invocation, such as the watch.
        """
        self._periods = dict(periods)
        self._payloads = payloads or {}
        self._waiting = frozenset(waiting)
        self._stopping = threading.Event()
        options = Config(
            connect_timeout=2,
            read_timeout=_LONGEST_INVOCATION_SECONDS,
            retries={"total_max_attempts": 1},
            max_pool_connections=max(10, len(periods)),
            proxies={},
        )
        self._lambda = credentials.client("lambda", config=options)
        self.beats: Mapping[str, ScheduleState] = {name: ScheduleState(name) for name in periods}
        # Daemon threads: an open watch must not delay the end of the process.
        self._threads = [
            threading.Thread(target=self._run, args=(beat,), name=f"tick-{beat.function_name}", daemon=True)
            for beat in self.beats.values()
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

    def _run(self, beat: ScheduleState) -> None:
        payload = json.dumps(self._payloads.get(beat.function_name, {})).encode()
        period = self._periods[beat.function_name]
        while not self._stopping.is_set():
            started = time.monotonic()
            self._invoke(beat, payload)
            took = time.monotonic() - started
            waits = beat.function_name in self._waiting
            self._stopping.wait(rest_seconds(took, period, waits=waits))

    def _invoke(self, beat: ScheduleState, payload: bytes) -> None:
        try:
            answer = self._lambda.invoke(FunctionName=beat.function_name, Payload=payload)
            body = answer["Payload"].read()
            error = body.decode(errors="replace") if answer.get("FunctionError") else None
        except (BotoCoreError, ClientError) as failure:
            error = str(failure)
        if self._stopping.is_set():
            return  # an engine that stops drops its callers
        beat.invoked += 1
        if error is None:
            return
        beat.failed += 1
        if error != beat.last_error:
            _LOG.warning("A scheduled function failed", extra={"function": beat.function_name, "error": error})
        beat.last_error = error
