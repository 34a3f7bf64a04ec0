"""The first paint of `evenkeel console` in a headless Chromium on loopback, with few and with 2,000 nodes.

    python -m bench.console [--rounds 10] [--output bench/results/console.json]

The API functions run on in-memory ports in a process of their own, and `evenkeel console` in another one. Each round
starts the console anew and opens its link in a browser profile without a cache. Seconds begin when the browser opens
the link. The yardstick is a page of one line from the same loopback, so the ratio is comparable across machines; the
seconds are not.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Response

from bench.cpu_usage import Usage
from bench.origin import describe_origin, write_figures
from tests import browser
from tests.unit.api.gateway import FLEET, Gateway
from tests.unit.api.seeds import a_fleet_node, a_job, store, store_fleet_counts, store_heartbeats

SIZES: Final = (60, 2_000)
JOBS: Final = 1_000
_SCRIPT: Final = Path(__file__).with_name("console.js")
_PATIENCE: Final = 30_000
_KEPT: Final = ("Idempotency-Key", "If-None-Match", "If-Match")

Json = dict[str, Any]


def main() -> int:
    """Measure the lanes alternately, so that a busy moment affects all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path, help="file for the figures, as JSON")
    parser.add_argument("--serve", type=int, metavar="NODES", help="serve the API of a fleet; for the benchmark itself")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return 0
    before = Usage.now()
    lanes: dict[str, list[Json]] = {}
    with browser.running() as chromium:
        for size in SIZES:
            with _api(size) as url:
                _open_console(chromium, url, size)  # the first round warms the machine's own caches, and does not count
                for _ in range(arguments.rounds):
                    lanes.setdefault("one line", []).append(_open_one_line(chromium))
                    lanes.setdefault(f"{size:,} nodes", []).append(_open_console(chromium, url, size))
    figures = {
        **describe_origin("bench.console", None, []),
        "rounds": arguments.rounds,
        "othersShare": round(Usage.now().others_since(before), 2),
        "lanes": lanes,
    }
    write_figures(arguments.output, figures)
    for name, rounds in lanes.items():
        for figure in rounds[0]:
            samples = [measured[figure] for measured in rounds]
            print(
                f"{name:12} {figure:24} {statistics.median(samples):9.3f}  ({min(samples):.3f} to {max(samples):.3f})"
            )
    print(f"Other programs used {figures['othersShare']:.0%} of the processors.")
    return 0


# ---------------------------------------------------------------- the API


def serve(nodes: int) -> None:
    """Serve the API of a fleet on loopback, and print its URL."""
    gateway = Gateway()
    ledger = gateway.fakes.ledger
    store_heartbeats(ledger)
    store(ledger, *(a_fleet_node(number, is_ready=number % 50 != 7) for number in range(1, nodes + 1)))
    store(
        ledger,
        *(
            a_job(number % 29, job_id=f"job-{number:010d}", state=("PENDING", "RUNNING")[number % 2])
            for number in range(1, JOBS + 1)
        ),
    )
    store_fleet_counts(gateway.fakes)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name: value for name, value in self.headers.items() if name in _KEPT}
            answer = gateway.call("GET", self.path, headers=headers)
            _send(self, answer.status, dict(answer.headers), answer.text.encode())

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
        server.serve_forever()


def _send(request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], content: bytes) -> None:
    request.send_response_only(status)
    for name, value in {**headers, "Content-Length": str(len(content))}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(content)


@contextmanager
def _api(nodes: int) -> Iterator[str]:
    """Run the API of a fleet in a process of its own. Yield its URL."""
    with _process([sys.executable, "-m", "bench.console", "--serve", str(nodes)], os.environ) as line:
        yield line


@contextmanager
def _process(command: list[str], environment: Any) -> Iterator[str]:
    """Run a program until the end of the block. Yield the first line that it prints."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


# ---------------------------------------------------------------- the lanes


def _open_console(chromium: Browser, api_url: str, nodes: int) -> Json:
    """Start the console, and open its link in a browser profile without a cache."""
    settings = {"EVENKEEL_URL": api_url, "EVENKEEL_FLEET": FLEET, "AWS_REGION": "us-west-2", "NO_PROXY": "127.0.0.1"}
    keys = {"AWS_ACCESS_KEY_ID": "AKIABENCH", "AWS_SECRET_ACCESS_KEY": "none"}
    began = time.perf_counter()
    command = [sys.executable, "-m", "evenkeel_cli.main", "console", "--no-open"]
    with _process(command, os.environ | settings | keys) as line:
        started = time.perf_counter() - began
        link = line.rpartition(" ")[2]
        context = chromium.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.set_default_timeout(_PATIENCE)
        answers: list[Response] = []
        page.on("response", lambda answer: answers.append(answer))  # noqa: PLW0108 - the driver sets an attribute
        page.add_init_script(_SCRIPT.read_text(encoding="utf-8").replace("NODES", str(nodes)))
        opened = time.time() * 1000
        page.goto(link, wait_until="commit")
        page.locator(".square").nth(nodes - 1).wait_for(state="attached")
        page.wait_for_load_state("networkidle")
        first, overview, grid = (page.evaluate(f"painted.{mark}") for mark in ("first", "overview", "allNodes"))
        files, data = _kilobytes(answers)
        context.close()
    return {
        "start of the command": started,
        "first paint": (first - opened) / 1000,
        "overview": (overview - opened) / 1000,
        "all nodes": (grid - opened) / 1000,
        "files kB, gzip": files,
        "answers kB, gzip": data,
    }


def _kilobytes(answers: list[Response]) -> tuple[float, float]:
    """Return the compressed size of the console's own files, and of the API's answers.

    The browser forgets the page of the link and its script, together half a kilobyte, when they lead to the console.
    """
    sizes = {True: 0, False: 0}
    for answer in answers:
        if answer.status == 200 and urlsplit(answer.url).path not in ("/open", "/start.js"):
            sizes["/v1/" in answer.url] += len(gzip.compress(answer.body()))
    return sizes[False] / 1000, sizes[True] / 1000


def _open_one_line(chromium: Browser) -> Json:
    """Open a page of one line."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _send(self, 200, {"Content-Type": "text/html"}, b"<!doctype html><title>One line</title><p>One line.")

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        context = chromium.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.add_init_script(path=_SCRIPT)
        opened = time.time() * 1000
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        paint = page.evaluate("painted.first") - opened
        context.close()
        server.shutdown()
    return {"first paint": paint / 1000}


if __name__ == "__main__":
    sys.exit(main())
