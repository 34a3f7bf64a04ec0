"""Log lines: one JSON object per line, ASCII, without secrets; and metrics beside them."""

import json
import uuid
from typing import Any

import pytest

from evenkeel.domain.metrics import UndeclaredMetric
from evenkeel.runtime.settings import Settings
from evenkeel.runtime.telemetry import LambdaTelemetry


def new_telemetry() -> LambdaTelemetry:
    """Return a telemetry.

    Call it inside the test: the logger keeps the current stream, which pytest replaces after set-up.
    """
    variables = {"EVENKEEL_FLEET": "research", "POWERTOOLS_SERVICE_NAME": uuid.uuid4().hex}
    return LambdaTelemetry(Settings.from_environment(variables))


def log_lines(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_bound_keys_appear_on_every_log_line_until_replaced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    telemetry = new_telemetry()
    telemetry.bind({"incidentId": "inc-1"})
    telemetry.info("NodeCordoned", decision_id="dec-1")
    telemetry.bind({"jobId": "job-1"})
    telemetry.warning("PassLost")

    first, second = log_lines(capsys)
    assert (first["message"], first["level"], first["incidentId"], first["decisionId"]) == (
        "NodeCordoned",
        "INFO",
        "inc-1",
        "dec-1",
    )
    assert (second["level"], second["jobId"], "incidentId" in second) == ("WARNING", "job-1", False)


def test_tokens_credentials_and_a_jobs_environment_are_never_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    telemetry = new_telemetry()
    telemetry.bind({"token": "secret-1", "jobId": "job-1"})
    telemetry.error("X", token="secret-2", task_token="secret-3", env={"A": "secret-4"}, credentials="secret-5")

    assert "secret" not in capsys.readouterr().out


def test_reserved_log_keys_are_kept_under_another_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    telemetry = new_telemetry()
    telemetry.info("X", name="n", level="l", module="m", service="s")

    (line,) = log_lines(capsys)
    assert line["location"].startswith("test_reserved_log_keys")
    assert (line["name_"], line["level_"], line["module_"], line["service_"]) == ("n", "l", "m", "s")
    assert line["level"] == "INFO"


def test_hostile_text_is_escaped_on_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    telemetry = new_telemetry()
    hostile = '\ud800 \x00 \u202e \x1b[31m\n{"level":"ERROR","message":"forged"}'

    telemetry.info("X", detail=hostile)

    out = capsys.readouterr().out
    assert out.isascii()
    assert len(out.splitlines()) == 1
    assert json.loads(out)["detail"] == hostile


def test_bug_is_logged_with_its_stack(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = new_telemetry()
    telemetry.exception("CallFailed", ZeroDivisionError("a bug"), milliseconds=3)

    (line,) = log_lines(capsys)
    assert (line["level"], line["exception_name"], line["milliseconds"]) == ("ERROR", "ZeroDivisionError", 3)


def test_metric_is_an_emf_line_with_declared_dimensions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "evenkeel")
    telemetry = new_telemetry()
    telemetry.count("Heartbeat", function="sweep_fleet")
    telemetry.seconds("DetectedToCordoned", 3.5)

    beat, cordoned = log_lines(capsys)
    (directive,) = beat["_aws"]["CloudWatchMetrics"]
    assert directive["Namespace"] == "Evenkeel"
    assert directive["Dimensions"] == [["Fleet", "Function"]]
    assert directive["Metrics"] == [{"Name": "Heartbeat", "Unit": "Count"}]
    assert (beat["Fleet"], beat["Function"], beat["Heartbeat"]) == ("research", "sweep_fleet", [1.0])
    assert cordoned["_aws"]["CloudWatchMetrics"][0]["Metrics"] == [{"Name": "DetectedToCordoned", "Unit": "Seconds"}]


def test_undeclared_metric_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = new_telemetry()

    with pytest.raises(UndeclaredMetric, match="not declared"):
        telemetry.count("Hartbeat", function="sweep_fleet")
    with pytest.raises(UndeclaredMetric, match="dimensions"):
        telemetry.count("Heartbeat")
    with pytest.raises(UndeclaredMetric, match="declared in Count"):
        telemetry.seconds("Heartbeat", 1.0, function="sweep_fleet")
    assert capsys.readouterr().out == ""
