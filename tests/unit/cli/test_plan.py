"""`evenkeel plan` on files: the worked examples, every kind of document, and what is said of bad ones."""

import contextlib
import io
import json
import subprocess
import sys
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


class Files:
    """Files in a folder, and the command run on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def plan(self, *jobs: Json, quota: str = QUEUE, events: list[Json] | None = None, options: str = "") -> Json:
        code, out, error = self.run(*jobs, quota=quota, events=events, options=options)
        assert code == 0, error
        found: Json = json.loads(out)
        return found

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
        return said(*words)


def said(*words: str) -> tuple[int, str, str]:
    """Run the command; return its exit code and what it wrote."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(words)
    return code, out.getvalue(), error.getvalue()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def example(number: int, *options: str) -> Json:
    """Run one worked example."""
    name = EXAMPLES / f"x{number}"
    code, out, error = said(
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
    found: Json = json.loads(out)
    return found


def first(found: Json) -> dict[str, Json]:
    """Return the first cycle's decisions by job."""
    return {each["job"]: each for each in found["cycles"][0]["decisions"]}


def victims(decision: Json) -> dict[str, str]:
    return {each["job"]: each["reason"] for each in decision["victims"]}


# ---------------------------------------------------------------- the worked examples


def test_x1_capacity_flows_up_and_down_a_tree() -> None:
    queues = {each["name"]: each["quotas"][0] for each in example(1)["end"]["queues"]}

    assert [queues[name]["potential"] for name in ("red", "blue", "green")] == ["24", "12", "17"]
    assert [queues[name]["available"] for name in ("red", "blue", "green")] == ["5", "2", "5"]
    assert queues["blue"]["borrowed"] == "2"


def test_x2_borrowing_on_the_first_flavor_ends_the_search() -> None:
    (decision,) = example(2)["cycles"][0]["decisions"]

    assert (decision["result"], decision["level"]) == ("Admitted", 1)
    assert decision["podSets"][0]["flavors"]["gpu"] == {"flavor": "hp", "mode": "Fit", "level": 1, "tried": 0}


def test_x3_reclaim_gives_back_who_was_not_needed_and_admits_once_the_pods_are_gone() -> None:
    found = example(3, "--events", str(EXAMPLES / "x3-events.yaml"))

    assert victims(first(found)["new"]) == {"b3": "InCohortReclamation"}
    assert [each["job"] for each in found["end"]["admitted"]] == ["b1", "b2", "new"]
    assert next(each for each in found["end"]["admitted"] if each["job"] == "new")["at"] == 100


def test_x4_fair_sharing_takes_by_the_final_share_then_by_the_initial_one() -> None:
    found = example(4, "--config", str(EXAMPLES / "x4-config.yaml"))

    assert victims(first(found)["new"]) == {"b4": "InCohortFairSharing", "b3": "InCohortFairSharing"}
    shares = {each["name"]: each["share"] for each in found["end"]["queues"]}
    assert (shares["B"]["value"], shares["A"]["value"]) == (334, 0)
    assert shares["B"]["precise"] == pytest.approx(333.333, abs=0.001)


def test_x5_partial_admission_finds_the_largest_size() -> None:
    (decision,) = example(5)["cycles"][0]["decisions"]

    assert {each["name"]: each["count"] for each in decision["podSets"]} == {"workers": 5, "eval": 3}
    assert decision["usage"] == [{"flavor": "hp", "resource": "gpu", "amount": "13"}]


def test_x6_a_head_without_candidates_keeps_its_room_for_the_cycle() -> None:
    found = first(example(6))

    assert found["big"]["reserved"] == [{"flavor": "hp", "resource": "gpu", "amount": "6"}]
    assert (found["big"]["result"], found["big"]["requeue"]) == ("NoCandidates", "parked")
    assert (found["small"]["result"], found["small"]["requeue"]) == ("Skipped", "active")


# ---------------------------------------------------------------- Kueue's documents


def test_a_workload_is_counted_as_its_pods_ask(files: Files) -> None:
    init = {"name": "i", "resources": {"requests": {"cpu": 5}}}
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"limits": {"cpu": "250m"}}}
    found = files.plan(workload("a", initContainers=[sidecar, init], overhead={"memory": "64Mi"}))

    usage = {each["resource"]: each["amount"] for each in found["cycles"][0]["decisions"][0]["usage"]}
    # Starting takes 5 + 0.25 cores, more than the 1.5 + 0.25 of running.
    assert usage == {"cpu": "21", "memory": str(4 * 64 * 2**20), "nvidia.com/gpu": "4"}


