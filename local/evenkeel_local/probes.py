"""Check whether each part of a data centre answers."""

from __future__ import annotations

import base64
import functools
import json
import ssl
import threading
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from evenkeel_client.client import ApiClient
from evenkeel_client.context import read_context

ANSWER_SECONDS: Final = 20.0
"""A part that takes longer counts as down. The first answer of the API waits until a function has started."""
SILENT_SECONDS: Final = 180.0
"""The scheduled functions run every few seconds here."""

Json = dict[str, Any]
_DIRECT: Final = urllib.request.ProxyHandler({})


@dataclass(frozen=True)
class ProbeResult:
    """The result of one probe."""

    part: str
    is_up: bool
    detail: str


def probe_parts(state: Mapping[str, Any], context: Json, kubeconfig: Json) -> list[ProbeResult]:
    """Probe every part of a data centre in parallel.

    Args:
        state: The data centre's state file.
        context: The context of the command line.
        kubeconfig: The administrator's kubeconfig.
    """
    lock = threading.Lock()

    @functools.cache
    def asked() -> Json:
        return ApiClient(read_context(context, "the data centre", {}), warn=None).get("/overview")

    def overview() -> Json:
        with lock:
            return asked()

    tries: dict[str, Callable[[], str]] = {
        "engine": lambda: _read_url(f"{state['engineUrl']}/_ministack/health"),
        "GPU cluster": lambda: _read_url(f"{state['controlUrl']}/control/health"),
        "Kubernetes": lambda: _probe_kubernetes(kubeconfig),
        "API": lambda: str(context["url"]) if overview() else "",
        "schedules": lambda: _slowest_schedule_text(overview(), state["upSince"]),
    }
    results: dict[str, ProbeResult] = {}
    threads = [
        threading.Thread(target=_probe_part, args=(results, part_name, attempt), daemon=True)
        for part_name, attempt in tries.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ANSWER_SECONDS + 1)
    silent = f"no answer within {ANSWER_SECONDS:.0f} s"
    return [results.get(part_name, ProbeResult(part_name, is_up=False, detail=silent)) for part_name in tries]


def _probe_part(results: dict[str, ProbeResult], part: str, attempt: Callable[[], str]) -> None:
    try:
        results[part] = ProbeResult(part, is_up=True, detail=attempt())
    except Exception as error:  # noqa: BLE001 - any failure means that the part is down
        results[part] = ProbeResult(part, is_up=False, detail=str(error) or type(error).__name__)


def _read_url(url: str) -> str:
    with urllib.request.build_opener(_DIRECT).open(url, timeout=ANSWER_SECONDS) as answer:
        answer.read()
    return url


def _probe_kubernetes(kubeconfig: Json) -> str:
    cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    https = urllib.request.HTTPSHandler(context=ssl.create_default_context(cadata=authority))
    url = f"{cluster['server']}/api/v1/nodes?limit=1"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {user['token']}"})
    with urllib.request.build_opener(_DIRECT, https).open(request, timeout=ANSWER_SECONDS) as answer:
        json.load(answer)
    return str(cluster["server"])


def _slowest_schedule_text(overview: Json, up_since: str) -> str:
    """Return how long ago the slowest scheduled function finished.

    Raises:
        RuntimeError: a function is silent, or has never finished although it had enough time.
    """
    now, longest_age = datetime.now(UTC), 0.0
    for beat in overview["heartbeats"]:
        age = (now - datetime.fromisoformat(beat["at"] or up_since)).total_seconds()
        if age > SILENT_SECONDS:
            run_text = "last finished" if beat["at"] else "started but never finished; first started"
            raise RuntimeError(f"{beat['function']} {run_text} {age:.0f} s ago")
        longest_age = max(longest_age, age)
    return f"every scheduled function ran or started within the last {longest_age:.0f} s"
