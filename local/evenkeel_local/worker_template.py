"""Function workers as forks of one process that has imported a layer.

The engine's own interpreter runs this file, so it cannot import this project. It has two sides:

    engine ── WorkerTemplate.start ── socket: command, folder, environment, three pipes ──▶ template ── fork ──▶ worker

The template imports the layer once and never runs a handler. It has one thread, no client and no connection. Each
worker is a new process with its own environment and pipes, and it imports its handler itself. So a cold start has no
caches of an earlier call, as on AWS. Measured: the imports of a cold start take 0.9 s of processor time, and a data
centre has 30 to 100 cold starts.

If a template fails, the engine's log has its error, and all later workers of its layer are plain processes. Template
and workers stay in the engine's process group, so they end with the engine. The template also ends when its socket
closes.
"""

import contextlib
import functools
import gc
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
import weakref
from pathlib import Path
from typing import Any

PRELOADED = (
    *("evenkeel.ports", "evenkeel.domain", "evenkeel.events", "evenkeel.services", "evenkeel.adapters"),
    "evenkeel.runtime",
)
"""Packages of the layer. Their modules read neither the environment nor a clock while they are imported."""
MODELS = ("dynamodb", "eks", "lambda", "s3", "sns", "sqs", "stepfunctions", "sts")
"""The AWS services whose models are parsed once. `sagemaker` is large, and few functions use it."""
START_SECONDS = 60.0
"""A template that does not answer within this time has failed."""
_LARGEST_COMMAND = 200_000


class ForkedWorker:
    """A worker process, with the part of `subprocess.Popen` that the engine uses."""

    def __init__(self, pid: int, handle: int, ends: list[int]) -> None:
        self.pid = pid
        self.stdin = os.fdopen(ends[0], "w", buffering=1, encoding="utf-8")
        self.stdout = os.fdopen(ends[1], encoding="utf-8")
        self.stderr = os.fdopen(ends[2], encoding="utf-8", errors="replace")
        self.returncode: int | None = None
        self._handle = handle
        weakref.finalize(self, os.close, handle)

    def poll(self) -> int | None:
        """Return None while the process runs, then 1. The engine does not read the exit code."""
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
        """Send SIGTERM. Idempotent: yes; a process that has ended is left alone."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL. Idempotent: yes; a process that has ended is left alone."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def _end_within(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()  # `select.select` accepts no file descriptor from 1024 on
            poll.register(self._handle, select.POLLIN)
            if poll.poll(None if seconds is None else seconds * 1000):
                self.returncode = 1
        return self.returncode


class WorkerTemplate:
    """A process that has imported a layer and forks workers."""

    def __init__(self, layer: Path) -> None:
        self._socket, worker_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(START_SECONDS)
        with worker_socket:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(worker_socket.fileno()), str(layer)],
                stdin=subprocess.DEVNULL,
                pass_fds=[worker_socket.fileno()],
            )
        self.pid = self._process.pid

    def start(self, script: str, folder: str, environment: dict[str, str]) -> ForkedWorker:
        """Fork a worker that runs `script`. The calls of one template must not overlap.

        Raises:
            OSError: The template has ended or does not answer; its error is in the engine's log.
        """
        command = json.dumps([script, folder, environment]).encode()
        pipes = [os.pipe() for _ in range(3)]
        worker_ends = [pipes[0][0], pipes[1][1], pipes[2][1]]
        own_ends = [pipes[0][1], pipes[1][0], pipes[2][0]]
        try:
            socket.send_fds(self._socket, [command], worker_ends)
            answer, handles, _, _ = socket.recv_fds(self._socket, 100, 1)
            if not answer or not handles:
                message = f"the worker template {self.pid} has ended"
                raise ConnectionError(message)
        except OSError:
            for end in own_ends:
                os.close(end)
            raise
        finally:
            for end in worker_ends:
                os.close(end)
        os.set_inheritable(handles[0], False)
        return ForkedWorker(int(answer), handles[0], own_ends)

    def close(self) -> None:
        """End the template. Its workers keep running."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