def test_a_priority_class_is_looked_up(files: Files) -> None:
    low, high = workload("low", {"priority": 10}), workload("high", {"priorityClassName": "urgent"})
    found = files.plan(low, high)

    assert [each["decisions"][0]["job"] for each in found["cycles"][:2]] == ["lab/high", "lab/low"]


def test_an_admitted_workload_holds_what_was_recorded_less_what_it_gave_back(files: Files) -> None:
    flavors = {"cpu": "p5", "nvidia.com/gpu": "p5"}
    given = {"name": "main", "count": 4, "flavors": flavors, "resourceUsage": {"cpu": 8, "nvidia.com/gpu": 4}}
    status = {
        "admission": {"clusterQueue": "research", "podSetAssignments": [given]},
        "conditions": [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-11-03T10:00:05Z"}],
        "reclaimablePods": [{"name": "main", "count": 1}],
    }
    found = files.plan(workload("a", status=status))

    usage = {each["resource"]: each["amount"] for each in found["end"]["admitted"][0]["usage"]}
    assert usage == {"cpu": "6", "nvidia.com/gpu": "3"}


def test_a_namespace_that_does_not_match_is_not_taken_and_blocks_nobody(files: Files) -> None:
    strict = QUEUE.replace("  cohort: fleet", "  cohort: fleet\n  queueingStrategy: StrictFIFO")
    stranger = workload("a", {"priority": 100})
    stranger["metadata"]["namespace"] = "other"
    quota = strict + "\n---\n{apiVersion: kueue.x-k8s.io/v1beta1, kind: LocalQueue, "
    quota += "metadata: {name: main, namespace: other}, spec: {clusterQueue: research}}\n"
    found = files.plan(stranger, workload("b"), quota=quota)

    assert first(found)["other/a"]["result"] == "Inadmissible"
    assert [each["job"] for each in found["end"]["admitted"]] == ["lab/b"]


def test_a_queue_that_is_stopped_is_no_candidate_and_still_counts(files: Files) -> None:
    quota = {
        "queues": [
            {"name": "a", "cohort": "c", "groups": [{"f": {"gpu": 4}}], "preemption": {"reclaim": "Any"}},
            {"name": "b", "cohort": "c", "groups": [{"f": {"gpu": 4}}], "stop": "Hold"},
        ]
    }
    job = {"name": "b1", "queue": "b", "requests": {"gpu": 8}, "admitted": {"flavors": {"gpu": "f"}}}
    waiting = [{"name": name, "queue": name, "requests": {"gpu": 1}} for name in ("a", "b")]
    found = files.plan({"jobs": [job, *waiting]}, quota=yaml.safe_dump(quota))

    assert (first(found)["a"]["result"], first(found)["a"]["victims"]) == ("NoCandidates", [])
    queues = {each["name"]: each for each in found["end"]["queues"]}
    assert (queues["b"]["inactive"], queues["b"]["active"]) == ("its stop policy is Hold", ["b"])


def test_a_missing_flavor_makes_a_queue_inactive(files: Files) -> None:
    found = files.plan(
        workload("a"),
        quota=QUEUE.replace("kind: ResourceFlavor, metadata: {name: p5}", "kind: ResourceFlavor, metadata: {name: p4}"),
    )

    assert found["cycles"] == []
    assert found["end"]["queues"][0]["inactive"] == "its flavors p5 do not exist"


def test_more_than_64_bits_has_no_bound(files: Files) -> None:
    quota = QUEUE.replace("nominalQuota: 96", "nominalQuota: 10E").replace("nominalQuota: 8", "nominalQuota: 10E")
    found = files.plan(workload("a"), quota=quota)

    held = {each["resource"]: each["available"] for each in found["end"]["queues"][0]["quotas"]}
    assert held == {"cpu": "unlimited", "memory": str(2**40), "nvidia.com/gpu": "unlimited"}


# ---------------------------------------------------------------- events

SMALL = "{queues: [{name: q, groups: [{f: {gpu: 4}}]}]}"


def job(name: str, gpus: int = 4, **rest: Any) -> Json:
    return {"name": name, "queue": "q", "requests": {"gpu": gpus}, **rest}


def test_what_happens_in_one_instant_happens_before_the_cycle(files: Files) -> None:
    events = [
        {"at": 1, "type": "submit", "jobs": [job("a"), job("b", priority=1)]},
        {"at": 5, "type": "finish", "job": "b"},
    ]
    found = files.plan(quota=SMALL, events=events)

    assert [(each["at"], each["decisions"][0]["job"]) for each in found["cycles"]] == [(1, "b"), (1, "a"), (5, "a")]


def test_time_begins_at_the_latest_admission_and_null_is_as_good_as_nothing(files: Files) -> None:
    quota = "{queues: [{name: q, cohort: null, groups: [{f: {gpu: 4}}], preemption: {within: LowerPriority}}]}"
    jobs = (
        job("known", 2, admitted={"at": 50, "flavors": {"gpu": "f"}}),
        job("unknown", 2, admitted={"at": None, "flavors": {"gpu": "f"}}),
        job("new", 2, priority=1),
    )
    found = files.plan(*jobs, quota=quota)

    # Both count as admitted at 50; the name decides.
    assert (found["cycles"][0]["at"], list(victims(first(found)["new"]))) == (50, ["known"])
    assert list(victims(first(files.plan(*jobs, quota=quota, options="--now 60"))["new"])) == ["unknown"]


def test_cycles_run_only_where_they_are_said_to(files: Files) -> None:
    found = files.plan(job("a", 1), job("b", 1), quota=SMALL, events=[{"at": 0, "type": "cycle"}])

    assert len(found["cycles"]) == 1
    assert found["end"]["queues"][0]["active"] == ["b"]


def test_a_ready_timeout_costs_the_place_and_backs_off(files: Files) -> None:
    events = [
        {"at": 10, "type": "notReady", "job": "a"},
        {"at": 20, "type": "finish", "job": "b"},
        {"at": 70, "type": "submit", "job": job("c", 1)},
    ]
    found = files.plan(job("a"), job("b", createdAt=1), quota=SMALL, events=events)

    admitted = [
        (each["at"], decision["job"])
        for each in found["cycles"]
        for decision in each["decisions"]
        if decision["result"] == "Admitted"
    ]
    assert admitted == [(0, "a"), (10, "b"), (70, "c")]
    # Backed off until 70, it is tried again, behind c, which began to wait before its eviction counted.
    assert found["end"]["queues"][0]["parked"] == ["a"]


def test_growing_takes_the_difference_and_ends_the_smaller_slice(files: Files) -> None:
    events = [{"at": 1, "type": "resize", "job": "a", "counts": [4]}]
    found = files.plan(job("a", 1, count=2), quota=SMALL, events=events)

    last = found["cycles"][-1]["decisions"][0]
    assert (last["job"], last["replaces"], last["result"]) == ("a-2", "a", "Admitted")
    assert last["usage"] == [{"flavor": "f", "resource": "gpu", "amount": "2"}]
    assert [each["job"] for each in found["end"]["admitted"]] == ["a-2"]


def test_shrinking_frees_quota_at_once_and_wakes_the_tree(files: Files) -> None:
    events = [{"at": 1, "type": "shrink", "job": "a", "counts": [2]}]
    found = files.plan(job("a", 1, count=4), job("b", 2, createdAt=1), quota=SMALL, events=events)

    assert [each["job"] for each in found["end"]["admitted"]] == ["a", "b"]


def test_a_cut_of_quota_evicts_nobody_and_lets_nobody_in(files: Files) -> None:
    less = {"queues": [{"name": "q", "groups": [{"f": {"gpu": 1}}]}]}
    events: list[Json] = [
        {"at": 1, "type": "quota", "documents": [less]},
        {"at": 2, "type": "submit", "job": job("b", 1)},
    ]
    found = files.plan(job("a"), quota=SMALL, events=events)

    assert found["cycles"][-1]["decisions"][0]["result"] == "NoCandidates"
    assert found["end"]["queues"][0]["quotas"][0]["available"] == "0"


def test_evicted_jobs_hold_their_quota_unless_they_are_released(files: Files) -> None:
    quota = "{queues: [{name: q, groups: [{f: {gpu: 4}}], preemption: {within: LowerPriority}}]}"
    jobs = (job("a", admitted={"at": 0, "flavors": {"gpu": "f"}}), job("b", priority=1))
    held, released = files.plan(*jobs, quota=quota), files.plan(*jobs, quota=quota, options="--evictions released")

    assert [(each["job"], each["evicted"]) for each in held["end"]["admitted"]] == [("a", True)]
    assert [each["job"] for each in released["end"]["admitted"]] == ["b"]
    assert released["end"]["queues"][0]["parked"] == ["a"]


# ---------------------------------------------------------------- what is said of bad ones


@pytest.mark.parametrize(
    ("quota", "words"),
    [
        ("a: [", "q.yaml is neither YAML nor JSON"),
        ("x: 1", "q.yaml: is neither a Kueue manifest"),
        ("{kind: ClusterQueue, metadata: {}}", "q.yaml: ClusterQueue/: metadata.name: Field required"),
        (QUEUE.replace("1Ti", "1Tx"), "resourceGroups.0.flavors.0.resources.1.nominalQuota"),
        (
            QUEUE.replace("matchLabels: {team", "matchExpressions: [{key: a, operator: Has}], matchLabels: {team"),
            "operator",
        ),
        ("{queues: [{name: q, strategy: Random}]}", "queues.0.strategy"),
        (
            "{ComputeQuotaTarget: {TeamName: a}, ComputeQuotaConfig: {ComputeQuotaResources: [{InstanceType: x}]}}",
            "x is not in the catalogue",
        ),
    ],
)
def test_a_bad_file_is_named_with_the_field(files: Files, quota: str, words: str) -> None:
    code, out, error = files.run(quota=quota)

    assert (code, out) == (2, "")
    assert words in error


def test_a_bad_event_is_named_by_its_number(files: Files) -> None:
    code, _, error = files.run(quota=SMALL, events=[{"at": 1, "type": "finish", "job": "nobody"}])

    assert code == 2
    assert "e.yaml: events[0]: job: there is no job nobody" in error


@pytest.mark.parametrize("admitted", [{"flavors": [{"gpu": "f"}, {"gpu": "f"}]}, {"flavors": {}, "counts": [1, 1]}])
def test_an_admission_of_another_number_of_pod_sets_is_refused(files: Files, admitted: Json) -> None:
    code, _, error = files.run(job("a", admitted=admitted), quota=SMALL)

    assert code == 2
    assert "one for each pod set is needed" in error


def test_what_is_not_known_is_told_and_nothing_else(files: Files) -> None:
    odd = workload("a", {"colour": "blue"}, schedulerName="x", nodeSelektor={})
    code, _, error = files.run(odd, quota=QUEUE.replace("cohort: fleet", "cohort: fleet\n  admissionChecks: []"))

    assert code == 0
    assert [line.rpartition(": ")[2].split()[0] for line in error.splitlines()] == [
        "spec.admissionChecks",
        "spec.colour",
        "spec.podSets[0].template.spec.nodeSelektor",
    ]


def test_a_missing_namespace_selector_is_taken_as_every_namespace_and_said(files: Files) -> None:
    quota = QUEUE.replace("  namespaceSelector: {matchLabels: {team: research}}\n", "")
    code, out, error = files.run(workload("a"), quota=quota)

    assert (code, json.loads(out)["end"]["admitted"][0]["job"]) == (0, "lab/a")
    assert "Kueue would admit nobody" in error


def test_a_selector_of_nothing_takes_nobody(files: Files) -> None:
    quota = QUEUE.replace("{matchLabels: {team: research}}", "null")

    assert first(files.plan(workload("a"), quota=quota))["lab/a"]["result"] == "Inadmissible"


def test_no_aws_is_imported() -> None:
    words = ["plan", "--quota", str(EXAMPLES / "x3-quota.yaml"), "--jobs", str(EXAMPLES / "x3-jobs.yaml")]
    code = (
        f"import sys; from evenkeel_cli.main import main; main({words}); "
        "sys.exit(any(name.startswith(('boto', 'urllib3')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


# ---------------------------------------------------------------- the schemas


def test_the_schemas_are_those_of_the_types() -> None:
    stale = [
        name
        for name, each in schemas().items()
        if json.loads((TARGET / f"{name}.schema.json").read_text(encoding="utf-8")) != json.loads(json.dumps(each))
    ]
    assert stale == [], "run `python tools/schemas.py`"


def test_examples_and_answers_satisfy_their_schemas(files: Files) -> None:
    found = schemas()
    check = {name: jsonschema.Draft202012Validator(each) for name, each in found.items()}
    for path in sorted(EXAMPLES.glob("*.yaml")):
        kind = {"quota": "quota.kueue", "jobs": "jobs", "events": "events", "config": "configuration.kueue"}
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            check[kind[path.stem.partition("-")[2]]].validate(document)
    for number in range(1, 7):
        check["plan"].validate(example(number))
    check["why"].validate(example(6, "--why", "big"))


# ---------------------------------------------------------------- why


def test_why_names_the_smallest_changes_and_they_work(files: Files) -> None:
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
    found = files.plan(*jobs, quota=yaml.safe_dump(quota), options="--why new")
    changes = {each["kind"]: each for each in found["changes"]}

    assert changes["quota"]["amounts"] == {"gpu": "3"}
    assert changes["priority"]["priority"] == 6
    assert changes["size"]["counts"] == [3]
    assert changes["wait"]["jobs"] == ["a"]
    assert found["decision"]["considered"][0]["compared"][0]["available"] == "3"
    # Each of them, made, gets it in.
    more = json.loads(json.dumps(quota).replace('"gpu": 6', '"gpu": 9'))
    assert first(files.plan(*jobs, quota=yaml.safe_dump(more)))["new"]["result"] == "Admitted"
    raised = (*jobs[:2], job("new", 1, count=6, priority=6))
    assert victims(first(files.plan(*raised, quota=yaml.safe_dump(quota)))["new"]) == {"a": "InClusterQueue"}


def test_why_of_a_job_in_no_queue_says_so(files: Files) -> None:
    code, _, error = files.run({"name": "x", "queue": "none"}, quota=SMALL, options="--why x")

    assert code == 4
    assert "there is no queue none" in error


def test_quota_files_are_written_in_another_spelling_and_what_is_lost_is_said(files: Files, tmp_path: Path) -> None:
    (tmp_path / "q.yaml").write_text(QUEUE)
    code, out, error = said("quota", "import", str(tmp_path / "q.yaml"))
    (tmp_path / "short.json").write_text(out)

    assert code == 0
    assert "lost: ClusterQueue research: its namespace selector" in error
    assert json.loads(out)["documents"][0]["queues"][0]["name"] == "research"
    assert said("quota", "export", "--to", "kueue", str(tmp_path / "short.json"))[0] == 0
    assert said("quota", "export", "--to", "slurm", str(tmp_path / "short.json"))[0] == 2


# ---------------------------------------------------------------- queues that stop, appear, or take somebody not


def reserved(name: str, *conditions: Json) -> Json:
    """Return a Workload that holds quota, with what else is said of it."""
    assignment = {"name": "main", "flavors": {"cpu": "p5"}, "resourceUsage": {"cpu": "2"}, "count": 4}
    admission = {"clusterQueue": "research", "podSetAssignments": [assignment]}
    return workload(name, status={"admission": admission, "conditions": list(conditions)})


HAS_QUOTA: Json = {"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-11-03T11:00:00Z"}
NOT_YET: Json = {"type": "Admitted", "status": "False", "lastTransitionTime": "2026-11-03T11:00:00Z"}


def evicted(found: Json) -> dict[str, bool]:
    return {each["job"]: each["evicted"] for each in found["end"]["admitted"]}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("None", {"lab/runs": False, "lab/waits": False}),
        ("Hold", {"lab/runs": False, "lab/waits": True}),
        ("HoldAndDrain", {"lab/runs": True, "lab/waits": True}),
    ],
)
@pytest.mark.parametrize("of", ["ClusterQueue", "LocalQueue"])
def test_a_hold_lets_go_who_has_only_its_quota_and_a_drain_everybody(
    files: Files, of: str, policy: str, expected: dict[str, bool]
) -> None:
    jobs = (reserved("runs", HAS_QUOTA), reserved("waits", HAS_QUOTA, NOT_YET))
    where = "cohort: fleet" if of == "ClusterQueue" else "clusterQueue: research"
    quota = QUEUE.replace(
        where, where + (f"\n  stopPolicy: {policy}" if of == "ClusterQueue" else f", stopPolicy: {policy}")
    )

    assert evicted(files.plan(*jobs, quota=quota)) == expected


