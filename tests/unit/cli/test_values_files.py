"""A values file of a Helm chart: linted and imported without a fleet."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from evenkeel.domain.jobs.imported_types import import_values
from evenkeel.domain.jobs.job_types import with_defaults
from evenkeel.domain.jobs.read_helm_values import read_helm_values
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.jobs.templates import ValuesError
from evenkeel.domain.policy import Policy, changed
from evenkeel.domain.quotas.permissions import check_permitted
from evenkeel.domain.quotas.teams import TeamSetup
from tests.unit.cli.conftest import CliFixture

FILE = Path(__file__).resolve().parents[2] / "fixtures" / "values" / "hybrid.yaml"


def write_values_file(cli: CliFixture, **changes: Any) -> str:
    document = yaml.safe_load(FILE.read_text("utf-8")) | changes
    (cli.folder / "values.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return "values.yaml"


def test_lint_reports_every_problem_and_exits_1_on_errors(cli: CliFixture) -> None:
    result = cli.run("policy", "lint", str(FILE), "-o", "json")

    document = json.loads(result.out)
    assert (result.exit_code, document["refused"]) == (1, 1)
    assert {finding["trap"] for finding in document["findings"]} == {f"T0-{number}" for number in range(1, 15)}
    (refused,) = (finding for finding in document["findings"] if finding["weight"] == "refused")
    assert (refused["trap"], refused["field"]) == ("T0-2", "env.CUDA_VISIBLE_DEVICES")


def test_lint_reads_the_values_file_of_the_current_folder(cli: CliFixture) -> None:
    write_values_file(cli, env={"NCCL_DEBUG": "INFO"})

    result = cli.run("policy", "lint", terminal=True)

    assert result.exit_code == 0
    assert "jobTemplates.production.nodeSelector" in result.out
    assert "20 findings: 5 changed, 5 note, 10 warning" in result.out


def test_invalid_values_file_exits_1_and_names_the_field(cli: CliFixture) -> None:
    name = write_values_file(cli, jobType="prodution")

    for verb in ("lint", "import"):
        result = cli.run("policy", verb, name)
        assert (result.exit_code, "jobType: there is no template 'prodution'" in result.err) == (1, True)


def test_imported_values_file_can_be_applied(cli: CliFixture) -> None:
    result = cli.run("policy", "import", str(FILE), "--into", "ours", terminal=True)
    checked = cli.run("policy", "check", "ours/policy.json")

    assert (result.exit_code, checked.exit_code) == (0, 0)
    policy = changed(Policy(), json.loads((cli.folder / "ours" / "policy.json").read_text("utf-8")))
    job = with_defaults(JobSpec(name="a", job_type="production"), policy.job_types)
    assert (job.priority_class, job.accelerators_per_node, job.max_restarts) == ("critical", 8, 3)
    assert [choice.name for choice in job.pools] == ["hyperpod", "eksDemand"]
    assert job.env == {"NCCL_DEBUG": "INFO"}
    quotas = json.loads((cli.folder / "ours" / "quotas.json").read_text("utf-8"))
    assert quotas["priorityClasses"]["preemptible"] == 200_000
    classes = json.loads((cli.folder / "ours" / "priority-classes.json").read_text("utf-8"))["items"]
    assert {priority_class["metadata"]["name"]: priority_class["value"] for priority_class in classes} == quotas[
        "priorityClasses"
    ]
    for priority_class in classes:
        kubernetes_validate.validate(priority_class, "1.33", strict=True)
    assert [(volume.claim, volume.mount_path, volume.read_only) for volume in job.volumes] == [
        ("training-data-pvc", "/data", True)
    ]
    in_cluster = with_defaults(
        JobSpec(name="a", job_type="production", checkpoint_uri="file:///fsx/a"), policy.job_types
    )
    assert in_cluster.checkpoint_claim == "model-checkpoints-pvc"
    assert check_permitted(in_cluster, TeamSetup(), ["critical"], policy.jobs.allowed) == ()
    assert "lost: modelType: " in result.err
    assert "added: training-data-pvc is mounted read-only at /data" in result.err


def test_imported_job_type_tolerates_the_taints_of_its_pools(cli: CliFixture) -> None:
    document = json.loads(cli.run("policy", "import", str(FILE), "-o", "json").out)

    types = document["policy"]["jobTypes"]["types"]
    tolerated_keys = {name: [toleration["key"] for toleration in row["tolerations"]] for name, row in types.items()}
    assert tolerated_keys == {
        "production": ["dedicated"],
        "development": ["dedicated"],
        "research": ["spot", "dedicated"],
    }
    assert not (cli.folder / "policy.json").exists()


def leaf_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inner_leaves = [leaf for name, item in pairs for leaf in leaf_paths(item, (*path, name))]
    yield from inner_leaves or [path]


def other_value(value: Any) -> Any:
    """Return another valid value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if value in ("", None, {}, []):
        return "other"
    return (
        f"{int(value[:-2]) + 1}Gi" if value.endswith("Gi") else str(int(value) + 1) if value.isdigit() else f"{value}-2"
    )


