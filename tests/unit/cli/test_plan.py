"""`evenkeel plan` on files: the worked examples, every kind of document, and the messages for invalid ones."""

import contextlib
import io
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from evenkeel_cli.main import main
from tools.schemas import TARGET, schemas

Json = dict[str, Any]

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples" / "plan"

QUEUE = """
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: research}
spec:
  cohort: fleet
  namespaceSelector: {matchLabels: {team: research}}
  resourceGroups:
    - coveredResources: [cpu, memory, nvidia.com/gpu]
      flavors:
        - name: p5
          resources:
            - {name: cpu, nominalQuota: 96}
            - {name: memory, nominalQuota: 1Ti}
            - {name: nvidia.com/gpu, nominalQuota: 8, borrowingLimit: "0"}
---
{apiVersion: kueue.x-k8s.io/v1beta1, kind: ResourceFlavor, metadata: {name: p5}, spec: {nodeLabels: {type: p5}}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: main, namespace: lab}
spec: {clusterQueue: research}
---
{apiVersion: v1, kind: Namespace, metadata: {name: lab, labels: {team: research}}}
---
{apiVersion: kueue.x-k8s.io/v1beta1, kind: WorkloadPriorityClass, metadata: {name: urgent}, value: 1000}
"""


GPU = {"name": "c", "resources": {"requests": {"nvidia.com/gpu": 1}}}


def workload(name: str, spec: Json | None = None, status: Json | None = None, **pods: Any) -> Json:
    """Return a Kueue Workload of one pod set."""
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1500m", "nvidia.com/gpu": 1}}}
    template = {"spec": {"containers": [container], **pods}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "lab", "creationTimestamp": "2026-11-03T10:00:00Z"},
        "spec": {"queueName": "main", "podSets": [{"name": "main", "count": 4, "template": template}], **(spec or {})},
        "status": status or {},
    }


class PlanFiles:
    """Writes files into a folder, and runs the command on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def plan(self, *jobs: Json, quota: str = QUEUE, events: list[Json] | None = None, options: str = "") -> Json:
        code, out, error = self.run(*jobs, quota=quota, events=events, options=options)
        assert code == 0, error
        document: Json = json.loads(out)
        return document

    def run(
        self, *jobs: Json, quota: str = QUEUE, events: list[Json] | None = None, options: str = ""
    ) -> tuple[int, str, str]:
        (self.folder / "q.yaml").write_text(quota)
        (self.folder / "j.yaml").write_text(yaml.safe_dump_all(jobs) if jobs else "")
        words = ["plan", "--profile", "kueue", "--quota", str(self.folder / "q.yaml"), "-o", "json"]
        words += ["--jobs", str(self.folder / "j.yaml"), *options.split()]
        if events is not None:
            (self.folder / "e.yaml").write_text(yaml.safe_dump({"events": events}))
            words += ["--events", str(self.folder / "e.yaml")]
        return run_command(*words)


def run_command(*words: str) -> tuple[int, str, str]:
    """Run the command; return its exit code and what it wrote."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(words)
    return code, out.getvalue(), error.getvalue()


@pytest.fixture
def files(tmp_path: Path) -> PlanFiles:
    return PlanFiles(tmp_path)


def run_example(number: int, *options: str) -> Json:
    """Run one worked example."""
    name = EXAMPLES / f"x{number}"
    code, out, error = run_command(
        "plan",
        "--profile",
        "kueue",
        "--quota",
        f"{name}-quota.yaml",
        "--jobs",
        f"{name}-jobs.yaml",
        "-o",
        "json",
        *options,
    )
    assert (code, error) == (0, "")
    document: Json = json.loads(out)
    return document


def first_decisions(plan: Json) -> dict[str, Json]:
    """Return the first cycle's decisions by job."""
    return {decision["job"]: decision for decision in plan["cycles"][0]["decisions"]}


def victims(decision: Json) -> dict[str, str]:
    return {victim["job"]: victim["reason"] for victim in decision["victims"]}


# ---------------------------------------------------------------- the worked examples


def test_example_1_shares_capacity_up_and_down_a_quota_tree() -> None:
    queues = {queue["name"]: queue["quotas"][0] for queue in run_example(1)["end"]["queues"]}

    assert [queues[name]["potential"] for name in ("red", "blue", "green")] == ["24", "12", "17"]
    assert [queues[name]["available"] for name in ("red", "blue", "green")] == ["5", "2", "5"]
    assert queues["blue"]["borrowed"] == "2"


def test_example_2_borrows_on_the_first_flavor_without_further_search() -> None:
    (decision,) = run_example(2)["cycles"][0]["decisions"]

    assert (decision["result"], decision["level"]) == ("Admitted", 1)
    assert decision["podSets"][0]["flavors"]["gpu"] == {"flavor": "hp", "mode": "Fit", "level": 1, "tried": 0}


def test_example_3_reclaims_quota_from_the_fewest_jobs() -> None:
    document = run_example(3, "--events", str(EXAMPLES / "x3-events.yaml"))

    assert victims(first_decisions(document)["new"]) == {"b3": "InCohortReclamation"}
    assert [job["job"] for job in document["end"]["admitted"]] == ["b1", "b2", "new"]
    assert next(job for job in document["end"]["admitted"] if job["job"] == "new")["at"] == 100


def test_example_4_preempts_by_fair_shares() -> None:
    document = run_example(4, "--config", str(EXAMPLES / "x4-config.yaml"))

    assert victims(first_decisions(document)["new"]) == {"b4": "InCohortFairSharing", "b3": "InCohortFairSharing"}
    shares = {queue["name"]: queue["share"] for queue in document["end"]["queues"]}
    assert (shares["B"]["value"], shares["A"]["value"]) == (334, 0)
    assert shares["B"]["precise"] == pytest.approx(333.333, abs=0.001)


def test_example_5_admits_the_largest_size_that_fits() -> None:
    (decision,) = run_example(5)["cycles"][0]["decisions"]

    assert {pod_set["name"]: pod_set["count"] for pod_set in decision["podSets"]} == {"workers": 5, "eval": 3}
    assert decision["usage"] == [{"flavor": "hp", "resource": "gpu", "amount": "13"}]


def test_example_6_reserves_quota_for_a_blocked_queue_head() -> None:
    decisions = first_decisions(run_example(6))

    assert decisions["big"]["reserved"] == [{"flavor": "hp", "resource": "gpu", "amount": "6"}]
    assert (decisions["big"]["result"], decisions["big"]["requeue"]) == ("NoCandidates", "parked")
    assert (decisions["small"]["result"], decisions["small"]["requeue"]) == ("Skipped", "active")


# ---------------------------------------------------------------- Kueue's documents


def test_workload_usage_is_the_sum_of_pod_requests(files: PlanFiles) -> None:
    init = {"name": "i", "resources": {"requests": {"cpu": 5}}}
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"limits": {"cpu": "250m"}}}
    plan = files.plan(workload("a", initContainers=[sidecar, init], overhead={"memory": "64Mi"}))

    usage = {row["resource"]: row["amount"] for row in plan["cycles"][0]["decisions"][0]["usage"]}
    # Starting takes 5 + 0.25 cores, more than the 1.5 + 0.25 of running.
    assert usage == {"cpu": "21", "memory": str(4 * 64 * 2**20), "nvidia.com/gpu": "4"}


def test_workload_gets_the_value_of_its_priority_class(files: PlanFiles) -> None:
    low, high = workload("low", {"priority": 10}), workload("high", {"priorityClassName": "urgent"})
    plan = files.plan(low, high)

    assert [cycle["decisions"][0]["job"] for cycle in plan["cycles"][:2]] == ["lab/high", "lab/low"]