def test_a_queue_that_appears_takes_who_waited_for_it_and_one_that_stops_lets_them_go(files: Files) -> None:
    local = {
        "kind": "LocalQueue",
        "metadata": {"name": "main", "namespace": "lab"},
        "spec": {"clusterQueue": "research"},
    }
    stopped = {**local, "spec": {"clusterQueue": "research", "stopPolicy": "Hold"}}
    events = [
        {"type": "quota", "at": 1, "documents": [local]},
        {"type": "submit", "at": 2, "job": workload("large", {"priority": -1})},
        {"type": "submit", "at": 2, "job": workload("second", {"priority": -1})},
        {"type": "quota", "at": 3, "documents": [stopped]},
    ]
    found = files.plan(workload("first"), quota=QUEUE.replace("name: main,", "name: other,"), events=events)

    assert [
        each["at"] for each in found["cycles"] for decision in each["decisions"] if decision["job"] == "lab/first"
    ] == [1]
    assert sorted(evicted(found)) == ["lab/first", "lab/large"]
    assert found["end"]["unqueued"] == [{"job": "lab/second", "reason": "LocalQueue lab/main is stopped"}]


def test_who_is_not_taken_is_told_each_by_itself_and_once(files: Files) -> None:
    quota = QUEUE.replace("labels: {team: research}", "labels: {team: other}")
    ends = [{"type": "quota", "at": 5, "documents": []}]
    found = files.plan(workload("a"), workload("b"), quota=quota, events=ends)

    results = [(each["job"], each["result"]) for cycle in found["cycles"] for each in cycle["decisions"]]
    assert results == [("lab/a", "Inadmissible"), ("lab/b", "Inadmissible")]


