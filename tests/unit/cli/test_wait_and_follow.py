"""Commands that run for a long time: credentials expire, the API is unreachable for a while, jobs change state."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from evenkeel.ports import LaunchSpec
from tests.fakes.cluster import LOG_TIME
from tests.unit.api.gateway import ApiResponse, Gateway
from tests.unit.api.seeds import a_job, an_attempt, store, store_heartbeats
from tests.unit.cli.conftest import CliFixture

FAILED_POLL = [ApiResponse(503, {}, '{"code": "UNAVAILABLE", "detail": "Not now."}')] * 3
"""Answers that make one poll fail, with all its retries."""


def store_job(cli: CliFixture, state: str, attempt: int = 1, *, ended: int = 0, log: str = "") -> None:
    """Store a job in this state with ended attempts, and the log of its latest attempt."""
    cli.gateway = Gateway()
    store_heartbeats(cli.gateway.fakes.ledger)
    job = a_job(1, state=state, current_attempt=attempt, reason="So it is.")
    attempts = [an_attempt(job, n, ended_at=job.submitted_at if n <= ended else None) for n in range(1, attempt + 1)]
    store(cli.gateway.fakes.ledger, job, *attempts)
    if log:
        cluster = cli.gateway.fakes.cluster
        cluster.launch(LaunchSpec(job.spec, attempts[-1], "", "trainer"))
        cluster.text[f"{job.job_id}-a{attempt}-0"] = log


def run_between_polls(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
    """Run one step between two polls, in place of the pause."""
    ahead = iter(steps)
    monkeypatch.setattr("time.sleep", lambda _seconds: next(ahead)())


# ---------------------------------------------------------------- credentials


def sign_with_expiring_keys(cli: CliFixture, monkeypatch: pytest.MonkeyPatch, *, at_most: int) -> None:
    """Sign with keys that expire in five minutes, so that botocore refreshes them at each request."""
    cli.write_context({name: value for name, value in cli.context.items() if name != "credentials"})
    ends = f"{datetime.now(UTC) + timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}"
    script, config = cli.folder / "lease.sh", cli.folder / "aws.ini"
    script.write_text(
        f"""echo x >> leases; number=$(($(wc -l < leases))); test $number -le {at_most} || exit 1
        echo '{{"Version": 1, "AccessKeyId": "AKIA'$number'", "SecretAccessKey": "x", "SessionToken": "t",'
        echo '"Expiration": "{ends}"}}'
        """,
        encoding="utf-8",
    )
    config.write_text(f"[profile site]\ncredential_process = sh {script}\n", encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("EVENKEEL_PROFILE", "site")


def test_expiring_credentials_are_refreshed_between_requests(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_with_expiring_keys(cli, monkeypatch, at_most=10)
    store(cli.gateway.fakes.ledger, a_job(1))

    result = cli.run("jobs", "show", "llama-1")

    keys = [re.findall(r"Credential=(\w+)/", headers["Authorization"])[0] for _, _, headers in cli.requests]
    assert (result.exit_code, len(keys), len(set(keys))) == (0, 2, 2)


def test_failed_refresh_of_credentials_ends_the_command(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_with_expiring_keys(cli, monkeypatch, at_most=2)
    store(cli.gateway.fakes.ledger, a_job(1))

    result = cli.run("jobs", "show", "llama-1")

    assert (len(cli.requests), result.exit_code, "[BAD_CREDENTIALS]" in result.err) == (1, 6, True)


# ---------------------------------------------------------------- waiting


def test_wait_survives_an_unreachable_api(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    store_job(cli, "RUNNING")
    fail_one_poll, finish_job = (lambda: cli.next_answers.extend(FAILED_POLL), lambda: store_job(cli, "SUCCEEDED"))
    run_between_polls(monkeypatch, fail_one_poll, fail_one_poll, finish_job)

    result = cli.run("jobs", "wait", "job-0000000001")

    assert (result.exit_code, result.out) == (0, "● job-0000000001  succeeded  So it is.\n")
    assert result.err.splitlines() == [
        "job-0000000001  running, attempt 1  So it is.",
        "Not now: retrying until the API answers.",
    ]


def test_wait_prints_progress_at_intervals(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    store_job(cli, "RUNNING", log="step 10/100 loss: 0.5")
    still = [lambda step=step: store_job(cli, "RUNNING", log=f"step {step}/100 loss: 0.5") for step in range(11, 16)]
    run_between_polls(monkeypatch, *still, lambda: store_job(cli, "SUCCEEDED"))

    result = cli.run("jobs", "wait", "job-0000000001")

    assert result.err.splitlines()[1:] == [
        "job-0000000001  running, attempt 1  step 12 of 100, loss 0.5, time left unknown",
        "job-0000000001  running, attempt 1  step 14 of 100, loss 0.5, about 1h40m left",
    ]


def test_wait_for_an_unreachable_api_ends_at_its_timeout(cli: CliFixture) -> None:
    cli.next_answers = [*FAILED_POLL]

    result = cli.run("jobs", "wait", "job-0000000001", "--timeout", "0")

    assert result.exit_code == 124
    assert "job-0000000001 cannot be read (last known state: none) after 0s. [TIMEOUT]" in result.err


# ---------------------------------------------------------------- watching


def test_watch_shows_progress_until_the_job_ends(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    store_job(cli, "RUNNING", log="step 10/100 loss: 0.5")
    run_between_polls(monkeypatch, lambda: store_job(cli, "RUNNING", log="no words"), lambda: store_job(cli, "FAILED"))

    result = cli.run("jobs", "watch", "job-0000000001")

    assert result.exit_code == 3
    assert re.findall(r"progress .*", result.out) == [
        "progress  step 10 of 100, loss 0.5, time left unknown",
        "progress  step unknown, loss unknown, time left unknown",
    ]
    assert any(line.startswith("  nodes") for line in result.out.splitlines())


def test_watched_job_as_json_has_null_for_unknown(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    store_job(cli, "PENDING", 0)
    run_between_polls(monkeypatch, lambda: store_job(cli, "SUCCEEDED"))

    result = cli.run("jobs", "watch", "job-0000000001", "-o", "json")

    documents = [json.loads(line) for line in result.out.splitlines()]
    assert [document["job"]["state"] for document in documents] == ["PENDING", "SUCCEEDED"]
    assert documents[0]["progress"] == {"step": None, "steps": None, "loss": None, "secondsLeft": None}


def test_stopped_watch_says_that_the_job_continues(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    store_job(cli, "RUNNING")

    def interrupt() -> None:
        raise KeyboardInterrupt

    run_between_polls(monkeypatch, interrupt)

    result = cli.run("jobs", "watch", "job-0000000001")

    assert result.exit_code == 130
    assert result.err == "✖ Stopped watching. The job continues.\n  evenkeel jobs watch job-0000000001\n"


# ---------------------------------------------------------------- logs


@pytest.mark.parametrize("follow", [(), ("-f",)], ids=["once", "followed"])
def test_log_lines_of_all_ranks_begin_with_their_rank(cli: CliFixture, follow: tuple[str, ...]) -> None:
    store_job(cli, "SUCCEEDED", log="a\nb")
    cli.gateway.fakes.cluster.text["job-0000000001-a1-1"] = "c"

    result = cli.run("jobs", "logs", "job-0000000001", "--all-ranks", *follow)

    assert (result.exit_code, result.err, result.out) == (0, "", "[0] a\n[0] b\n[1] c\n")


@pytest.mark.parametrize("follow", [(), ("-f",)], ids=["once", "followed"])
def test_rank_without_a_log_hides_no_other_rank(cli: CliFixture, follow: tuple[str, ...]) -> None:
    store_job(cli, "FAILED", ended=1, log="a")
    cluster = cli.gateway.fakes.cluster
    del cluster.launched("job-0000000001", 1).pods[0]
    cluster.text["job-0000000001-a1-1"] = "c"

    result = cli.run("jobs", "logs", "job-0000000001", "--all-ranks", *follow)

    assert (result.exit_code, result.out) == (0, "[1] c\n")
    assert "Rank 0 of job-0000000001-a1 has no pod and no kept log." in result.err


def test_job_without_any_log_ends_with_not_found(cli: CliFixture) -> None:
    store_job(cli, "FAILED", ended=1)

    result = cli.run("jobs", "logs", "job-0000000001", "--all-ranks")

    assert (result.exit_code, result.out) == (4, "")
    assert "Rank 1 of job-0000000001-a1 has no pod and no kept log." in result.err


@pytest.mark.parametrize("follow", [(), ("-f",)], ids=["once", "followed"])
def test_log_lines_begin_with_timestamps_on_request(cli: CliFixture, follow: tuple[str, ...]) -> None:
    store_job(cli, "SUCCEEDED", log="a\nb")

    result = cli.run("jobs", "logs", "job-0000000001", "--timestamps", *follow)

    assert (result.exit_code, result.out) == (0, f"{LOG_TIME} a\n{LOG_TIME} b\n")


def test_followed_log_continues_with_the_next_attempt(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    store_job(cli, "RUNNING", 1, log="0\na\nb")
    run_between_polls(
        monkeypatch,
        lambda: store_job(cli, "PENDING", 1, ended=1),
        lambda: cli.next_answers.extend(FAILED_POLL),
        lambda: store_job(cli, "RUNNING", 2, ended=1, log="\n".join(map(str, range(300)))),
        lambda: store_job(cli, "SUCCEEDED", 2, ended=2, log="\n".join(map(str, range(302)))),
    )

    result = cli.run("jobs", "logs", "-f", "job-0000000001", "--tail", "1")

    assert (result.exit_code, result.out.splitlines()) == (0, ["b", *map(str, range(302))])
    assert result.err.splitlines() == [
        "Not now: retrying until the API answers.",
        "Attempt 2 of job-0000000001, from its beginning:",
    ]


def test_following_a_log_waits_for_the_first_attempt(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    store_job(cli, "PENDING", 0)
    run_between_polls(
        monkeypatch,
        lambda: store_job(cli, "RUNNING", log="a\nb"),
        lambda: store_job(cli, "FAILED", ended=1),
    )

    result = cli.run("jobs", "logs", "-f", "job-0000000001", "--tail", "1")

    assert (result.exit_code, result.out, result.err) == (
        0,
        "a\nb\n",
        "job-0000000001 has no log yet. Waiting for its first line.\n",
    )


def test_following_one_attempt_ends_with_it(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    store_job(cli, "RUNNING", log="a")
    run_between_polls(monkeypatch, lambda: store_job(cli, "STARTING", 2, ended=1))

    result = cli.run("jobs", "logs", "-f", "job-0000000001", "--attempt", "1")

    assert (result.exit_code, result.out) == (0, "a\n")


def test_following_an_ended_job_without_a_log_exits_4(cli: CliFixture) -> None:
    store_job(cli, "FAILED", ended=1)

    assert cli.run("jobs", "logs", "-f", "job-0000000001").exit_code == 4
