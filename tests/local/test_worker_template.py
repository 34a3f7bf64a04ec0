"""Function workers are forks of one process that has imported the layer; if that fails, they are plain processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from evenkeel_local import worker_template
from evenkeel_local.processes import group_members
from evenkeel_local.worker_template import WorkerTemplates
from tests.waiting import until

if TYPE_CHECKING:
    from evenkeel_local.data_centre import DataCentre

PROJECT = Path(__file__).resolve().parents[2]
FUNCTIONS = sorted(path.parent.name for path in PROJECT.glob("functions/*/handler.py"))
PLAIN_START = "plan_recovery"
"""The function that `make test` starts without a template. `make test-all` starts all."""
REPORT = """
import json, os, random, sys
first_line = sys.stdin.readline()
print("to standard error", file=sys.stderr)
print(json.dumps({
    "pid": os.getpid(),
    "parent": os.getppid(),
    "given": first_line.strip(),
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "hasLayer": "evenkeel.domain.policy" in sys.modules,
    "chance": random.random(),
    "openFiles": sorted(os.listdir("/proc/self/fd"))[:-1],
}), flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked layer. The packages that it depends on come from the environment of the tests."""
    folder = tmp_path_factory.mktemp("layer")
    (folder / "python").mkdir()
    (folder / "python" / "evenkeel").symlink_to(PROJECT / "shared" / "evenkeel")
    return folder


@pytest.fixture(scope="module")
def worker_templates() -> Iterator[WorkerTemplates]:
    """The worker templates of this module: all tests share one template process that has imported `layer`."""
    shared = WorkerTemplates()
    yield shared
    shared.close()


class Started:
    """A worker that has printed its report."""

    def __init__(self, worker_templates: WorkerTemplates, layer: Path | None, folder: Path, **variables: str) -> None:
        script = folder / "worker.py"
        script.write_text(REPORT, encoding="utf-8")
        layers = {"_LAMBDA_LAYERS_DIRS": str(layer)} if layer else {}
        pipe: Any = subprocess.PIPE
        self.process = worker_templates.start_worker(
            [sys.executable, str(script)],
            cwd=str(folder),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            bufsize=1,
            env={"PATH": os.defpath, **layers, **variables},
        )
        self.process.stdin.write("first line\n")
        self.report = json.loads(self.process.stdout.readline())

    def end(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
        self.process.wait(timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def test_worker_is_a_fork_with_the_layer_loaded(worker_templates: WorkerTemplates, layer: Path, tmp_path: Path) -> None:
    with Started(worker_templates, layer, tmp_path) as worker:
        assert worker.report["hasLayer"]
        assert worker.report["pid"] == worker.process.pid != worker.report["parent"] != os.getpid()
        assert (worker.report["given"], worker.report["folder"]) == ("first line", str(tmp_path))
        assert worker.process.stderr.readline() == "to standard error\n"
        assert worker.process.poll() is None


def test_workers_share_no_environment_random_state_or_open_file(
    worker_templates: WorkerTemplates, layer: Path, tmp_path: Path
) -> None:
    with (
        Started(worker_templates, layer, tmp_path, ROLE="first") as first,
        Started(worker_templates, layer, tmp_path, ROLE="second") as other,
    ):
        common = {"PATH": os.defpath, "_LAMBDA_LAYERS_DIRS": str(layer)}
        assert first.report["environment"] == {**common, "ROLE": "first"}
        assert other.report["environment"] == {**common, "ROLE": "second"}
        assert first.report["chance"] != other.report["chance"]
        assert first.report["openFiles"] == other.report["openFiles"] == ["0", "1", "2"]


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_stopped_worker_ends_without_its_siblings(
    worker_templates: WorkerTemplates, layer: Path, tmp_path: Path, how: str
) -> None:
    with Started(worker_templates, layer, tmp_path) as stopped, Started(worker_templates, layer, tmp_path) as other:
        with pytest.raises(subprocess.TimeoutExpired):
            stopped.process.wait(timeout=0)

        getattr(stopped.process, how)()

        assert stopped.process.wait(timeout=10) == stopped.process.poll() == 1
        getattr(stopped.process, how)()
        assert other.process.poll() is None


def test_worker_starts_as_plain_process_if_its_template_ended(
    layer: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker_templates = WorkerTemplates()
    with Started(worker_templates, layer, tmp_path) as before:
        os.kill(before.report["parent"], signal.SIGKILL)

        with (
            Started(worker_templates, layer, tmp_path, ROLE="own") as after,
            Started(worker_templates, layer, tmp_path) as later,
        ):
            assert (after.report["parent"], after.report["hasLayer"]) == (os.getpid(), False)
            assert after.report["environment"]["ROLE"] == "own"
            assert later.report["parent"] == os.getpid()
        assert before.process.poll() is None
    assert capfd.readouterr().err.count(f"The worker template of {layer} failed") == 1


def test_layer_that_cannot_be_imported_is_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken"
    (broken / "python" / "evenkeel").mkdir(parents=True)
    (broken / "python" / "evenkeel" / "__init__.py").write_text("import absent_package\n")

    with Started(WorkerTemplates(), broken, tmp_path) as worker:
        assert worker.report["parent"] == os.getpid()

    logged = capfd.readouterr().err
    assert "No module named 'absent_package'" in logged
    assert f"The worker template of {broken} failed" in logged


def test_workers_start_as_plain_processes_if_the_template_hangs(
    layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_template, "START_SECONDS", 0.01)

    with Started(WorkerTemplates(), layer, tmp_path) as worker:
        assert worker.report["parent"] == os.getpid()


def test_worker_without_a_layer_starts_as_plain_process(worker_templates: WorkerTemplates, tmp_path: Path) -> None:
    with Started(worker_templates, None, tmp_path) as worker:
        assert worker.report["parent"] == os.getpid()


INSPECTED = """
import os, sys, threading
from pathlib import Path

read = []

class Recorder(dict):
    def note(self, name):
        frame = sys._getframe(2)
        while frame.f_globals.get("__name__") == "os":
            frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith("evenkeel"):
            read.append(name)

    def __getitem__(self, name):
        self.note(name)
        return super().__getitem__(name)

    def get(self, name, default=None):
        self.note(name)
        return super().get(name, default)

os.environ = Recorder(os.environ)
from evenkeel_local import worker_template
worker_template.preload(Path(sys.argv[1]))
from evenkeel.adapters import aws
from evenkeel.runtime import wiring
import boto3
sockets = [each for each in Path("/proc/self/fd").iterdir() if each.exists() and "socket" in str(each.readlink())]
clients = aws.session.cache_info().currsize
print(threading.active_count(), sockets, read, wiring._container_ports, clients, boto3.DEFAULT_SESSION)
"""


def test_template_process_has_no_threads_sockets_sessions_or_settings(layer: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INSPECTED, str(layer)],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "local")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )

    # Lambda sets this variable, only in an environment of which it makes a snapshot.
    assert done.stdout == "1 [] ['AWS_LAMBDA_INITIALIZATION_TYPE'] [] 0 None\n"


@pytest.mark.parametrize(
    "function",
    [name if name == PLAIN_START else pytest.param(name, marks=pytest.mark.exhaustive) for name in FUNCTIONS],
)
def test_function_starts_in_plain_process(function: str) -> None:
    """With a preloaded module, a missing import in a function would stay hidden."""
    path = [str(PROJECT / "functions" / function), str(PROJECT / "shared")]

    done = subprocess.run(
        [sys.executable, "-c", "import handler; print(callable(handler.handler))"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        cwd=PROJECT / "shared",
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "True\n"


def test_function_processes_of_a_data_centre_are_forked(data_centre: "DataCentre") -> None:
    def parents() -> set[str]:
        stats = [Path(f"/proc/{pid}/stat") for pid in group_members(data_centre.engine.pid)]
        numbers = {stat.read_text().rpartition(") ")[2].split()[1] for stat in stats if stat.exists()}
        return {Path(f"/proc/{number}/cmdline").read_bytes().decode() for number in numbers}

    until(lambda: any("worker_template.py" in parent for parent in parents()), "a forked worker")
    assert "The worker template of" not in data_centre.engine.log.read_text(encoding="utf-8")
