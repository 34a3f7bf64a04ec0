"""Run calls in parallel; a call may stay without an answer."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

CHECK_SECONDS = 40.0
"""Maximum wait for a check."""
SELF_TEST_SECONDS = 35.0
"""Maximum wait for the functions' self-tests. It is shorter, so that the check can judge the answers in time."""
AWS_SECONDS = 8.0
"""Maximum wait for one try of an AWS call; each call has two tries."""


def answers_within(seconds: float, calls: Sequence[Callable[[], T]], at_once: int) -> list[T | None]:
    """Run calls in threads and return their results, None for each call without a result after `seconds`.

    The threads do not keep the process alive.

    Raises:
        Exception: the exception of a call.
    """
    futures: list[Future[T]] = [Future() for _ in calls]
    calls_to_make: queue.SimpleQueue[tuple[Callable[[], T], Future[T]]] = queue.SimpleQueue()
    for pair in zip(calls, futures, strict=True):
        calls_to_make.put(pair)

    def work() -> None:
        while True:
            try:
                call, future = calls_to_make.get_nowait()
            except queue.Empty:
                return
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001 - handed to the caller
                future.set_exception(error)

    for _ in range(min(at_once, len(calls))):
        threading.Thread(target=work, daemon=True).start()
    done, _ = wait(futures, timeout=seconds)
    return [future.result() if future in done else None for future in futures]