def test_admitted_workload_uses_its_recorded_quota_minus_reclaimable_pods(files: PlanFiles) -> None:
    flavors = {"cpu": "p5", "nvidia.com/gpu": "p5"}
    assignment = {"name": "main", "count": 4, "flavors": flavors, "resourceUsage": {"cpu": 8, "nvidia.com/gpu": 4}}
    status = {
        "admission": {"clusterQueue": "research", "podSetAssignments": [assignment]},
        "conditions": [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-11-03T10:00:05Z"}],
        "reclaimablePods": [{"name": "main", "count": 1}],
    }
    plan = files.plan(workload("a", status=status))

    usage = {row["resource"]: row["amount"] for row in plan["end"]["admitted"][0]["usage"]}
    assert usage == {"cpu": "6", "nvidia.com/gpu": "3"}


def test_workload_of_a_refused_namespace_does_not_block_other_workloads(files: PlanFiles) -> None:
    strict = QUEUE.replace("  cohort: fleet", "  cohort: fleet\n  queueingStrategy: StrictFIFO")
    refused_workload = workload("a", {"priority": 100})
    refused_workload["metadata"]["namespace"] = "other"
    quota = strict + "\n---\n{apiVersion: kueue.x-k8s.io/v1beta1, kind: LocalQueue, "
    quota += "metadata: {name: main, namespace: other}, spec: {clusterQueue: research}}\n"
    plan = files.plan(refused_workload, workload("b"), quota=quota)

    assert first_decisions(plan)["other/a"]["result"] == "Inadmissible"
    assert [job["job"] for job in plan["end"]["admitted"]] == ["lab/b"]


def test_jobs_of_a_stopped_queue_count_but_are_not_preempted(files: PlanFiles) -> None:
    quota = {
        "queues": [
            {"name": "a", "cohort": "c", "groups": [{"f": {"gpu": 4}}], "preemption": {"reclaim": "Any"}},
            {"name": "b", "cohort": "c", "groups": [{"f": {"gpu": 4}}], "stop": "Hold"},
        ]
    }
    job = {"name": "b1", "queue": "b", "requests": {"gpu": 8}, "admitted": {"flavors": {"gpu": "f"}}}
    waiting = [{"name": name, "queue": name, "requests": {"gpu": 1}} for name in ("a", "b")]
    plan = files.plan({"jobs": [job, *waiting]}, quota=yaml.safe_dump(quota))

    assert (first_decisions(plan)["a"]["result"], first_decisions(plan)["a"]["victims"]) == ("NoCandidates", [])
    queues = {queue["name"]: queue for queue in plan["end"]["queues"]}
    assert (queues["b"]["inactive"], queues["b"]["active"]) == ("its stop policy is Hold", ["b"])


def test_queue_with_a_missing_flavor_is_inactive(files: PlanFiles) -> None:
    plan = files.plan(
        workload("a"),
        quota=QUEUE.replace("kind: ResourceFlavor, metadata: {name: p5}", "kind: ResourceFlavor, metadata: {name: p4}"),
    )

    assert plan["cycles"] == []
    assert plan["end"]["queues"][0]["inactive"] == "its flavors p5 do not exist"


def test_quota_beyond_64_bits_is_unlimited(files: PlanFiles) -> None:
    quota = QUEUE.replace("nominalQuota: 96", "nominalQuota: 10E").replace("nominalQuota: 8", "nominalQuota: 10E")
    plan = files.plan(workload("a"), quota=quota)

    available_by_resource = {quota["resource"]: quota["available"] for quota in plan["end"]["queues"][0]["quotas"]}
    assert available_by_resource == {"cpu": "unlimited", "memory": str(2**40), "nvidia.com/gpu": "unlimited"}


# ---------------------------------------------------------------- events

SMALL = "{queues: [{name: q, groups: [{f: {gpu: 4}}]}]}"


def job(name: str, gpus: int = 4, **rest: Any) -> Json:
    return {"name": name, "queue": "q", "requests": {"gpu": gpus}, **rest}


def test_events_of_one_instant_apply_before_its_cycle(files: PlanFiles) -> None:
    events = [
        {"at": 1, "type": "submit", "jobs": [job("a"), job("b", priority=1)]},
        {"at": 5, "type": "finish", "job": "b"},
    ]
    plan = files.plan(quota=SMALL, events=events)

    assert [(cycle["at"], cycle["decisions"][0]["job"]) for cycle in plan["cycles"]] == [(1, "b"), (1, "a"), (5, "a")]


def test_simulated_time_starts_at_the_latest_known_admission(files: PlanFiles) -> None:
    quota = "{queues: [{name: q, cohort: null, groups: [{f: {gpu: 4}}], preemption: {within: LowerPriority}}]}"
    jobs = (
        job("known", 2, admitted={"at": 50, "flavors": {"gpu": "f"}}),
        job("unknown", 2, admitted={"at": None, "flavors": {"gpu": "f"}}),
        job("new", 2, priority=1),
    )
    plan = files.plan(*jobs, quota=quota)

    # Both count as admitted at 50; their names decide the order.
    assert (plan["cycles"][0]["at"], list(victims(first_decisions(plan)["new"]))) == (50, ["known"])
    assert list(victims(first_decisions(files.plan(*jobs, quota=quota, options="--now 60"))["new"])) == ["unknown"]


def test_cycles_run_only_at_declared_times(files: PlanFiles) -> None:
    plan = files.plan(job("a", 1), job("b", 1), quota=SMALL, events=[{"at": 0, "type": "cycle"}])

    assert len(plan["cycles"]) == 1
    assert plan["end"]["queues"][0]["active"] == ["b"]


def test_pods_ready_timeout_requeues_with_backoff(files: PlanFiles) -> None:
    events = [
        {"at": 10, "type": "notReady", "job": "a"},
        {"at": 20, "type": "finish", "job": "b"},
        {"at": 70, "type": "submit", "job": job("c", 1)},
    ]
    plan = files.plan(job("a"), job("b", createdAt=1), quota=SMALL, events=events)

    admitted = [
        (cycle["at"], decision["job"])
        for cycle in plan["cycles"]
        for decision in cycle["decisions"]
        if decision["result"] == "Admitted"
    ]
    assert admitted == [(0, "a"), (10, "b"), (70, "c")]
    # a backs off until 70, and then queues behind c, which was submitted at 70.
    assert plan["end"]["queues"][0]["parked"] == ["a"]


@pytest.mark.parametrize(
    ("state", "retried_at"),
    [
        ({}, None),  # its end is unknown
        ({"requeueAt": "2026-11-03T13:00:00Z", "count": 1}, "2026-11-03T13:00:00Z"),
        ({"requeueAt": "2026-11-03T11:00:00Z"}, "2026-11-03T12:00:00Z"),  # it ended before the simulation starts
    ],
)
def test_workload_is_retried_after_its_backoff(files: PlanFiles, state: Json, retried_at: str | None) -> None:
    not_yet = {"type": "Requeued", "status": "False", "reason": "PodsReadyTimeout"}
    waits = workload("waits", status={"conditions": [not_yet], "requeueState": state})
    events: list[Json] = [{"type": "submit", "at": "2026-11-03T13:00:00Z", "jobs": []}]
    plan = files.plan(waits, events=events, options="--now 2026-11-03T12:00:00Z")

    when = [job["at"] for job in plan["end"]["admitted"]]
    assert when == ([] if retried_at is None else [datetime.fromisoformat(retried_at).timestamp()])


def test_pods_ready_timeout_counts_earlier_timeouts(files: PlanFiles) -> None:
    waits = workload("waits", status={"requeueState": {"count": 3}})
    events: list[Json] = [
        {"type": "notReady", "at": "2026-11-03T12:00:00Z", "job": "lab/waits"},
        {"type": "submit", "at": "2026-11-03T12:07:59Z", "jobs": []},
        {"type": "submit", "at": "2026-11-03T12:08:00Z", "jobs": []},  # 60 s doubled three times
    ]
    plan = files.plan(waits, events=events, options="--now 2026-11-03T11:00:00Z")

    assert [job["at"] for job in plan["end"]["admitted"]] == [
        datetime.fromisoformat("2026-11-03T12:08:00Z").timestamp()
    ]


def test_growing_job_requests_only_the_additional_pods(files: PlanFiles) -> None:
    events = [{"at": 1, "type": "resize", "job": "a", "counts": [4]}]
    plan = files.plan(job("a", 1, count=2), quota=SMALL, events=events)

    last = plan["cycles"][-1]["decisions"][0]
    assert (last["job"], last["replaces"], last["result"]) == ("a-2", "a", "Admitted")
    assert last["usage"] == [{"flavor": "f", "resource": "gpu", "amount": "2"}]
    assert [job["job"] for job in plan["end"]["admitted"]] == ["a-2"]


def test_shrinking_job_frees_quota_for_waiting_jobs(files: PlanFiles) -> None:
    events = [{"at": 1, "type": "shrink", "job": "a", "counts": [2]}]
    plan = files.plan(job("a", 1, count=4), job("b", 2, createdAt=1), quota=SMALL, events=events)

    assert [job["job"] for job in plan["end"]["admitted"]] == ["a", "b"]


@pytest.mark.parametrize(("priority_drop", "victims"), [(0, set()), (1, {"a"})])
def test_pending_job_is_retried_after_a_running_job_loses_priority(
    files: PlanFiles, priority_drop: int, victims: set[str]
) -> None:
    declared = yaml.safe_load(SMALL)
    declared["queues"][0]["preemption"] = {"within": "LowerPriority"}
    events = [{"type": "priority", "at": 5, "job": "a", "priority": 2 - priority_drop}]
    jobs = (job("a", priority=2), job("b", priority=2, createdAt=1))
    plan = files.plan(*jobs, quota=yaml.safe_dump(declared), events=events)

    assert {victim["job"] for cycle in plan["cycles"] for victim in cycle["decisions"][0]["victims"]} == victims


def test_reduced_quota_neither_evicts_nor_admits_a_workload(files: PlanFiles) -> None:
    less = {"queues": [{"name": "q", "groups": [{"f": {"gpu": 1}}]}]}
    events: list[Json] = [
        {"at": 1, "type": "quota", "documents": [less]},
        {"at": 2, "type": "submit", "job": job("b", 1)},
    ]
    plan = files.plan(job("a"), quota=SMALL, events=events)

    assert plan["cycles"][-1]["decisions"][0]["result"] == "NoCandidates"
    assert plan["end"]["queues"][0]["quotas"][0]["available"] == "0"


def test_evicted_jobs_keep_their_quota_unless_evictions_are_released(files: PlanFiles) -> None:
    quota = "{queues: [{name: q, groups: [{f: {gpu: 4}}], preemption: {within: LowerPriority}}]}"
    jobs = (job("a", admitted={"at": 0, "flavors": {"gpu": "f"}}), job("b", priority=1))
    holding_plan, releasing_plan = (
        files.plan(*jobs, quota=quota),
        files.plan(*jobs, quota=quota, options="--evictions released"),
    )

    assert [(job["job"], job["evicted"]) for job in holding_plan["end"]["admitted"]] == [("a", True)]
    assert [job["job"] for job in releasing_plan["end"]["admitted"]] == ["b"]
    assert releasing_plan["end"]["queues"][0]["parked"] == ["a"]


# ---------------------------------------------------------------- invalid input


@pytest.mark.parametrize(
    ("quota", "words"),
    [
        ("a: [", "q.yaml is not valid YAML or JSON"),
        ("x: 1", "q.yaml: is neither a Kueue manifest"),
        ("{kind: ClusterQueue, metadata: {}}", "q.yaml: ClusterQueue/: metadata.name: is required"),
        (
            QUEUE.replace("1Ti", "1Tx"),
            "resourceGroups[0].flavors[0].resources[1].nominalQuota: '1Tx' is not a quantity",
        ),
        (
            QUEUE.replace("matchLabels: {team", "matchExpressions: [{key: a, operator: Has}], matchLabels: {team"),
            "operator",
        ),
        (
            "{queues: [{name: q, strategy: Random}]}",
            "queues[0].strategy: must be 'BestEffortFIFO' or 'StrictFIFO', not 'Random'",
        ),
        (
            "{ComputeQuotaTarget: {TeamName: a}, ComputeQuotaConfig: {ComputeQuotaResources: [{InstanceType: x}]}}",
            "x is not in the catalogue",
        ),
    ],
)
def test_invalid_plan_file_is_named_with_the_field(files: PlanFiles, quota: str, words: str) -> None:
    code, out, error = files.run(quota=quota)

    assert (code, out) == (2, "")
    assert words in error


@pytest.mark.parametrize("field", ["usageHalfLifeTime", "usageSamplingInterval"])
@pytest.mark.parametrize("written", ["soon", "-5m", "2026-11-03T12:00:00Z", "7"])
def test_invalid_duration_is_named_with_the_field(files: PlanFiles, field: str, written: str) -> None:
    config = files.folder / "c.yaml"
    config.write_text(yaml.safe_dump({"admissionFairSharing": {field: written}}))
    code, _, error = files.run(options=f"--config {config}")

    assert code == 2
    assert f"admissionFairSharing.{field}: '{written}' is not a duration" in error


def test_invalid_event_is_named_by_its_number(files: PlanFiles) -> None:
    code, _, error = files.run(quota=SMALL, events=[{"at": 1, "type": "finish", "job": "nobody"}])

    assert code == 2
    assert "e.yaml: events[0]: job: there is no job nobody" in error


@pytest.mark.parametrize("admitted", [{"flavors": [{"gpu": "f"}, {"gpu": "f"}]}, {"flavors": {}, "counts": [1, 1]}])
def test_admission_with_another_number_of_pod_sets_is_refused(files: PlanFiles, admitted: Json) -> None:
    code, _, error = files.run(job("a", admitted=admitted), quota=SMALL)

    assert code == 2
    assert "must have one entry for each pod set" in error


def test_only_unknown_fields_are_warned_about(files: PlanFiles) -> None:
    workload_with_unknown_fields = workload("a", {"colour": "blue"}, schedulerName="x", nodeSelektor={})
    code, _, error = files.run(
        workload_with_unknown_fields, quota=QUEUE.replace("cohort: fleet", "cohort: fleet\n  paint: []")
    )

    assert code == 0
    assert [line.rpartition(": ")[2].split()[0] for line in error.splitlines()] == [
        "spec.paint",
        "spec.colour",
        "spec.podSets[0].template.spec.nodeSelektor",
    ]


CHECK = "{apiVersion: kueue.x-k8s.io/v1beta1, kind: AdmissionCheck, metadata: {name: burst}"
CONTROLLED = ", spec: {controllerName: evenkeel.io/burst}"
INACTIVE = ", status: {conditions: [{type: Active, status: 'False'}]}"


def queue_with(checks: str, *documents: str) -> str:
    """Return the quota file with admission checks in its ClusterQueue."""
    quota = QUEUE.replace("cohort: fleet", f"cohort: fleet\n  {checks}")
    return "\n---\n".join((quota, *documents))


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ("admissionChecks: [burst]", ["burst"]),
        ("admissionChecksStrategy: {admissionChecks: [{name: burst}]}", ["burst"]),
        ("admissionChecksStrategy: {admissionChecks: [{name: burst, onFlavors: [p5]}]}", ["burst"]),
        ("admissionChecksStrategy: {admissionChecks: [{name: burst, onFlavors: [other]}]}", []),
    ],
    ids=["v1beta1", "every flavor", "its flavor", "another flavor"],
)
def test_decision_names_the_admission_checks_of_its_flavors(files: PlanFiles, checks: str, expected: list[str]) -> None:
    plan = files.plan(workload("a"), quota=queue_with(checks, f"{CHECK}{CONTROLLED}}}"))

    [decision] = plan["cycles"][0]["decisions"]
    assert (decision["result"], decision["checks"]) == ("Admitted", expected)
    assert ("It starts once its admission checks have passed: burst." in decision["reason"]) == bool(expected)


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        (
            ("{apiVersion: kueue.x-k8s.io/v1beta1, kind: AdmissionCheck, metadata: {name: other}}",),
            "there is no AdmissionCheck burst",
        ),
        ((f"{CHECK}{CONTROLLED}{INACTIVE}}}",), "its AdmissionCheck burst is not active"),
    ],
    ids=["missing", "inactive"],
)
def test_queue_with_an_unusable_admission_check_admits_no_job(
    files: PlanFiles, documents: tuple[str, ...], expected: str
) -> None:
    plan = files.plan(workload("a"), quota=queue_with("admissionChecks: [burst]", *documents))

    assert not [
        decision for cycle in plan["cycles"] for decision in cycle["decisions"] if decision["result"] == "Admitted"
    ]
    assert any(f"{expected}, so it admits no job" in warning for warning in plan["warnings"])