VALUES = yaml.safe_load(FILE.read_text("utf-8")) | {
    "graceSeconds": 60,
    "checkpointSeconds": 300,
    "imagePullSecrets": [{"name": "registry"}],
    "sidecar": {"image": "proxy:1"},
}


@pytest.mark.parametrize("path", list(leaf_paths(VALUES)), ids=lambda path: ".".join(map(str, path)))
def test_each_value_is_imported_or_reported_as_lost(path: tuple[Any, ...]) -> None:
    changed_values = copy.deepcopy(VALUES)
    parent = changed_values
    for name in path[:-1]:
        parent = parent[name]
    before = parent[path[-1]]
    parent[path[-1]] = {"team": "a"} if before == {} else ["a"] if before == [] else other_value(before)

    try:
        imported = [import_values(read_helm_values(values)) for values in (VALUES, changed_values)]
    except ValuesError:
        return  # the setting names another part of the file, such as a pool's label

    documents = [values_import.replace(losses=(), additions=()).to_json() for values_import in imported]
    field = ".".join(map(str, path))
    assert documents[0] != documents[1] or any(
        loss.startswith(field) for values_import in imported for loss in values_import.losses
    )


def test_import_of_values_keeps_claims_that_the_policy_allows(cli: CliFixture) -> None:
    allowed = {"claims": [{"name": "training-data-pvc", "maxMode": "read-write"}], "maxScratchGib": 5}
    document = {"jobs": {"keepWorkloadSeconds": 60, "allowed": allowed}}
    (cli.folder / "policy.json").write_text(json.dumps(document), encoding="utf-8")

    result = cli.run("policy", "import", str(FILE), "--onto", "policy.json", "-o", "json")

    jobs = json.loads(result.out)["policy"]["jobs"]
    assert (jobs["keepWorkloadSeconds"], jobs["allowed"]["maxScratchGib"]) == (60, 5)
    assert jobs["allowed"]["claims"] == [
        {"name": "training-data-pvc", "maxMode": "read-write"},
        {"name": "model-checkpoints-pvc", "maxMode": "read-write"},
    ]


def test_import_overwrites_no_other_policy_field(cli: CliFixture) -> None:
    (cli.folder / "policy.json").write_text('{"repair": {"maxAttempts": 2}}', encoding="utf-8")

    refusal = cli.run("policy", "import", str(FILE))
    forced = cli.run("policy", "import", str(FILE), "--onto", "policy.json", "--force")

    assert (refusal.exit_code, forced.exit_code) == (2, 0)
    policy = json.loads((cli.folder / "policy.json").read_text("utf-8"))
    assert (policy["repair"], sorted(policy)) == ({"maxAttempts": 2}, ["jobTypes", "jobs", "repair"])


def test_template_without_a_matching_pool_is_refused(cli: CliFixture) -> None:
    pools = {"spot": {"enabled": False, "labels": {"node-type": "eks-spot"}}}
    template = {"priorityClassName": "low", "nodeSelector": {"node-type": "eks-spot"}}
    name = write_values_file(cli, nodeSelectors=pools, jobTemplates={"development": template})

    linted = cli.run("policy", "lint", name)
    refusal = cli.run("policy", "import", name)

    assert (linted.exit_code, refusal.exit_code) == (1, 1)
    assert "jobTemplates.development.nodeSelector: every pool that it could use is switched off" in refusal.err
