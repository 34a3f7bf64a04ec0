"""A chart's values file, linted and imported without a fleet."""

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.jobs.types import with_defaults
from evenkeel.domain.policy import Policy, changed
from tests.unit.cli.conftest import CliFixture

FILE = Path(__file__).resolve().parents[2] / "fixtures" / "values" / "hybrid.yaml"


def with_values(served: CliFixture, **changes: Any) -> str:
    document = yaml.safe_load(FILE.read_text("utf-8")) | changes
    (served.folder / "values.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return "values.yaml"


def test_lint_names_every_problem_and_exits_1_on_errors(served: CliFixture) -> None:
    said = served.run("policy", "lint", str(FILE), "-o", "json")

    found = json.loads(said.out)
    assert (said.exit_code, found["refused"]) == (1, 1)
    assert {each["trap"] for each in found["findings"]} == {f"T0-{number}" for number in range(1, 15)}
    (refused,) = (each for each in found["findings"] if each["weight"] == "refused")
    assert (refused["trap"], refused["field"]) == ("T0-2", "env.CUDA_VISIBLE_DEVICES")


def test_lint_reads_the_file_of_the_current_folder(served: CliFixture) -> None:
    with_values(served, env={"NCCL_DEBUG": "INFO"})

    said = served.run("policy", "lint", terminal=True)

    assert said.exit_code == 0
    assert "jobTemplates.production.nodeSelector" in said.out
    assert "20 findings: 5 changed, 5 note, 10 warning" in said.out


def test_unreadable_file_exits_1_and_names_the_field(served: CliFixture) -> None:
    name = with_values(served, jobType="prodution")

    for verb in ("lint", "import"):
        said = served.run("policy", verb, name)
        assert (said.exit_code, "jobType: there is no template 'prodution'" in said.err) == (1, True)


def test_import_writes_a_file_that_apply_accepts(served: CliFixture) -> None:
    said = served.run("policy", "import", str(FILE), "--into", "ours", terminal=True)
    checked = served.run("policy", "check", "ours/policy.json")

    assert (said.exit_code, checked.exit_code) == (0, 0)
    policy = changed(Policy(), json.loads((served.folder / "ours" / "policy.json").read_text("utf-8")))
    job = with_defaults(JobSpec(name="a", job_type="production"), policy.job_types)
    assert (job.priority_class, job.accelerators_per_node, job.max_restarts) == ("critical", 8, 3)
    assert [choice.name for choice in job.pools] == ["hyperpod", "eksDemand"]
    assert job.env == {"NCCL_DEBUG": "INFO"}
    quotas = json.loads((served.folder / "ours" / "quotas.json").read_text("utf-8"))
    assert quotas["priorityClasses"]["preemptible"] == 200_000
    classes = json.loads((served.folder / "ours" / "priority-classes.json").read_text("utf-8"))["items"]
    assert {each["metadata"]["name"]: each["value"] for each in classes} == quotas["priorityClasses"]
    for each in classes:
        kubernetes_validate.validate(each, "1.33", strict=True)
    assert "lost: training-data-pvc" in said.err


def test_imported_type_tolerates_the_taints_of_its_pools(served: CliFixture) -> None:
    found = json.loads(served.run("policy", "import", str(FILE), "-o", "json").out)

    types = found["policy"]["jobTypes"]["types"]
    borne = {name: [each["key"] for each in row["tolerations"]] for name, row in types.items()}
    assert borne == {"production": ["dedicated"], "development": ["dedicated"], "research": ["spot", "dedicated"]}
    assert not (served.folder / "policy.json").exists()


def test_import_overwrites_no_other_policy_field(served: CliFixture) -> None:
    (served.folder / "policy.json").write_text('{"repair": {"maxAttempts": 2}}', encoding="utf-8")

    refused = served.run("policy", "import", str(FILE))
    forced = served.run("policy", "import", str(FILE), "--onto", "policy.json", "--force")

    assert (refused.exit_code, forced.exit_code) == (2, 0)
    policy = json.loads((served.folder / "policy.json").read_text("utf-8"))
    assert (policy["repair"], sorted(policy)) == ({"maxAttempts": 2}, ["jobTypes", "repair"])


def test_template_without_a_matching_pool_is_refused(served: CliFixture) -> None:
    pools = {"spot": {"enabled": False, "labels": {"node-type": "eks-spot"}}}
    template = {"priorityClassName": "low", "nodeSelector": {"node-type": "eks-spot"}}
    name = with_values(served, nodeSelectors=pools, jobTemplates={"development": template})

    linted = served.run("policy", "lint", name)
    refused = served.run("policy", "import", name)

    assert (linted.exit_code, refused.exit_code) == (1, 1)
    assert "jobTemplates.development.nodeSelector: every pool that it could use is switched off" in refused.err