def quota_amount(name: str = "cpu", nominal: str = "4", **limits: str) -> Json:
    return {"name": name, "nominalQuota": nominal, **limits}


def a_group(flavors: list[str], *amounts: Json) -> Json:
    covered_resources = [quota_amount["name"] for quota_amount in amounts]
    return {
        "coveredResources": covered_resources,
        "flavors": [{"name": flavor, "resources": list(amounts)} for flavor in flavors],
    }


TOO_MANY_FLAVORS = [f"f{number}" for number in range(65)]
SIXTY_AMOUNTS = [quota_amount(f"r{number}") for number in range(60)]


@pytest.mark.parametrize(
    ("kind", "spec", "expected_warning"),
    [
        (
            "ClusterQueue",
            {"resourceGroups": [a_group(["f"], quota_amount(nominal="-1"))]},
            "the nominal quota is negative",
        ),
        (
            "ClusterQueue",
            {"cohort": "c", "resourceGroups": [a_group(["f"], quota_amount(borrowingLimit="-1"))]},
            "a limit is",
        ),
        (
            "ClusterQueue",
            {"cohort": "c", "resourceGroups": [a_group(["f"], quota_amount(lendingLimit="5"))]},
            "lending limit",
        ),
        (
            "ClusterQueue",
            {"resourceGroups": [a_group(["f"], quota_amount(borrowingLimit="5"))]},
            "limits need a cohort",
        ),
        (
            "ClusterQueue",
            {"resourceGroups": [a_group(TOO_MANY_FLAVORS, quota_amount())]},
            "a group has more than 64 flavors or resources",
        ),
        ("ClusterQueue", {"resourceGroups": [a_group(TOO_MANY_FLAVORS[:9], *SIXTY_AMOUNTS)]}, "more than 512 pairs"),
        (
            "ClusterQueue",
            {"resourceGroups": [a_group([name], quota_amount(name)) for name in TOO_MANY_FLAVORS[:17]]},
            "16 resource groups",
        ),
        (
            "ClusterQueue",
            {
                "resourceGroups": [
                    a_group([f"{row}{name}" for name in TOO_MANY_FLAVORS[:64]], quota_amount(row)) for row in "abcde"
                ]
            },
            "there are more than 256 flavors",
        ),
        (
            "ClusterQueue",
            {"resourceGroups": [a_group(["f"], quota_amount()), a_group(["g"], quota_amount())]},
            "resource cpu is in",
        ),
        ("Cohort", {"resourceGroups": [a_group(["f"], quota_amount(lendingLimit="1"))]}, "limits need a parent"),
        (
            "Cohort",
            {"parent": "c", "resourceGroups": [a_group(["f"], quota_amount(nominal="-1"))]},
            "the nominal quota is",
        ),
        ("Cohort", {"parent": "c", "fairSharing": {"weight": "-1"}}, "the weight is negative"),
        ("Cohort", {"parent": "c", "resourceGroups": [a_group(["f"], quota_amount(lendingLimit="9"))]}, ""),
    ],
)
def test_object_that_kueue_would_refuse_is_planned_with_warning(
    files: PlanFiles, kind: str, spec: Json, expected_warning: str
) -> None:
    selects: Json = {"namespaceSelector": {}} if kind == "ClusterQueue" else {}
    invalid_object = {"kind": kind, "metadata": {"name": "odd"}, "spec": {**selects, **spec}}
    plan = files.plan(quota=QUEUE.replace("cohort: fleet", "cohort: odd") + "---\n" + yaml.safe_dump(invalid_object))

    warnings = [warning for warning in plan["warnings"] if f"{kind}/odd" in warning]
    assert [(expected_warning in warning, warning.endswith("; Kueue would refuse it")) for warning in warnings[:1]] == (
        [(True, True)] if expected_warning else []
    )


