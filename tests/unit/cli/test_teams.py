"""Teams on the command line: set-up from every file format, tables, and changes to their jobs."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.api.gateway import ACCOUNT, ROOT
from tests.unit.api.seeds import store_fleet_counts
from tests.unit.api.test_teams import store_charge, store_nodes, store_unreadable_charge
from tests.unit.cli.conftest import CliFixture

TEAM = f"""
name: nlp
queue:
  cohort: research
  groups: [{{ml.p5.48xlarge: {{nvidia.com/gpu: 16}}}}]
  preemption: {{within: LowerPriority, reclaim: Any}}
members:
  - {{principal: "arn:aws:iam::{ACCOUNT}:role/Researcher", role: lead}}
namespace: nlp
budgets: [{{period: month, gpuHours: 2000000, usd: 6000}}]
"""
QUOTAS = """
queues:
  - {name: nlp, cohort: research, groups: [{ml.p5.48xlarge: {nvidia.com/gpu: 24}}]}
  - {name: vision, cohort: research, groups: [{ml.p5.48xlarge: {nvidia.com/gpu: 8}}]}
priorityClasses: {high: 100, low: 0}
"""
HYPERPOD: dict[str, Any] = {
    "ComputeQuotas": [
        {
            "Name": "nlp-quota",
            "ComputeQuotaTarget": {"TeamName": "nlp", "FairShareWeight": 50},
            "ComputeQuotaConfig": {"ComputeQuotaResources": [{"InstanceType": "ml.p5.48xlarge", "Count": 2}]},
        }
    ],
    "SchedulerConfig": {"PriorityClasses": [{"Name": "high", "Weight": 90}], "FairShare": "Enabled"},
    "Name": "policy",
}


def write_file(cli: CliFixture, text: str, name: str = "teams.yaml") -> str:
    (cli.folder / name).write_text(text, encoding="utf-8")
    return name


def apply_files(cli: CliFixture, *files: str, more: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    words = [word for file in files for word in ("-f", file)]
    result = cli.run("teams", "apply", *words, "--reason", "the quarter's plan", "-o", "json", *more)
    assert result.exit_code == 0, result.err
    items: list[dict[str, Any]] = json.loads(result.out)["items"]
    return items


def test_team_is_set_up_once_and_shown(cli: CliFixture) -> None:
    file = write_file(cli, TEAM)

    first, repeated_result = apply_files(cli, file), apply_files(cli, file)
    result = cli.run("teams", "show", "nlp", terminal=True)

    assert (first[0]["version"], repeated_result[0]["version"], repeated_result[0]["changes"]) == (1, 1, [])
    assert result.out.splitlines()[0] == "nlp  version 1"
    assert "2000000 GPU-hours and $6,000.00 a month" in result.out
    assert f"arn:aws:iam::{ACCOUNT}:role/Researcher (lead)" in result.out


def test_quota_file_changes_queues_and_keeps_members(cli: CliFixture) -> None:
    apply_files(cli, write_file(cli, TEAM))

    items = apply_files(cli, write_file(cli, QUOTAS, "quotas.yaml"))

    assert [(item["name"], item["version"]) for item in items] == [("", 1), ("nlp", 2), ("vision", 1)]
    assert items[1]["changes"] == ["queue"]
    team = json.loads(cli.run("teams", "show", "nlp", "-o", "json").out)["team"]
    assert team["queue"]["groups"][0]["ml.p5.48xlarge"]["nvidia.com/gpu"]["nominal"] == "24"
    assert team["members"][0]["role"] == "lead"


def test_imported_hyperpod_quotas_are_applied(cli: CliFixture) -> None:
    source = write_file(cli, json.dumps(HYPERPOD), "hyperpod.json")
    imported = write_file(cli, cli.run("quota", "import", source).out, "imported.json")

    items = apply_files(cli, imported)

    assert [item["name"] for item in items] == ["", "nlp"]
    team = cli.gateway.get("/v1/teams/nlp/quota").document["team"]
    assert (team["namespace"], team["queue"]["weight"]) == ("hyperpod-ns-nlp", 50)
    (line,) = cli.gateway.get("/v1/teams").document["items"]
    assert line["accelerators"]["allocated"] == 16


def test_quota_dry_run_changes_nothing(cli: CliFixture) -> None:
    items = apply_files(cli, write_file(cli, TEAM), more=("--dry-run",))

    assert items[0]["changes"]
    assert cli.gateway.get("/v1/teams/nlp/quota").status == 404


def test_team_file_of_an_older_version_is_refused(cli: CliFixture) -> None:
    apply_files(cli, write_file(cli, TEAM))
    read = json.loads(cli.run("teams", "show", "nlp", "-o", "json").out)
    apply_files(cli, write_file(cli, QUOTAS, "quotas.yaml"))
    read["team"]["namespace"] = "language"

    result = cli.run("teams", "apply", "-f", write_file(cli, json.dumps(read), "old.json"), "--reason", "x")

    assert (result.exit_code, "STALE_VERSION" in result.err) == (5, True)


@pytest.mark.parametrize(
    "text",
    [
        *("[1, 2", "name: nlp\nqueue: {groups: [{a: {gpu: many}}]}", "name: nlp\nqueue: {}\nmembrs: []"),
        *("name: nlp\nqueue: {}\nnamespace: kube-system", "name: nlp\nqueue: {}\nimages: ['registry*']"),
        "name: nlp\nqueue: {}\nnamespace: a\n---\nname: vision\nqueue: {}\nnamespace: a",
        "name: nlp\nqueue: {}\nnamespace: a\n---\nname: vision\nqueue: {}",
    ],
)
def test_invalid_team_file_exits_2(cli: CliFixture, text: str) -> None:
    result = cli.run("teams", "apply", "-f", write_file(cli, text), "--reason", "x", "--dry-run")

    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no document declares a team"),
        ("[]", "no document declares a team"),
        ("team: {name: nlp}\n---\nteam: {name: nlp}", "team nlp: is declared twice"),
        ("name: nlp\nqueue: {}\n---\nteam: {name: nlp}", "team nlp: is declared twice"),
        ("quotas: {}\n---\nquotas: {}", "quotas: are declared twice"),
        ("team: 3", "team: must be an object, not 3"),
        ("quotas: []", "quotas: must be an object, not a list"),
        ("teams: [nlp]", "is neither a Kueue manifest"),
    ],
)
def test_refused_team_file_names_problem_and_page(cli: CliFixture, text: str, problem: str) -> None:
    result = cli.run("teams", "apply", "-f", write_file(cli, text), "--reason", "x")

    assert (result.exit_code, result.out) == (2, "")
    assert f"teams.yaml: {problem}" in result.err
    assert "docs/operate/teams.md" in result.err


def test_team_is_removed_with_reason(cli: CliFixture) -> None:
    apply_files(cli, write_file(cli, QUOTAS, "quotas.yaml"))
    result = cli.run("teams", "remove", "vision", "--reason", "merged & gone", terminal=True)
    repeated_result = cli.run("teams", "remove", "vision", "--reason", "x")

    assert (result.out, result.exit_code, repeated_result.exit_code) == ("● vision  removed\n", 0, 4)


def test_team_table_shows_use_and_quota(cli: CliFixture) -> None:
    apply_files(cli, write_file(cli, TEAM), write_file(cli, QUOTAS.replace("24", "16"), "quotas.yaml"))
    store_charge(cli.gateway, "job-1", "nlp", 20)

    assert cli.run("teams", "ls", terminal=True).out == (
        "TEAM    QUOTA  USED  BORROWED  LENT   UTIL  RUN  PEND\n"
        "nlp        16    20         4     0  125 %    1     0\n"
        "vision      8     0         0     4    0 %    0     0\n"
    )
    assert cli.run("teams", "quota", "vision", terminal=True).out == (
        "FLAVOR          RESOURCE        QUOTA  USED  BORROWED  LENT  UTIL\n"
        "ml.p5.48xlarge  nvidia.com/gpu      8     0         0     4   0 %\n"
    )
    store_fleet_counts(cli.gateway.fakes)
    status = cli.run("status", terminal=True).out
    assert "TEAMS   nlp     20 of 16 GPUs  125%  4 borrowed\n        vision  0 of 8 GPUs  0%  4 lent\n" in status
    assert cli.run("teams", "quota", "speech").exit_code == 4


def test_team_table_warns_of_unreadable_charge(cli: CliFixture) -> None:
    store_charge(cli.gateway, "job-1", "nlp", 8)
    store_unreadable_charge(cli.gateway)

    result = cli.run("teams", "ls")

    assert (result.exit_code, "nlp" in result.out) == (0, True)
    assert "1 charge cannot be read: the use of teams is a lower bound." in result.err


def test_job_is_suspended_resumed_and_reprioritised(cli: CliFixture) -> None:
    apply_files(cli, write_file(cli, TEAM), write_file(cli, QUOTAS, "quotas.yaml"))
    job_options = ["--name", "x", "--image", "i:1", "--", "train"]
    job_id = cli.run("jobs", "submit", "-o", "name", *job_options).out.strip()

    suspended = cli.run("jobs", "suspend", job_id, "--reason", "a look", "--yes", terminal=True)
    shown_result = cli.run("jobs", "ls", terminal=True)
    resumed = cli.run("jobs", "resume", "x", terminal=True)
    ranked = cli.run("jobs", "priority", "x", "high", "--yes", terminal=True)

    assert suspended.out == f"· {job_id}  suspended\nnext  evenkeel jobs resume {job_id}\n"
    assert "suspended" in shown_result.out
    assert resumed.out.startswith(f"○ {job_id}  pending\n")
    assert ranked.out.startswith(f"○ {job_id}  class high\n")
    assert job_id in cli.run("jobs", "ls", "--class", "high", "-o", "name").out
    assert cli.run("jobs", "ls", "--class", "(unset)", "-o", "name").out == ""


def test_job_plan_is_shown_without_submitting_the_job(cli: CliFixture) -> None:
    store_nodes(cli.gateway, 2)
    job_options = ["--name", "x", "--image", "i:1", "--nodes", "2", "--", "train"]

    result = cli.run("jobs", "plan", *job_options, terminal=True)
    impossible_plan = cli.run("jobs", "plan", "--gpus-per-node", "64", *job_options, terminal=True)

    assert result.out.startswith("● would start, team default, position 1 in its queue\n")
    assert "● p5-workers  committed" in result.out
    assert "p5-workers is already paid for and has free nodes." in result.out
    assert (impossible_plan.exit_code, "--gpus-per-node: The job can never start" in impossible_plan.err) == (2, True)
    assert json.loads(cli.run("jobs", "ls", "-o", "json").out)["items"] == []


def test_applied_changes_fit_the_terminal(cli: CliFixture) -> None:
    file = write_file(cli, TEAM)

    result = cli.run("teams", "apply", "-f", file, "--reason", "the quarter's plan", terminal=True)

    assert result.out.splitlines()[0].startswith("● nlp  set, version 1: allowed, ")
    assert max(map(len, result.out.splitlines())) <= 80


def test_missing_team_file_is_named(cli: CliFixture, tmp_path: Path) -> None:
    result = cli.run("teams", "apply", "-f", str(tmp_path / "none.yaml"), "--reason", "x")

    assert (result.exit_code, "none.yaml" in result.err) == (2, True)


def test_readme_teams_and_jobs_are_accepted(cli: CliFixture) -> None:
    examples = ROOT / "docs" / "examples" / "teams"

    items = apply_files(cli, str(examples / "teams.yaml"))
    team = json.loads(cli.run("teams", "show", "red", "-o", "json").out)["team"]
    member = team["members"][0]["principal"].replace(":user/operator", ":role/Researcher")
    cli.gateway.call(
        "PUT",
        "/v1/teams/red/quota",
        {"team": team | {"members": [{"principal": member, "role": "lead"}]}, "reason": "the test's own caller"},
        headers={"If-Match": '"1"'},
    )
    results = [cli.run("jobs", "submit", str(examples / f"{name}.json"), "-o", "name") for name in ("low", "high")]

    assert [item["name"] for item in items] == ["", "red"]
    assert [(result.exit_code, result.err) for result in results] == [(0, "")] * 2