class WorkerTemplates:
    """The template of each layer, started with the layer's first worker."""

    def __init__(self) -> None:
        self._templates: dict[str, WorkerTemplate | None] = {}
        """By the layer's folder. None if the template has failed."""
        self._lock = threading.Lock()

    def start_worker(self, command: list[str], **options: Any) -> Any:
        """Start a worker as `subprocess.Popen` does. A worker of a layer is forked from the layer's template."""
        environment = options.get("env") or {}
        layers = [layer for layer in environment.get("_LAMBDA_LAYERS_DIRS", "").split(os.pathsep) if layer]
        if len(layers) == 1 and command[0] == sys.executable:
            forked_worker = self._fork(Path(layers[0]).resolve(), command[1], options["cwd"], environment)
            if forked_worker is not None:
                return forked_worker
        return subprocess.Popen(command, **options)

    def close(self) -> None:
        """End all templates. Their workers keep running. Idempotent: yes."""
        with self._lock:
            for template in filter(None, self._templates.values()):
                template.close()
            self._templates.clear()

    def _fork(self, layer: Path, script: str, folder: str, environment: dict[str, str]) -> ForkedWorker | None:
        with self._lock:
            if str(layer) not in self._templates:
                self._templates[str(layer)] = WorkerTemplate(layer)
            template = self._templates[str(layer)]
            if template is None:
                return None
            try:
                return template.start(script, folder, environment)
            except OSError as error:
                report = f"The worker template of {layer} failed, so its workers are plain processes: {error!r}"
                print(report, file=sys.stderr, flush=True)
                self._templates[str(layer)] = None
                template.close()
                return None


def preload(layer: Path) -> None:
    """Import the layer's modules, and parse the models of AWS services.

    All sessions of a worker share the models, but each worker creates its own sessions and clients.
    """
    sys.path[:0] = [str(layer), str(layer / "python")]
    import botocore.client
    import botocore.session
    from botocore.loaders import create_loader

    shared_loader = functools.cache(create_loader)
    botocore.session.create_loader = shared_loader
    loader = shared_loader(None)
    for service in MODELS:
        for kind in ("service-2", "endpoint-rule-set-1", "paginators-1", "waiters-2"):
            with contextlib.suppress(botocore.exceptions.UnknownServiceError, botocore.exceptions.DataNotFoundError):
                loader.load_service_model(service, kind)
    for data in ("endpoints", "partitions", "sdk-default-configuration"):
        loader.load_data(data)
    for name in PRELOADED:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)


def become_worker(
    script: str, folder: str, environment: dict[str, str], pipes: list[int], search_path: list[str]
) -> None:
    """Turn a fork into a worker: replace pipes, folder, environment and search path, then run the script."""
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [script]
    sys.path[:] = [str(Path(script).parent), *search_path]
    runpy.run_path(script, run_name="__main__")


def serve(control: socket.socket, layer: Path) -> None:
    """Import the layer, then fork a worker for each command until the engine ends."""
    search_path = list(sys.path)
    sys.stdout = sys.stderr  # as in a worker: a logger that keeps a stream keeps standard error
    preload(layer)
    gc.collect()
    gc.freeze()  # a garbage collection in a worker would copy all pages of the template
    while True:
        command, pipes, _, _ = socket.recv_fds(control, _LARGEST_COMMAND, 3)
        if not command:
            return
        pid = os.fork()
        if not pid:
            control.close()
            script, folder, environment = json.loads(command)
            become_worker(script, folder, environment, pipes, search_path)
            return
        for pipe in pipes:
            os.close(pipe)
        handle = os.pidfd_open(pid)  # only this process collects the worker, so the pid still is the worker's
        socket.send_fds(control, [str(pid).encode()], [handle])
        os.close(handle)
        collect_ended()


def collect_ended() -> None:
    """Collect workers that have ended. Processes that end later stay zombies until the next fork."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