def test_missing_namespace_selector_matches_all_with_a_warning(files: PlanFiles) -> None:
    quota = QUEUE.replace("  namespaceSelector: {matchLabels: {team: research}}\n", "")
    code, out, error = files.run(workload("a"), quota=quota)

    assert (code, json.loads(out)["end"]["admitted"][0]["job"]) == (0, "lab/a")
    assert "Kueue would admit no job" in error


def test_null_namespace_selector_selects_no_namespace(files: PlanFiles) -> None:
    quota = QUEUE.replace("{matchLabels: {team: research}}", "null")

    assert first_decisions(files.plan(workload("a"), quota=quota))["lab/a"]["result"] == "Inadmissible"


def test_plan_imports_no_aws_library() -> None:
    words = ["plan", "--quota", str(EXAMPLES / "x3-quota.yaml"), "--jobs", str(EXAMPLES / "x3-jobs.yaml")]
    code = (
        f"import sys; from evenkeel_cli.main import main; main({words}); "
        "sys.exit(any(name.startswith(('boto', 'urllib3')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


# ---------------------------------------------------------------- the schemas


def test_plan_schemas_match_the_types() -> None:
    stale = [
        name
        for name, schema in schemas().items()
        if json.loads((TARGET / f"{name}.schema.json").read_text(encoding="utf-8")) != json.loads(json.dumps(schema))
    ]
    assert stale == [], "run `make generate`"


def test_plan_examples_and_output_match_their_schemas(files: PlanFiles) -> None:
    schemas_by_name = schemas()
    check = {name: jsonschema.Draft202012Validator(schema) for name, schema in schemas_by_name.items()}
    for path in sorted(EXAMPLES.glob("*.yaml")):
        kind = {"quota": "quota.kueue", "jobs": "jobs", "events": "events", "config": "configuration.kueue"}
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            check[kind[path.stem.partition("-")[2]]].validate(document)
    for number in range(1, 7):
        check["plan"].validate(run_example(number))
    check["why"].validate(run_example(6, "--why", "big"))


# ---------------------------------------------------------------- why


def test_why_command_proposes_smallest_changes_that_admit_the_job(files: PlanFiles) -> None:
    quota = {
        "queues": [
            {
                "name": "q",
                "cohort": "c",
                "groups": [{"f": {"gpu": 6}}],
                "preemption": {"within": "LowerPriority"},
            },
            {"name": "r", "cohort": "c", "groups": [{"f": {"gpu": 2}}]},
        ]
    }
    jobs = (
        job("a", 3, priority=5, admitted={"at": 0, "flavors": {"gpu": "f"}}),
        job("b", 2, priority=7, admitted={"at": 1, "flavors": {"gpu": "f"}}),
        job("new", 1, count=6, priority=1),
    )
    plan = files.plan(*jobs, quota=yaml.safe_dump(quota), options="--why new")
    changes = {change["kind"]: change for change in plan["changes"]}

    assert changes["quota"]["amounts"] == {"gpu": "3"}
    assert changes["priority"]["priority"] == 6
    assert changes["size"]["counts"] == [3]
    assert changes["wait"]["jobs"] == ["a"]
    assert plan["decision"]["considered"][0]["compared"][0]["available"] == "3"
    # Each suggested change would admit the job.
    larger_quota = json.loads(json.dumps(quota).replace('"gpu": 6', '"gpu": 9'))
    assert first_decisions(files.plan(*jobs, quota=yaml.safe_dump(larger_quota)))["new"]["result"] == "Admitted"
    jobs_with_higher_priority = (*jobs[:2], job("new", 1, count=6, priority=6))
    assert victims(first_decisions(files.plan(*jobs_with_higher_priority, quota=yaml.safe_dump(quota)))["new"]) == {
        "a": "InClusterQueue"
    }


def owned_workload(name: str, owner: str, namespace: str = "lab") -> Json:
    document = workload(
        name, {"podSets": [{"name": "main", "count": 400, "template": {"spec": {"containers": [GPU]}}}]}
    )
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": "u", "controller": True}]
    document["metadata"] |= {"namespace": namespace, "ownerReferences": owners}
    return document


@pytest.mark.parametrize("owner", ["job-7f3a-a1", "lab/job-7f3a-a1"])
def test_why_command_finds_a_workload_by_its_owner(files: PlanFiles, owner: str) -> None:
    jobs = (owned_workload("job-job-7f3a-a1-9a8b7", "job-7f3a-a1"), owned_workload("other", "job-7f3a-a2"))

    reasons = files.plan(*jobs, options=f"--why {owner}")

    assert reasons == files.plan(*jobs, options="--why lab/job-job-7f3a-a1-9a8b7")
    assert reasons["changes"]


def test_why_command_refuses_an_owner_of_several_workloads(files: PlanFiles) -> None:
    jobs = (owned_workload("a", "trainer"), owned_workload("b", "trainer", namespace="other"))

    code, _, error = files.run(*jobs, options="--why trainer")

    assert (code, "trainer owns lab/a, other/b." in error) == (2, True)


def test_why_command_explains_a_job_without_a_queue(files: PlanFiles) -> None:
    code, _, error = files.run({"name": "x", "queue": "none"}, quota=SMALL, options="--why x")

    assert code == 4
    assert "there is no queue none" in error


def test_quota_conversion_reports_lost_settings(files: PlanFiles, tmp_path: Path) -> None:
    (tmp_path / "q.yaml").write_text(QUEUE)
    code, out, error = run_command("quota", "import", str(tmp_path / "q.yaml"))
    (tmp_path / "short.json").write_text(out)

    assert code == 0
    assert "lost: ClusterQueue research: its namespace selector" in error
    assert json.loads(out)["documents"][0]["queues"][0]["name"] == "research"
    assert run_command("quota", "export", "--to", "kueue", str(tmp_path / "short.json"))[0] == 0
    assert run_command("quota", "export", "--to", "slurm", str(tmp_path / "short.json"))[0] == 2


# ---------------------------------------------------------------- queues that stop, appear, or refuse jobs


def workload_with_quota(name: str, *conditions: Json) -> Json:
    """Return a Workload that holds quota, with further conditions."""
    flavors, usage = {"cpu": "p5", "nvidia.com/gpu": "p5"}, {"cpu": "2", "nvidia.com/gpu": "0"}
    assignment = {"name": "main", "flavors": flavors, "resourceUsage": usage, "count": 4}
    admission = {"clusterQueue": "research", "podSetAssignments": [assignment]}
    return workload(name, status={"admission": admission, "conditions": list(conditions)})


HAS_QUOTA: Json = {"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-11-03T11:00:00Z"}
NOT_YET: Json = {"type": "Admitted", "status": "False", "lastTransitionTime": "2026-11-03T11:00:00Z"}


def evicted_jobs(plan: Json) -> dict[str, bool]:
    return {job["job"]: job["evicted"] for job in plan["end"]["admitted"]}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("None", {"lab/runs": False, "lab/waits": False}),
        ("Hold", {"lab/runs": False, "lab/waits": True}),
        ("HoldAndDrain", {"lab/runs": True, "lab/waits": True}),
    ],
)
@pytest.mark.parametrize("kind", ["ClusterQueue", "LocalQueue"])
def test_stop_policy_hold_evicts_only_reserved_jobs_drain_evicts_all(
    files: PlanFiles, kind: str, policy: str, expected: dict[str, bool]
) -> None:
    jobs = (workload_with_quota("runs", HAS_QUOTA), workload_with_quota("waits", HAS_QUOTA, NOT_YET))
    queue_line = "cohort: fleet" if kind == "ClusterQueue" else "clusterQueue: research"
    quota = QUEUE.replace(
        queue_line, queue_line + (f"\n  stopPolicy: {policy}" if kind == "ClusterQueue" else f", stopPolicy: {policy}")
    )

    assert evicted_jobs(files.plan(*jobs, quota=quota)) == expected


