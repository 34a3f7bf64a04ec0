"""Commands that go on for long: credentials that end, an API that is away for a while, jobs that move meanwhile."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from tests.unit.api.seeds import a_job, stored
from tests.unit.cli.conftest import Served

# ---------------------------------------------------------------- credentials


def signed_by_leases(served: Served, monkeypatch: pytest.MonkeyPatch, *, at_most: int) -> None:
    """Sign with keys that end in five minutes: so soon that botocore fetches another each time it is asked."""
    served.write_context({name: value for name, value in served.context.items() if name != "credentials"})
    ends = f"{datetime.now(UTC) + timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}"
    script, config = served.folder / "lease.sh", served.folder / "aws.ini"
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


def test_credentials_that_are_about_to_end_are_fetched_anew(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    signed_by_leases(served, monkeypatch, at_most=10)
    stored(served.gateway.fakes.ledger, a_job(1))

    said = served.run("jobs", "show", "llama-1")

    keys = [re.findall(r"Credential=(\w+)/", headers["Authorization"])[0] for _, _, headers in served.requests]
    assert (said.exit_code, len(keys), len(set(keys))) == (0, 2, 2)


def test_credentials_that_cannot_be_fetched_anew_end_the_command_plainly(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed_by_leases(served, monkeypatch, at_most=2)
    stored(served.gateway.fakes.ledger, a_job(1))

    said = served.run("jobs", "show", "llama-1")

    assert (len(served.requests), said.exit_code, "[BAD_CREDENTIALS]" in said.err) == (1, 6, True)
