"""`evenkeel dev`: a supervised data centre in its own process.

Its files are in `.evenkeel` of the current folder:

    dev.pid         the supervisor process
    context.json    the context of the command line: the API's address and the operator's key
    kubeconfig      the administrator's kubeconfig
    dev/            logs and files of the data centre
    dev/state.json  addresses, process ids and restarts
    dev-lost/       logs and files of the previous data centre, if its engine died
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from evenkeel_local import probes
from evenkeel_local.data_centre import DataCentre, Say
from evenkeel_local.deployment import STACK_NAME
from evenkeel_local.processes import Child, ProcessIdentity, interruptible
from evenkeel_local.supervisor import HangDetector, PartRestart, RestartLimitReached, SupervisedPart, Supervisor

UP_SECONDS: Final = 240.0
_ANSWER_SECONDS: Final = 3.0

Json = dict[str, Any]


class DevPaths:
    """The files of the data centre of one project folder."""

    def __init__(self, root: Path) -> None:
        folder = root / ".evenkeel"
        self.run_dir = folder / "dev"
        self.previous_run_dir = folder / "dev-lost"
        self.log = folder / "dev.log"
        self.pid = folder / "dev.pid"
        self.context = folder / "context.json"
        self.kubeconfig = folder / "kubeconfig"
        self.state = self.run_dir / "state.json"

    def remove(self) -> None:
        """Remove the files of a running data centre."""
        for file in (self.pid, self.context, self.kubeconfig, self.state):
            file.unlink(missing_ok=True)


def up(root: Path, foreground: bool = False) -> int:
    """Start a data centre and keep it running: until Ctrl-C in the foreground, else until `down`.

    Returns:
        An exit code: 0 up, 1 failed, 5 already up.
    """
    if _supervisor_process(root) is not None:
        print(
            "A data centre already runs here. Inspect it with evenkeel dev status, or stop it with evenkeel dev down.",
            file=sys.stderr,
        )
        return 5
    if foreground:
        return run_supervised(root)
    log = DevPaths(root).log
    log.unlink(missing_ok=True)
    child = Child.start(
        [sys.executable, "-m", "evenkeel_local.dev_data_centre", str(root)], log=log, detached=True, cwd=root
    )
    deadline, printed_bytes = time.monotonic() + UP_SECONDS, 0
    while time.monotonic() < deadline:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        for line in lines[printed_bytes:]:
            print(line, file=sys.stderr)
        printed_bytes = len(lines)
        if is_up(root):
            return 0
        if not child.is_running():
            break
        time.sleep(0.1)
    print(f"The data centre did not start. See {log}.", file=sys.stderr)
    child.identity.stop_group()
    return 1


class _UntilInterrupted(threading.Event):
    """An event that is never set: only a signal ends the run. It replaces `Event`, whose lock a signal can break."""

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep for a time, and return False."""
        time.sleep(timeout or 0.0)
        return False