def test_added_local_queue_takes_waiting_jobs_until_it_stops(files: PlanFiles) -> None:
    local = {
        "kind": "LocalQueue",
        "metadata": {"name": "main", "namespace": "lab"},
        "spec": {"clusterQueue": "research"},
    }
    stopped_queue = {**local, "spec": {"clusterQueue": "research", "stopPolicy": "Hold"}}
    events = [
        {"type": "quota", "at": 1, "documents": [local]},
        {"type": "submit", "at": 2, "job": workload("large", {"priority": -1})},
        {"type": "submit", "at": 2, "job": workload("second", {"priority": -1})},
        {"type": "quota", "at": 3, "documents": [stopped_queue]},
    ]
    plan = files.plan(workload("first"), quota=QUEUE.replace("name: main,", "name: other,"), events=events)

    assert [
        cycle["at"] for cycle in plan["cycles"] for decision in cycle["decisions"] if decision["job"] == "lab/first"
    ] == [1]
    assert sorted(evicted_jobs(plan)) == ["lab/first", "lab/large"]
    assert plan["end"]["unqueued"] == [{"job": "lab/second", "reason": "LocalQueue lab/main is stopped"}]


@pytest.mark.parametrize("policy", ["Hold", "HoldAndDrain"])
def test_stopped_local_queue_evicts_jobs_and_admits_them_later(files: PlanFiles, policy: str) -> None:
    local: Json = {"kind": "LocalQueue", "metadata": {"name": "main", "namespace": "lab"}}
    stopped_queue = {**local, "spec": {"clusterQueue": "research", "stopPolicy": policy}}
    events: list[Json] = [{"type": "quota", "at": "2026-11-03T12:00:00Z", "documents": [stopped_queue]}]
    jobs = (workload_with_quota("runs", HAS_QUOTA), workload_with_quota("reserved", HAS_QUOTA, NOT_YET))
    drained = policy == "HoldAndDrain"

    assert evicted_jobs(files.plan(*jobs, events=events)) == {"lab/runs": drained, "lab/reserved": True}
    events.append({"type": "podsGone", "at": "2026-11-03T13:00:00Z", "job": "lab/reserved"})
    plan = files.plan(*jobs, events=events)
    assert evicted_jobs(plan) == {"lab/runs": drained}
    assert plan["end"]["unqueued"] == [{"job": "lab/reserved", "reason": "LocalQueue lab/main is stopped"}]
    resumed_queue = {**local, "spec": {"clusterQueue": "research"}}
    events.append({"type": "quota", "at": "2026-11-03T14:00:00Z", "documents": [resumed_queue]})
    plan = files.plan(*jobs, events=events)
    assert [job["job"] for job in plan["end"]["admitted"]] == ["lab/reserved", "lab/runs"]
    assert plan["cycles"][-1]["at"] == 1793714400.0  # 14:00: Kueue admitted it again


