"""Requests to the API whose functions are killed while they work."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from evenkeel_client.client import ApiClient
from evenkeel_client.errors import CommandFailed
from evenkeel_local.data_centre import DataCentre

Json = dict[str, Any]

_FIRST_KILL_SECONDS = 0.005
_GROWTH = 1.2
_MAX_TRIES = 50


class AnsweredRequest(NamedTuple):
    """The answer to a request, the errors of the tries before it, and the processes that were killed before it came."""

    answer: Json
    failures: list[CommandFailed]
    killed: list[int]


def without_pauses(client: ApiClient) -> ApiClient:
    """Return the same person's client, without pauses between its tries."""
    return ApiClient(client.context, pause=lambda _seconds: None)


def answered_despite_kills(centre: DataCentre, send: Callable[[], Json]) -> AnsweredRequest:
    """Send a request again until it is answered. The API's functions are killed during each try, each time later.

    So the kills move through the whole request: before its work, between its reads and writes, and after its commit.
    The client also repeats a request itself, so an answer after a kill may come without any error.
    """
    failures: list[CommandFailed] = []
    killed: list[int] = []
    _kill_functions(centre)  # a warm function could answer before the first kill
    for number in range(_MAX_TRIES):
        with _kills_every(_FIRST_KILL_SECONDS * _GROWTH**number, centre, killed):
            try:
                return AnsweredRequest(send(), failures, killed)
            except CommandFailed as failed:
                failures.append(failed)
    raise AssertionError(f"no answer in {_MAX_TRIES} tries: {failures[-1]}")


def changes_with(reason: str, entries: Iterable[Json]) -> list[str]:
    """Return the kinds of the entries that give a reason. The settlement of an incident or attempt repeats it."""
    return [str(entry["kind"]) for entry in entries if reason in entry["text"] and entry["kind"] != "settled"]


@contextlib.contextmanager
def _kills_every(seconds: float, centre: DataCentre, killed: list[int]) -> Iterator[None]:
    """Kill every process of the API's functions each time this period has passed, and list them in `killed`."""
    is_over = threading.Event()

    def kill() -> None:
        while not is_over.wait(seconds):
            killed.extend(_kill_functions(centre))

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        is_over.set()
        killer.join()


def _kill_functions(centre: DataCentre) -> list[int]:
    killed = []
    for pid in filter(_runs_the_api, _workers(centre.engine.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed


def _runs_the_api(pid: int) -> bool:
    """Whether a process of a function, which works in the function's folder, answers requests of the API."""
    try:
        return b"@entry.api" in Path(f"/proc/{pid}/cwd/handler.py").read_bytes()
    except OSError:
        return False


def _workers(engine: int) -> list[int]:
    """Return the processes of functions: the forks of the engine's worker templates."""

    def children(pid: int) -> list[int]:
        pids = []
        with contextlib.suppress(OSError):  # the process ended meanwhile
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    text = (thread / "children").read_text("ascii")
                    pids += [int(child) for child in text.split()]
        return pids

    def is_template(pid: int) -> bool:
        try:
            return b"worker_template.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    pids, todo = [], [engine]
    while todo:
        pid = todo.pop()
        below = children(pid)
        pids += [child for child in below if is_template(pid) and is_template(child)]
        todo += below
    return pids