def run_supervised(root: Path) -> int:
    """Run a data centre in this process until a signal ends it; return the exit code."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"  {time.monotonic() - began:5.1f}s  {text}", file=sys.stderr, flush=True)

    data_centre, code = _DevDataCentre(DevPaths(root), say), 0
    with interruptible():
        try:
            data_centre.start()
            command = (
                "evenkeel" if shutil.which("evenkeel") else os.path.relpath(Path(sys.executable).with_name("evenkeel"))
            )
            for text in ("ready. Try:", f"{command} status", f"{command} console", f"{command} drill faults"):
                say(text)
            say(f"Stop with Ctrl-C or {command} dev down")
            Supervisor(data_centre.parts, say=say, restarted=data_centre.publish).run(_UntilInterrupted())
        except KeyboardInterrupt:
            say("stopping all processes")
        except RestartLimitReached as error:
            say(
                f"{error}. All processes are stopped. Read the logs in {data_centre.paths.run_dir}, then "
                "run: evenkeel dev up"
            )
            code = 1
        finally:
            data_centre.stop()
    return code


class _DevDataCentre:
    """The current data centre; a new one replaces it if the engine dies."""

    def __init__(self, paths: DevPaths, say: Say) -> None:
        self.paths = paths
        self._say = say
        self._centre: DataCentre | None = None
        self._cluster_silence = HangDetector(self._ask_cluster)

    def start(self) -> None:
        self._centre = DataCentre.start(self.paths.run_dir, keeps_cluster=True, say=self._say)
        self.publish([])
        mark = ProcessIdentity.of(os.getpid())
        if mark is not None:
            mark.write(self.paths.pid)
        self._say(f"up: {self._centre.api_url}")

    def stop(self) -> None:
        if self._centre is not None:
            self._centre.stop()
        self.paths.remove()

    def parts(self) -> tuple[SupervisedPart, ...]:
        """Return the parts; a part comes before the parts that depend on it."""
        centre = self._centre
        if centre is None:  # a rebuild failed
            return (_SupervisedPart("engine", lambda: False, self._rebuild),)
        ticker = centre.ticker
        return (
            _SupervisedPart("engine", centre.engine.is_running, self._rebuild),
            _SupervisedPart(
                "GPU cluster", lambda: centre.cluster.is_running, self._restart_cluster, self._cluster_silence.is_silent
            ),
            _SupervisedPart("ticker", lambda: ticker is None or ticker.is_running(), self._restart_ticker),
        )

    def publish(self, restarts: list[PartRestart]) -> None:
        """Write the files with the addresses and the restarts."""
        if self._centre is None:
            return
        _write_private(self.paths.context, self._centre.context())
        _write_private(self.paths.kubeconfig, self._centre.cluster.kubeconfig())
        document = self._centre.state() | {"restarts": [asdict(restart) for restart in restarts]}
        _write_private(self.paths.state, document)

    def _rebuild(self) -> tuple[str, str]:
        if self._centre is not None:
            self._centre.stop()
            self._centre = None
            shutil.rmtree(self.paths.previous_run_dir, ignore_errors=True)
            self.paths.run_dir.rename(self.paths.previous_run_dir)
        self._centre = DataCentre.start(self.paths.run_dir, keeps_cluster=True, say=self._say)
        lost_text = "all jobs, incidents, decisions, teams and checkpoints, the node history, and all addresses."
        return f"the logs of the previous data centre, in {self.paths.previous_run_dir}.", lost_text

    def _ask_cluster(self) -> None:
        assert self._centre is not None
        self._centre.cluster.control("GET", "health", timeout=_ANSWER_SECONDS)

    def _restart_cluster(self) -> tuple[str, str]:
        assert self._centre is not None
        self._centre.restart_cluster()
        self._cluster_silence = HangDetector(self._ask_cluster)
        preserved_text = "Kubernetes objects, machines, access entries and addresses."
        return preserved_text, "all running processes: the machines restarted, as after a power cut."

    def _restart_ticker(self) -> tuple[str, str]:
        assert self._centre is not None
        self._centre.restart_ticker()
        return "everything.", "nothing."


@dataclass(frozen=True)
class _SupervisedPart:
    """A part of the data centre that is restarted if it stops."""

    name: str
    is_running: Callable[[], bool]
    restart: Callable[[], tuple[str, str]]
    is_silent: Callable[[], bool] = lambda: False
    """A silent engine is not restarted, because it would lose all its tables."""


def _write_private(file: Path, document: Json) -> None:
    """Write a file atomically; only its owner may read it."""
    draft = file.with_name(f".{file.name}.draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        json.dump(document, out, indent=2)
    draft.replace(file)


def down(root: Path) -> bool:
    """Stop the data centre that `up` started. Return whether it ran. Idempotent: yes."""
    identity = _supervisor_process(root)
    if identity is None:
        return False
    os.kill(identity.pid, signal.SIGTERM)
    deadline = time.monotonic() + 30
    while identity.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    if identity.is_alive():
        identity.stop_group()
    return True


def _supervisor_process(root: Path) -> ProcessIdentity | None:
    identity = ProcessIdentity.read(DevPaths(root).pid)
    return identity if identity is not None and identity.is_alive() else None


def is_up(root: Path) -> bool:
    """Whether a data centre runs in this folder. `status` checks whether its parts answer."""
    return _supervisor_process(root) is not None and DevPaths(root).state.exists()


def kubeconfig(root: Path) -> Json:
    """Return the administrator's kubeconfig of the running GPU cluster."""
    return _read_json(DevPaths(root).kubeconfig)


def environment(root: Path) -> dict[str, str]:
    """Return the variables with which AWS commands and SDKs act as the operator of the running data centre."""
    context = _read_json(DevPaths(root).context)
    return {
        "AWS_ACCESS_KEY_ID": context["credentials"]["accessKeyId"],
        "AWS_SECRET_ACCESS_KEY": context["credentials"]["secretAccessKey"],
        "AWS_REGION": context["region"],
        "AWS_DEFAULT_REGION": context["region"],
        "AWS_ENDPOINT_URL": context["awsEndpointUrl"],
        "AWS_ENDPOINT_URL_SAGEMAKER": context["sagemakerEndpointUrl"],
        "AWS_ENDPOINT_URL_EKS": context["sagemakerEndpointUrl"],
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1,localhost",
        "API_URL": context["url"],
        "STACK": context["stack"],
        "KUBECONFIG": str(DevPaths(root).kubeconfig),
    }


def status(root: Path) -> Json:
    """Probe each part of the data centre; return which parts answer, and their addresses."""
    paths = DevPaths(root)
    if _supervisor_process(root) is None:
        detail = "its supervisor process has ended" if paths.pid.exists() else "no data centre was started here"
        return _down_status(detail)
    if not paths.state.exists():
        detail = f"it is starting or restarting. See {paths.log}"
        return _down_status(detail)
    state = _read_json(paths.state)
    probe_results = probes.probe_parts(state, _read_json(paths.context), _read_json(paths.kubeconfig))
    return {
        "isUp": all(result.is_up for result in probe_results),
        "parts": [_probe_document(result) for result in probe_results],
        "stack": STACK_NAME,
        **state,
    }


def _down_status(detail: str) -> Json:
    return {"isUp": False, "parts": [_probe_document(probes.ProbeResult("data centre", is_up=False, detail=detail))]}


def _probe_document(result: probes.ProbeResult) -> Json:
    return {"part": result.part, "isUp": result.is_up, "detail": result.detail}


def _read_json(file: Path) -> Json:
    document: Json = json.loads(file.read_text(encoding="utf-8"))
    return document


if __name__ == "__main__":
    sys.exit(run_supervised(Path(sys.argv[1])))