def test_requeued_job_requests_only_unfinished_pods(files: PlanFiles) -> None:
    runs = workload_with_quota("runs", HAS_QUOTA)
    runs["status"]["reclaimablePods"] = [{"name": "main", "count": 3}]
    at = "2026-11-03T12:00:00Z"
    documents = [{"type": "evict", "at": at, "job": "lab/runs"}, {"type": "podsGone", "at": at, "job": "lab/runs"}]
    plan = files.plan(runs, events=documents)

    assert [pod_set["count"] for pod_set in plan["cycles"][0]["decisions"][0]["podSets"]] == [1]


def test_new_weight_of_a_local_queue_applies_from_its_event(files: PlanFiles) -> None:
    quota = QUEUE.replace("cohort: fleet", "admissionScope: {admissionMode: UsageBasedAdmissionFairSharing}")
    usage_status = {"consumedResources": {"cpu": "6"}, "lastUpdate": "2026-11-03T12:00:00Z"}
    status = {"fairSharing": {"admissionFairSharingStatus": usage_status}}
    local_queues: list[Json] = [
        {
            "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": "lab"},
            "spec": {"clusterQueue": "research", "fairSharing": {"weight": weight}},
            "status": status,
        }
        for name, weight in (("first", "1"), ("second", "2"), ("first", "4"))
    ]
    quota += "---\n" + yaml.safe_dump_all(local_queues[:2])
    config = files.folder / "c.yaml"
    config.write_text(yaml.safe_dump({"admissionFairSharing": {"usageHalfLifeTime": "1h"}}))
    options = f"--config {config} --now 2026-11-03T12:00:00Z"
    at = "2026-11-03T12:00:00Z"
    jobs = (workload("a", {"queueName": "first"}), workload("b", {"queueName": "second"}))
    cycle = {"type": "cycle", "at": at}

    assert (
        files.plan(*jobs, quota=quota, events=[cycle], options=options)["cycles"][0]["decisions"][0]["job"] == "lab/b"
    )
    weight_event: list[Json] = [{"type": "quota", "at": at, "documents": [local_queues[2]]}, cycle]
    assert (
        files.plan(*jobs, quota=quota, events=weight_event, options=options)["cycles"][0]["decisions"][0]["job"]
        == "lab/a"
    )


def test_jobs_of_a_removed_queue_wait_for_its_return(files: PlanFiles) -> None:
    (queue,) = (document for document in yaml.safe_load_all(QUEUE) if document["kind"] == "ClusterQueue")
    document: Json = {"type": "quota", "at": 2, "remove": ["research"]}
    events: list[Json] = [{"type": "stopPolicy", "at": 0, "queue": "research", "policy": "Hold"}]
    events += [{"type": "submit", "at": 1, "job": workload(name)} for name in ("first", "second")]
    events += [{"type": "priority", "at": 1, "job": "lab/second", "priority": 9}, document]

    plan = files.plan(events=events)
    assert [(job["job"], job["reason"]) for job in plan["end"]["unqueued"]] == [
        ("lab/first", "there is no queue research"),
        ("lab/second", "there is no queue research"),
    ]

    events.append({"type": "quota", "at": 3, "documents": [queue]})
    plan_after_return = files.plan(events=events)
    taken = [(cycle["at"], decision["job"]) for cycle in plan_after_return["cycles"] for decision in cycle["decisions"]]
    assert taken[0] == (3, "lab/second"), "keep the changed priority when the queue returns"
    assert plan_after_return["end"]["unqueued"] == []


def test_local_queue_in_use_cannot_be_removed(files: PlanFiles) -> None:
    document: Json = {"type": "quota", "at": 2, "remove": ["research"]}
    code, _, error = files.run(workload("a"), events=[document])

    assert code == 2
    assert "queue research has jobs that hold quota: lab/a" in error


def test_each_inadmissible_workload_is_reported_once(files: PlanFiles) -> None:
    quota = QUEUE.replace("labels: {team: research}", "labels: {team: other}")
    ends = [{"type": "quota", "at": 5, "documents": []}]
    plan = files.plan(workload("a"), workload("b"), quota=quota, events=ends)

    results = [(decision["job"], decision["result"]) for cycle in plan["cycles"] for decision in cycle["decisions"]]
    assert results == [("lab/a", "Inadmissible"), ("lab/b", "Inadmissible")]


def test_workload_with_failed_checks_is_inadmissible(files: PlanFiles) -> None:
    checks = {"admissionChecks": [{"name": "budget", "state": "Rejected", "message": "too dear"}]}
    (decision,) = files.plan(workload("a", status=checks))["cycles"][0]["decisions"]

    assert (decision["result"], decision["reason"]) == ("Inadmissible", "The job failed its admission checks: budget.")


REQUESTS_ABOVE_LIMITS = {"requests": {"cpu": "300m"}, "limits": {"cpu": "200m"}}


@pytest.mark.parametrize(
    "pods",
    [
        {"containers": [{"resources": REQUESTS_ABOVE_LIMITS}]},
        {"containers": [], "initContainers": [{"resources": REQUESTS_ABOVE_LIMITS}]},
        {"containers": [], "resources": REQUESTS_ABOVE_LIMITS},
    ],
)
def test_pods_with_requests_above_limits_are_inadmissible(files: PlanFiles, pods: Json) -> None:
    (decision,) = files.plan(workload("a", **pods))["cycles"][0]["decisions"]

    assert (decision["result"], decision["requeue"]) == ("Inadmissible", "parked")
    assert decision["reason"] == "The job's pods request more than their own limits: cpu."


@pytest.mark.parametrize(
    ("of_the_first", "labels", "left"),
    [
        ({"status": {"admissionChecks": [{"name": "x", "state": "Retry"}]}}, "research", ["lab/first", "lab/second"]),
        ({"containers": [{"resources": REQUESTS_ABOVE_LIMITS}]}, "research", ["lab/first", "lab/second"]),
        ({}, "other", []),  # its namespace is not allowed, so it blocks no job
    ],
)
def test_strict_queue_waits_behind_an_inadmissible_head(
    files: PlanFiles, of_the_first: Json, labels: str, left: list[str]
) -> None:
    quota = QUEUE.replace("cohort: fleet", "cohort: fleet\n  queueingStrategy: StrictFIFO")
    quota = quota.replace("labels: {team: research}", f"labels: {{team: {labels}}}")
    first = workload("first", {"priority": 1}, **of_the_first)
    (queue,) = files.plan(first, workload("second"), quota=quota)["end"]["queues"]

    assert queue["active"] == left


def test_one_file_may_contain_queues_and_jobs(files: PlanFiles) -> None:
    queues_and_jobs = QUEUE + "---\n" + yaml.safe_dump(workload("a"))
    (files.folder / "all.yaml").write_text(queues_and_jobs)
    name = str(files.folder / "all.yaml")
    code, out, error = run_command("plan", "--profile", "kueue", "--quota", name, "--jobs", name, "-o", "json")

    assert (code, sorted(evicted_jobs(json.loads(out)))) == (0, ["lab/a"])
    assert "Workload/a: declares no quota and is ignored here" in error
    assert "LocalQueue is not a job and is ignored here" in error