def test_who_failed_its_checks_is_not_taken(files: Files) -> None:
    checks = {"admissionChecks": [{"name": "budget", "state": "Rejected", "message": "too dear"}]}
    (decision,) = files.plan(workload("a", status=checks))["cycles"][0]["decisions"]

    assert (decision["result"], decision["reason"]) == ("Inadmissible", "It failed its admission checks: budget.")


def test_one_file_may_hold_queues_and_jobs(files: Files) -> None:
    both = QUEUE + "---\n" + yaml.safe_dump(workload("a"))
    (files.folder / "all.yaml").write_text(both)
    name = str(files.folder / "all.yaml")
    code, out, error = said("plan", "--profile", "kueue", "--quota", name, "--jobs", name, "-o", "json")

    assert (code, sorted(evicted(json.loads(out)))) == (0, ["lab/a"])
    assert "Workload/a: declares no quota: it is passed over here" in error
    assert "LocalQueue is no job: it is passed over here" in error


def test_kueues_admission_fair_sharing_orders_by_what_local_queues_used(files: Files) -> None:
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
    busy = reserved("busy", HAS_QUOTA)
    urgent, waits = workload("urgent", {"priority": 9}), workload("waits", {"queueName": "other"})
    options = f"--config {config} --now 2026-11-03T20:00:00Z"
    quota = quota.replace("nominalQuota: 8", "nominalQuota: 9") + "---\n" + yaml.safe_dump(local)
    found = files.plan(busy, urgent, waits, quota=quota, options=options)

    assert [each["job"] for cycle in found["cycles"] for each in cycle["decisions"]] == ["lab/waits", "lab/urgent"]
    found = files.plan(busy, urgent, waits, quota=quota)
    assert [each["job"] for cycle in found["cycles"] for each in cycle["decisions"]] == ["lab/urgent", "lab/waits"]


@pytest.mark.parametrize(
    ("quota", "jobs", "said_of_it"),
    [
        ("{kind: [ClusterQueue]}", "", "declares no quota"),
        (
            "{InstanceGroups: [{InstanceType: x1, CurrentCount: 1}], SchedulerConfig: {IdleResourceSharing: Enabled}}",
            "",
            "not in the catalogue",
        ),
        ("", "{jobs: 5}", "Input should be"),
        ("", "{kind: WorkloadList, items: 5}", "Input should be"),
        ("", "{name: a, queue: research, minCount: -1}", "greater than or equal to 0"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(files: Files, quota: str, jobs: str, said_of_it: str) -> None:
    (files.folder / "q.yaml").write_text(QUEUE + "---\n" + quota)
    (files.folder / "j.yaml").write_text(jobs)
    words = ("plan", "--quota", str(files.folder / "q.yaml"), "--jobs", str(files.folder / "j.yaml"))
    code, _, error = said(*words)

    assert code == 2
    assert said_of_it in error
