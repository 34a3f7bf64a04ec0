"""Function workers as copies of one process that has imported a layer.

The engine's own interpreter runs this file, so it cannot import this project. It has two sides:

    engine ── WorkerTemplate.start ── socket: command, folder, environment, three pipes ──▶ template ── fork ──▶ worker

The template imports the layer once and never runs a handler. Each worker is a new process: it has its own environment
and pipes, and imports its handler itself. So a cold start has no caches of an earlier call, as on AWS. Measured: the
imports of a cold start take 0.9 s of processor time, and a data centre has 30 to 100 cold starts.

The template ends when the engine ends, because its socket closes.
"""

import contextlib
import functools
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

PRELOADED = ("evenkeel.ports", "evenkeel.domain", "evenkeel.events", "evenkeel.services", "evenkeel.adapters")
"""Packages whose modules read neither the environment nor a clock while they are imported."""
RUNTIME = ("evenkeel.runtime.wiring", "evenkeel.runtime.telemetry", "evenkeel.runtime.entry", "evenkeel.runtime.api")
SERVICES = ("dynamodb", "eks", "lambda", "s3", "sns", "sqs", "stepfunctions", "sts")
"""The AWS services whose models are parsed once. `sagemaker` is large, and few functions use it."""
_LARGEST_COMMAND = 200_000


class ForkedWorker:
    """A worker process, with the part of `subprocess.Popen` that the engine uses."""

    def __init__(self, pid: int, ends: list[int]) -> None:
        self.pid = pid
        self.stdin = open(ends[0], "w", buffering=1, encoding="utf-8")  # noqa: SIM115 - open as long as the worker
        self.stdout = open(ends[1], encoding="utf-8")  # noqa: SIM115
        self.stderr = open(ends[2], encoding="utf-8", errors="replace")  # noqa: SIM115
        self.returncode: int | None = None
        self._lock = threading.Lock()
        try:
            self._handle = os.pidfd_open(pid)
        except ProcessLookupError:
            self.returncode = 1

    def poll(self) -> int | None:
        """Return None while the process runs."""
        return self._end_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process.

        Raises:
            subprocess.TimeoutExpired: The process still runs.
        """
        code = self._end_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0)
        return code

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self.returncode is None:
                signal.pidfd_send_signal(self._handle, number)

    def _end_within(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._handle], [], [], seconds)[0]:
            with self._lock:
                if self.returncode is None:
                    self.returncode = 1  # the template collects the exit code, which the engine does not read
                    os.close(self._handle)
        return self.returncode


class WorkerTemplate:
    """A process that has imported a layer and forks workers."""

    def __init__(self, layer: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno()), str(layer)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._socket = ours
        self._lock = threading.Lock()

    def start(self, script: str, folder: str, environment: dict[str, str]) -> ForkedWorker:
        """Fork a worker that runs `script`.

        Raises:
            OSError: The template has ended; its error is in the engine's log.
        """
        command = json.dumps([script, folder, environment]).encode()
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        try:
            with self._lock:
                socket.send_fds(self._socket, [command], theirs)
                answer = self._socket.recv(100)
        finally:
            for end in theirs:
                os.close(end)
        if not answer:
            for end in ours:
                os.close(end)
            message = f"the worker template {self._process.pid} has ended"
            raise ConnectionError(message)
        return ForkedWorker(int(answer), ours)


class TemplatePool:
    """The template of each layer, started with the layer's first worker."""

    def __init__(self) -> None:
        self._templates: dict[str, WorkerTemplate] = {}
        self._lock = threading.Lock()

    def start_worker(self, command: list[str], **options: Any) -> Any:
        """Start a worker as `subprocess.Popen` does. A worker of a layer is forked from the layer's template."""
        environment = options.get("env") or {}
        layers = [layer for layer in environment.get("_LAMBDA_LAYERS_DIRS", "").split(os.pathsep) if layer]
        if len(layers) != 1 or command[0] != sys.executable:
            return subprocess.Popen(command, **options)
        layer = Path(layers[0]).resolve()
        with self._lock:
            template = self._templates.get(str(layer))
            if template is None:
                template = self._templates[str(layer)] = WorkerTemplate(layer)
        try:
            return template.start(command[1], options["cwd"], environment)
        except OSError:
            return subprocess.Popen(command, **options)


def preload(layer: Path) -> None:
    """Import the layer, and parse the models of AWS services. The models are shared by all sessions of a process."""
    sys.path[:0] = [str(layer), str(layer / "python")]
    import boto3
    import botocore.session
    from botocore.loaders import create_loader

    botocore.session.create_loader = functools.cache(create_loader)
    session = boto3.session.Session(aws_access_key_id="none", aws_secret_access_key="none", region_name="us-west-2")
    for service in SERVICES:
        session.client(service)
    for name in PRELOADED:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)
    for name in RUNTIME:
        importlib.import_module(name)


def become_worker(script: str, folder: str, environment: dict[str, str], pipes: list[int], search_path: list[str]) -> None:
    """Turn a fork into a worker: replace pipes, folder, environment and search path, then run the script."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [script]
    sys.path[:] = [str(Path(script).parent), *search_path]
    runpy.run_path(script, run_name="__main__")


def serve(control: socket.socket, layer: Path) -> None:
    """Import the layer, then fork a worker for each command until the engine ends."""
    search_path = list(sys.path)
    stdout, sys.stdout = sys.stdout, sys.stderr  # as in a worker: a logger that keeps a stream keeps standard error
    preload(layer)
    sys.stdout = stdout
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects workers that have ended
    while True:
        command, pipes, _, _ = socket.recv_fds(control, _LARGEST_COMMAND, 3)
        if not command:
            return
        pid = os.fork()
        if not pid:
            control.close()
            become_worker(*json.loads(command), pipes, search_path)
            return
        for pipe in pipes:
            os.close(pipe)
        control.send(str(pid).encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