@pytest.mark.parametrize("queue_namespace", ["", "default"])
@pytest.mark.parametrize("job_namespace", ["", "default"])
def test_plan_object_without_namespace_is_in_the_default_namespace(
    files: PlanFiles, queue_namespace: str, job_namespace: str
) -> None:
    quota = QUEUE.replace("namespace: lab}", f'namespace: "{queue_namespace}"}}').replace(
        "name: lab,", "name: default,"
    )
    workload_without_namespace = workload("a")
    workload_without_namespace["metadata"]["namespace"] = job_namespace
    plan = files.plan(workload_without_namespace, quota=quota)

    assert [job["job"] for job in plan["end"]["admitted"]] == [f"{job_namespace}/a".lstrip("/")]


def test_invalid_hyperpod_json_names_the_object(files: PlanFiles) -> None:
    quota = files.folder / "quota.json"
    team: Json = {"Name": "vision", "ComputeQuotaTarget": {"TeamName": "v"}, "Colour": "red"}
    policy: Json = {"Name": "fleet", "SchedulerConfig": {"PriorityClasses": [{"Name": "low"}]}}
    quota.write_text(json.dumps([team, policy]))
    code, _, error = run_command("plan", "--profile", "hyperpod", "--quota", str(quota))

    assert code == 2
    assert "ClusterSchedulerConfig/fleet: SchedulerConfig.PriorityClasses[0].Weight: is required" in error
    quota.write_text(json.dumps(team))
    code, _, error = run_command("plan", "--profile", "hyperpod", "--quota", str(quota))
    assert (code, "ComputeQuota/vision: Colour is not known" in error) == (0, True)


def test_other_kubernetes_objects_are_skipped_with_a_warning(files: PlanFiles) -> None:
    config_map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}}"
    batch: Json = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "raw"}}
    plan = files.plan(workload("a"), batch, quota=QUEUE + "---\n" + config_map)

    assert [job["job"] for job in plan["end"]["admitted"]] == ["lab/a"]
    assert any("ConfigMap/settings: declares no quota" in warning for warning in plan["warnings"])
    assert any("document 2: Job is not a job" in warning for warning in plan["warnings"])


def test_admission_fair_sharing_orders_by_local_queue_usage(files: PlanFiles) -> None:
    quota = QUEUE.replace("cohort: fleet", "admissionScope: {admissionMode: UsageBasedAdmissionFairSharing}")
    local = {
        "kind": "LocalQueue",
        "metadata": {"name": "other", "namespace": "lab"},
        "spec": {"clusterQueue": "research"},
    }
    config = files.folder / "c.yaml"
    config.write_text(
        yaml.safe_dump({"admissionFairSharing": {"usageHalfLifeTime": "168h", "resourceWeights": {"cpu": 1}}})
    )
    busy = workload_with_quota("busy", HAS_QUOTA)
    urgent, waits = workload("urgent", {"priority": 9}), workload("waits", {"queueName": "other"})
    options = f"--config {config} --now 2026-11-03T20:00:00Z"
    quota = quota.replace("nominalQuota: 8", "nominalQuota: 9") + "---\n" + yaml.safe_dump(local)
    plan = files.plan(busy, urgent, waits, quota=quota, options=options)

    assert [decision["job"] for cycle in plan["cycles"] for decision in cycle["decisions"]] == [
        "lab/waits",
        "lab/urgent",
    ]
    plan = files.plan(busy, urgent, waits, quota=quota)
    assert [decision["job"] for cycle in plan["cycles"] for decision in cycle["decisions"]] == [
        "lab/urgent",
        "lab/waits",
    ]


def test_local_queue_status_sets_the_initial_usage(files: PlanFiles) -> None:
    quota = QUEUE.replace("cohort: fleet", "admissionScope: {admissionMode: UsageBasedAdmissionFairSharing}")
    for name, consumed_cpu in (("greedy", "6"), ("modest", "500m")):
        status = {"consumedResources": {"cpu": consumed_cpu}, "lastUpdate": "2026-11-03T19:59:00Z"}
        local = {
            "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": "lab"},
            "spec": {"clusterQueue": "research"},
            "status": {"fairSharing": {"weightedShare": 5, "admissionFairSharingStatus": status}},
        }
        quota += "---\n" + yaml.safe_dump(local)
    config = files.folder / "c.yaml"
    config.write_text(yaml.safe_dump({"admissionFairSharing": {"usageHalfLifeTime": "1h"}}))
    jobs = (workload("urgent", {"priority": 9, "queueName": "greedy"}), workload("waits", {"queueName": "modest"}))
    plan = files.plan(*jobs, quota=quota, options=f"--config {config} --now 2026-11-03T20:00:00Z")

    assert [decision["job"] for cycle in plan["cycles"] for decision in cycle["decisions"]] == [
        "lab/waits",
        "lab/urgent",
    ]
    assert not [warning for warning in plan["warnings"] if "LocalQueue" in warning]


@pytest.mark.parametrize(
    ("allowance", "charged"),
    [
        ("-1", {"cpu": "8", "credit": "10"}),  # each pod: 4 named credits + (4 cpu - 3 vouchers) = 5
        ("-9", {"cpu": "8", "credit": "8"}),  # it is used up, and what is asked for by name stays
    ],
)
def test_transformation_may_use_outputs_of_other_transformations(
    files: PlanFiles, allowance: str, charged: Json
) -> None:
    quota = QUEUE.replace("nvidia.com/gpu", "credit")
    requests = {"cpu": "4", "credit": "4", "voucher": "3"}
    job = workload(
        "a", {"podSets": [{"count": 2, "template": {"spec": {"containers": [{"resources": {"requests": requests}}]}}}]}
    )
    rules = [
        {"input": "cpu", "strategy": "Retain", "outputs": {"credit": "1"}},
        {"input": "voucher", "strategy": "Replace", "outputs": {"credit": allowance}},
    ]
    config = files.folder / "c.yaml"
    config.write_text(yaml.safe_dump({"resources": {"transformations": rules}}))
    plan = files.plan(job, quota=quota.replace("nominalQuota: 8", "nominalQuota: 80"), options=f"--config {config}")

    usage_rows = plan["end"]["admitted"][0]["usage"]
    assert {row["resource"]: row["amount"] for row in usage_rows} == charged


@pytest.mark.parametrize(
    ("quota", "jobs", "said_of_it"),
    [
        ("{kind: [ClusterQueue]}", "", "declares no quota"),
        ("{apiVersion: kueue.x-k8s.io/v1beta2, kind: ClusterQueu, metadata: {name: x}}", "", "declares no quota"),
        (
            "",
            "{apiVersion: kueue.x-k8s.io/v1beta2, kind: Workloads, metadata: {name: x}}",
            "kind: Workloads is not a job",
        ),
        (
            "{InstanceGroups: [{InstanceType: x1, CurrentCount: 1}], SchedulerConfig: {IdleResourceSharing: Enabled}}",
            "",
            "not in the catalogue",
        ),
        ("", "{jobs: 5}", "must be an object, not 5"),
        ("", "{kind: WorkloadList, items: 5}", "must be an object, not 5"),
        ("", "{name: a, queue: research, minCount: -1}", "minCount: must be at least 0, not -1"),
    ],
)
def test_contradictory_input_is_refused_by_name(files: PlanFiles, quota: str, jobs: str, said_of_it: str) -> None:
    (files.folder / "q.yaml").write_text(QUEUE + "---\n" + quota)
    (files.folder / "j.yaml").write_text(jobs)
    words = ("plan", "--quota", str(files.folder / "q.yaml"), "--jobs", str(files.folder / "j.yaml"))
    code, _, error = run_command(*words)

    assert code == 2
    assert said_of_it in error


# ---------------------------------------------------------------- loops, admissions, gates, wording

