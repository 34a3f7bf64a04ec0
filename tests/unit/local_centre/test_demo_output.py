"""The demo ends with a summary, the count of shortened timings, and the next commands."""

from datetime import UTC, datetime
from typing import Any

import pytest

from evenkeel_local import PROJECT, demo
from evenkeel_local.demo import DemoOutput

FAULT = datetime(2026, 11, 3, 10, 0, tzinfo=UTC)
RESUMED_ATTEMPT = {
    "attempt": 2,
    "runningAt": "2026-11-03T10:00:09.5Z",
    "resumeFrom": {"step": 15, "attempt": 1},
}


def an_incident_document(**stages: str) -> dict[str, Any]:
    return {"node": {"name": "hyperpod-i-0123456789abcdef0"}, "stages": stages}


def print_summary(incident: dict[str, Any], attempt: dict[str, Any], *, is_proven: bool = True) -> None:
    demo._print_summary(DemoOutput(), FAULT, 21, {"attempts": [attempt]}, incident, is_proven=is_proven)


def test_summary_states_each_time_after_the_fault(capsys: pytest.CaptureFixture[str]) -> None:
    incident = an_incident_document(cordonedAt="2026-11-03T10:00:01.25Z", returnedAt="2026-11-03T10:00:31Z")

    print_summary(incident, RESUMED_ATTEMPT)

    assert capsys.readouterr().out.splitlines() == [
        "",
        "── What happened",
        "  A GPU of …bcdef0 failed at step 21. Evenkeel cordoned it after 1.2 s.",
        "  The job ran again after 9.5 s, from step 15 of attempt 1, checksums verified.",
        "  The node was replaced, validated and back in service after 31.0 s.",
        "  The final weights equal the weights of a run without the fault.",
    ]


def test_summary_claims_nothing_that_was_not_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(an_incident_document(), {"attempt": 2}, is_proven=False)

    printed = capsys.readouterr().out
    assert printed.count("at an unknown time") == 3
    assert "from step 0" in printed
    assert "A check above failed." in printed
    assert "equal" not in printed


@pytest.mark.parametrize("is_verbose", [False, True])
def test_shortened_timings_are_counted_and_listed_on_demand(
    is_verbose: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    demo._print_shortened_timings(DemoOutput(is_verbose=is_verbose))

    printed = capsys.readouterr().out
    listed = [line for line in printed.splitlines() if "instead of" in line]
    words = " ".join(printed.split())
    assert "AWS publishes about 940 s on p5.48xlarge." in words
    assert "make demo VERBOSE=1 lists them." in words
    assert bool(listed) is is_verbose
    if is_verbose:
        assert f"{len(listed)} other waits are also shorter than in production." in words
        for line in listed:
            local_value, production_value = line.replace(",", "").split()[1], line.replace(",", "").split()[-1]
            assert float(local_value) != float(production_value), line


def test_step_breaks_no_word_at_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = "submitted job-56bjjmxa5s, which saves checkpoints to s3://evenkeel-checkpoints/demo"

    DemoOutput().step(text)

    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).split()[1:] == text.split()


def test_next_commands_name_what_exists(capsys: pytest.CaptureFixture[str]) -> None:
    demo._print_next_commands(DemoOutput())

    commands = [line.split("  ")[0] for line in map(str.strip, capsys.readouterr().out.splitlines()[2:])]
    assert commands == ["make dev", ".venv/bin/evenkeel console", "docs/start.md"]
    assert (PROJECT / "docs" / "start.md").is_file()
    assert "\ndev:" in (PROJECT / "Makefile").read_text("utf-8")
