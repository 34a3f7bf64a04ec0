"""`dev status` probes each part of the local data centre: a silent part is down, even if its pid file exists."""

import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from evenkeel_cli.main import main
from evenkeel_local import dev_data_centre, probes
from evenkeel_local.processes import ProcessIdentity

Json = dict[str, Any]
KUBECONFIG: Json = {
    "clusters": [{"cluster": {"server": "https://127.0.0.1:1", "certificate-authority-data": ""}}],
    "users": [{"user": {"token": "t"}}],
}


class FakeDataCentre:
    """Engine, control address and API of a data centre. Every part answers, except those in `broken`."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.beat_at: datetime | None = datetime.now(UTC)
        self.up_since = datetime.now(UTC)
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status = 503 if any(name in self.path for name in server.broken) else 200
                beats = [{"function": "sweep_fleet", "at": server.beat_at and server.beat_at.isoformat()}]
                body = json.dumps({"fleet": "laptop", "heartbeats": beats}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def probe(self) -> dict[str, probes.ProbeResult]:
        key = {"accessKeyId": "AKIA", "secretAccessKey": "s"}
        context = {"name": "laptop", "url": f"{self.url}/v1", "region": "us-west-2", "credentials": key}
        state = {"engineUrl": self.url, "controlUrl": self.url, "upSince": self.up_since.isoformat()}
        return {result.part: result for result in probes.probe_parts(state, context, KUBECONFIG)}


@pytest.fixture
def server() -> Iterator[FakeDataCentre]:
    started = FakeDataCentre()
    yield started
    started.stop()


def parts_down(results: dict[str, probes.ProbeResult]) -> set[str]:
    return {part for part, result in results.items() if not result.is_up} - {"Kubernetes"}


def test_parts_of_the_data_centre_that_answer_are_up(server: FakeDataCentre) -> None:
    probe = server.probe()

    assert parts_down(probe) == set()
    assert not probe["Kubernetes"].is_up  # no server listens on this port


@pytest.mark.parametrize(
    ("broken", "parts"),
    [
        ("_ministack/health", {"engine"}),
        ("control/health", {"GPU cluster"}),
        ("/v1/overview", {"API", "schedules"}),
    ],
)
def test_part_of_the_data_centre_that_is_silent_is_down(
    server: FakeDataCentre, broken: str, parts: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenkeel_client.client._PAUSE_SECONDS", 0.0)
    server.broken = {broken}

    assert parts_down(server.probe()) == parts


def test_silent_scheduled_function_is_down(server: FakeDataCentre) -> None:
    server.beat_at = datetime.now(UTC) - timedelta(seconds=probes.SILENT_SECONDS + 5)

    probe = server.probe()

    assert parts_down(probe) == {"schedules"}
    assert "sweep_fleet last finished" in probe["schedules"].detail


@pytest.mark.parametrize(("seconds", "parts"), [(10, set()), (probes.SILENT_SECONDS + 5, {"schedules"})])
def test_function_that_never_finished_is_down_only_after_a_while(
    server: FakeDataCentre, seconds: float, parts: set[str]
) -> None:
    server.beat_at = None
    server.up_since = datetime.now(UTC) - timedelta(seconds=seconds)

    assert parts_down(server.probe()) == parts


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "template.yaml").touch()
    (tmp_path / "local").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_status_exits_1_before_any_data_centre_started(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "status"]) == 1
    assert "no data centre was started here" in capsys.readouterr().out


def test_status_exits_1_when_the_supervisor_is_gone(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ProcessIdentity(1, "another boot").write(dev_data_centre.DevPaths(project).pid)

    assert main(["dev", "status", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "isUp": False,
        "parts": [{"part": "data centre", "isUp": False, "detail": "its supervisor process has ended"}],
    }


def test_status_exits_1_and_names_the_part_that_is_down(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = dev_data_centre.DevPaths(project)
    mark = ProcessIdentity.of(os.getpid())
    assert mark is not None
    mark.write(paths.pid)
    paths.run_dir.mkdir()
    restart = {"part": "engine", "at": "2026-11-23T01:00:00+00:00", "kept": "the logs.", "lost": "all jobs."}
    paths.state.write_text(json.dumps({"runDir": "x", "restarts": [restart]}))
    paths.context.write_text("{}")
    paths.kubeconfig.write_text("{}")
    results = [
        probes.ProbeResult("engine", is_up=True, detail="x"),
        probes.ProbeResult("GPU cluster", is_up=False, detail="refused"),
    ]
    monkeypatch.setattr(probes, "probe_parts", lambda *_: results)

    assert main(["dev", "status"]) == 1
    output = capsys.readouterr().out
    assert "down: GPU cluster" in output
    assert "lost: all jobs." in output


@pytest.mark.usefixtures("project")
def test_stopping_stopped_data_centre_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "down"]) == 0
    assert capsys.readouterr().out == "● No data centre runs in this folder.\n"