ENDLESS = """
queues:
  - {name: q0, cohort: c, groups: [{f: {gpu: 0}}],
     preemption: {within: LowerPriority, reclaim: Any, borrowWithin: true}}
  - {name: q1, cohort: c, groups: [{f: {gpu: 4}}]}
  - {name: q2, cohort: c, groups: [{f: {gpu: 3}}],
     preemption: {within: LowerOrNewerEqualPriority, reclaim: Any, borrowWithin: true}}
"""
ENDLESS_JOBS: tuple[Json, ...] = (
    {"name": "small", "queue": "q2", "createdAt": 4, "requests": {"gpu": 1}},
    {"name": "held", "queue": "q1", "priority": 2, "createdAt": 5, "requests": {"gpu": 3}},
    {"name": "borrows", "queue": "q0", "priority": 1, "createdAt": 5, "requests": {"gpu": 4}},
    {"name": "large", "queue": "q2", "createdAt": 2, "requests": {"gpu": 4}},
)


def test_endless_eviction_loop_is_stopped_and_its_causes_named(files: PlanFiles) -> None:
    plan = files.plan(*ENDLESS_JOBS, quota=ENDLESS, options="--profile kueue --evictions released")

    (loop,) = plan["loops"]
    assert loop["jobs"] == ["borrows", "large", "small"]
    assert loop["lastCycle"] == plan["cycles"][-1]["number"] < 20
    assert {"queue": "q2", "field": "withinClusterQueue", "value": "LowerPriority"} in loop["settings"]
    assert any("evict each other without end" in warning for warning in plan["warnings"])


@pytest.mark.parametrize(
    ("old_setting", "new_setting"), [("within: LowerOrNewerEqualPriority", "within: LowerPriority")], ids=["within"]
)
def test_changing_a_named_setting_ends_the_eviction_loop(files: PlanFiles, old_setting: str, new_setting: str) -> None:
    quota = ENDLESS.replace(old_setting, new_setting)

    assert files.plan(*ENDLESS_JOBS, quota=quota, options="--profile kueue --evictions released")["loops"] == []


def test_later_events_still_apply_after_an_eviction_loop(files: PlanFiles) -> None:
    events = [{"type": "delete", "at": 9, "job": "borrows"}]
    options = "--profile kueue --evictions released"
    plan = files.plan(*ENDLESS_JOBS, quota=ENDLESS, events=events, options=options)

    assert [loop["at"] for loop in plan["loops"]] == [0]
    assert [job["job"] for job in plan["end"]["admitted"]] == ["held", "large"]


def test_evicted_jobs_that_keep_their_quota_do_not_loop(files: PlanFiles) -> None:
    assert files.plan(*ENDLESS_JOBS, quota=ENDLESS, options="--profile kueue")["loops"] == []


@pytest.mark.parametrize(
    ("admitted", "words"),
    [
        ({"flavors": {"gpu": "nosuch"}}, "flavor nosuch, which is not declared"),
        ({"flavors": {}}, "pod set main requests gpu, but its admission names no flavor for it"),
    ],
)
def test_admission_without_a_declared_flavor_is_refused(files: PlanFiles, admitted: Json, words: str) -> None:
    code, _, error = files.run(job("a", admitted=admitted), quota=SMALL)

    assert code == 2
    assert "Job/a: admitted.flavors" in error
    assert words in error


@pytest.mark.parametrize("flavors", [{"cpu": "p5"}, {"cpu": "p5", "nvidia.com/gpu": "p6"}])
def test_workload_admitted_without_a_flavor_is_refused(files: PlanFiles, flavors: Json) -> None:
    assignment = {"name": "main", "flavors": flavors, "count": 4}
    status = {"admission": {"clusterQueue": "research", "podSetAssignments": [assignment]}, "conditions": [HAS_QUOTA]}
    code, _, error = files.run(workload("a", status=status))

    assert code == 2
    assert "nvidia.com/gpu" in error


def test_undeclared_resource_that_is_ignored_needs_no_flavor(files: PlanFiles) -> None:
    config = files.folder / "c.yaml"
    config.write_text("resources: {quotaCheckStrategy: IgnoreUndeclared}")
    admitted = {"flavors": {"gpu": "f"}}
    plan = files.plan(
        job("a", requests={"gpu": 1, "disk": 1}, admitted=admitted), quota=SMALL, options=f"--config {config}"
    )

    assert [job["job"] for job in plan["end"]["admitted"]] == ["a"]


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        ({"TopologyAwareScheduling": True, "MultiKueue": True, "ConcurrentAdmission": False}, []),
        ({"LendingLimit": True, "HierarchicalCohorts": True}, []),
        (
            {"ConcurrentAdmission": True},
            ["featureGates.ConcurrentAdmission: true is not supported and changes no rule"],
        ),
        ({"FlavorFungibility": False}, ["featureGates.FlavorFungibility: false is not supported and changes no rule"]),
        ({"NoSuchGate": True}, ["featureGates.NoSuchGate: Kueue has no such gate up to version 0.20"]),
    ],
)
def test_only_unusual_feature_gates_are_warned_about(files: PlanFiles, gates: Json, expected: list[str]) -> None:
    config = files.folder / "c.yaml"
    config.write_text(yaml.safe_dump({"featureGates": gates}))
    plan = files.plan(quota=SMALL, options=f"--config {config}")

    assert [warning.partition(": ")[2] for warning in plan["warnings"] if "featureGates" in warning] == expected


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"count": True}, "count: must be a number, not true"),
        ({"requests": {"gpu": True}}, "requests.gpu: must be a number, not true"),
        ({"requests": {"gpu": [1]}}, "requests.gpu: must be a number or text, not a list"),
        ({"requests": {"gpu": "8x"}}, "requests.gpu: '8x' is not a quantity"),
        ({"requests": 3}, "requests: must be an object, not 3"),
        ({"createdAt": {"a": 1}}, "createdAt: must be a number or text, not an object"),
        ({"createdAt": "2020"}, "createdAt: '2020' is not an RFC 3339 time with a time zone"),
        ({"count": "many"}, "count: must be a whole number, not 'many'"),
        ({"admitted": {"flavors": [1]}}, "admitted.flavors"),
        ({"podSets": [{"name": "a", "count": -1}]}, "podSets[0].count: must be at least 0, not -1"),
        ({"name": None}, "name: is required"),
    ],
)
def test_invalid_plan_input_names_the_field_and_the_reason(files: PlanFiles, odd: Json, words: str) -> None:
    code, _, error = files.run({**job("a"), **odd}, quota=SMALL)

    assert code == 2
    assert words in error
    assert not any(word in error for word in ("Input should", "function-", "union", "tuple[", "dict[", "pydantic"))


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"at": 1}, "events[0].type: is required"),
        ({"type": "explode"}, "events[0].type: must be one of"),
        ({"type": "cycle", "count": 0}, "events[0].count: must be at least 1, not 0"),
    ],
)
def test_invalid_plan_event_names_the_field(files: PlanFiles, event: Json, words: str) -> None:
    code, _, error = files.run(job("a"), quota=SMALL, events=[event])

    assert code == 2
    assert words in error
    assert "Input" not in error


def test_table_shows_memory_with_suffixes_and_rfc3339_times(files: PlanFiles) -> None:
    container = {"name": "c", "resources": {"requests": {"memory": "3Gi", "cpu": "1500m", "nvidia.com/gpu": 1}}}
    waits = workload("a", {"podSets": [{"name": "main", "template": {"spec": {"containers": [container]}}}]})
    _, out, _ = files.run(waits, options="--now 2026-11-03T20:00:00Z -o table")

    assert "at 2026-11-03T20:00:00Z" in out
    assert "p5/memory 3Gi of 1Ti" in out


def test_table_shows_a_small_time_as_written(files: PlanFiles) -> None:
    _, out, _ = files.run(job("a"), quota=SMALL, options="--now 30.5 -o table")

    assert "cycle 1  at 30.5" in out
