"""The drill `users-jobs`: a node fails under jobs that users submitted without Evenkeel."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

from evenkeel.adapters.workload_resources import RESOURCES
from evenkeel.domain.external.unmanaged_workloads import RESUME_ALLOWED, RESUME_LABEL
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel_local.drills.drill_run import INCIDENT_SECONDS, DrillRun
from evenkeel_local.drills.harness import TrainingWork, wait_for

Json = dict[str, Any]

NAMESPACE: Final = "drill-users"
RBAC: Final = "rbac.authorization.k8s.io"
SCRIPT: Final = "\n".join(
    (
        'step=$(cat "$CHECKPOINT_DIR/step" 2>/dev/null || echo 0)',
        'echo "$step" >> "$CHECKPOINT_DIR/starts"',
        'while [ ! -e "$SIGNALS/end" ]; do',
        "  step=$((step + 1))",
        '  echo "$step" > "$CHECKPOINT_DIR/next"',
        '  mv "$CHECKPOINT_DIR/next" "$CHECKPOINT_DIR/step"',
        '  if [ "$DIES" = yes ] && [ -e "$SIGNALS/$NODE" ]; then exit 1; fi',
        "  sleep 0.1",
        "done",
    )
)
"""Saves a checkpoint at each step until the drill ends it. With `DIES=yes` it fails on a node with a fault."""
SUSPENDED, FAILED, SILENT, HYPERPODS = "runs-on", "dies", "without-consent", "auto-resume"
CONSENT: Final = {RESUME_LABEL: RESUME_ALLOWED}
JOBS: Final[dict[str, tuple[WorkloadKind, Json, bool]]] = {
    SUSPENDED: (WorkloadKind.JOB_SET, {"labels": CONSENT}, False),
    FAILED: (WorkloadKind.PYTORCH_JOB, {"labels": CONSENT}, True),
    SILENT: (WorkloadKind.JOB, {}, False),
    HYPERPODS: (
        WorkloadKind.PYTORCH_JOB,
        {"labels": CONSENT, "annotations": {"sagemaker.amazonaws.com/enable-job-auto-resume": "true"}},
        False,
    ),
}
"""Each job with its kind, its marks, and whether its process fails with the node. No operator restarts these jobs."""


def users_jobs(drill: DrillRun) -> None:
    """A GPU fails on a node with jobs of users. Evenkeel restarts the jobs that nothing else would restart."""
    node = drill.submit_and_choose_node(TrainingWork(paced_attempts=1))
    with tempfile.TemporaryDirectory(prefix="evenkeel-drill-") as name:
        folder = Path(name)
        try:
            _create_jobs(drill, node["name"], folder)
            uids = {job: _find_job(drill, job)["metadata"]["uid"] for job in JOBS}
            (folder / node["name"]).touch()
            drill.inject_fault("gpu-xid79", node)
            for job in (SUSPENDED, FAILED):
                wait_for(f"the next start of {job}", INCIDENT_SECONDS, partial(_runs_again, folder, job))
            incident = drill.wait_until_settled(node)
            _check_jobs(drill, folder, incident, uids)
        finally:
            drill.cluster.delete(f"/api/v1/namespaces/{NAMESPACE}")
    drill.finish()


def _check_jobs(drill: DrillRun, folder: Path, incident: Json, uids: dict[str, str]) -> None:
    (folder / "end").touch()
    for job in (SUSPENDED, FAILED):
        wait_for(f"the end of {job}", INCIDENT_SECONDS, partial(_has_succeeded, drill, job))
        starts = _start_steps(folder, job)
        drill.check(f"{job} resumes from its checkpoint", len(starts) == 2 and starts[1] > 0, starts)
    text = " ".join(str(line["text"]) for line in drill.timeline(incident))
    unchanged_jobs = {job for job in JOBS if _find_job(drill, job)["metadata"]["uid"] == uids[job]}
    drill.check(
        "a job that runs keeps its object", SUSPENDED in unchanged_jobs and f"{SUSPENDED} is suspended" in text, text
    )
    drill.check(
        "a failed job is created again", FAILED not in unchanged_jobs and f"{FAILED} is created again" in text, text
    )
    drill.check("a job without consent is left alone", SILENT in unchanged_jobs and f"/{SILENT} is" not in text, text)
    drill.check("HyperPod's auto-resume is left alone", f"/{HYPERPODS} is left alone: HyperPod" in text, text)


def _create_jobs(drill: DrillRun, node: str, folder: Path) -> None:
    """Create the users' jobs on the node, and wait until each has saved a checkpoint."""
    group = {"kind": "Group", "name": "evenkeel:restarters", "apiGroup": RBAC}
    role = {"kind": "ClusterRole", "name": "evenkeel-restarter", "apiGroup": RBAC}
    binding = {"name": "evenkeel-restarters", "namespace": NAMESPACE}
    drill.cluster.apply(
        [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            {
                "apiVersion": f"{RBAC}/v1",
                "kind": "RoleBinding",
                "metadata": binding,
                "subjects": [group],
                "roleRef": role,
            },
        ]
    )
    drill.cluster.apply([_manifest(job, node, folder) for job in JOBS])
    for job in JOBS:
        wait_for(f"the first checkpoint of {job}", INCIDENT_SECONDS, (folder / job / "step").exists)


def _manifest(job: str, node: str, folder: Path) -> Json:
    kind, marks, dies = JOBS[job]
    (folder / job).mkdir()
    variables = {"CHECKPOINT_DIR": f"{folder}/{job}", "SIGNALS": str(folder), "DIES": "yes" if dies else "no"}
    container = {
        "name": "pytorch",
        "image": "registry/users-trainer:1",
        "command": ["sh", "-c", SCRIPT],
        "env": [
            *({"name": name, "value": value} for name, value in variables.items()),
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
    }
    hostname_term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    preferred_terms = [{"weight": 100, "preference": {"matchExpressions": [hostname_term]}}]
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred_terms}},
    }
    item = {"kind": str(kind), "metadata": {"name": job, "namespace": NAMESPACE, **marks}}
    return {**item, "apiVersion": RESOURCES[kind].api_version, "spec": _job_spec(kind, pod)}


def _job_spec(kind: WorkloadKind, pod: Json) -> Json:
    template = {"spec": pod}
    if kind is WorkloadKind.PYTORCH_JOB:
        return {"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "restartPolicy": "Never", "template": template}}}
    job = {"completions": 1, "parallelism": 1, "backoffLimit": 0, "template": template}
    return job if kind is WorkloadKind.JOB else {"replicatedJobs": [{"name": "ranks", "template": {"spec": job}}]}


def _find_job(drill: DrillRun, job: str) -> Json:
    return drill.cluster.get(RESOURCES[JOBS[job][0]].path(NAMESPACE, job))


def _has_succeeded(drill: DrillRun, job: str) -> bool:
    end_states = ("Complete", "Completed", "Succeeded")
    conditions = (_find_job(drill, job).get("status") or {}).get("conditions") or ()
    return any(condition["type"] in end_states and condition["status"] == "True" for condition in conditions)


def _start_steps(folder: Path, job: str) -> list[int]:
    """Return the step at which each run of a job started."""
    return [int(line) for line in (folder / job / "starts").read_text(encoding="utf-8").split()]


def _runs_again(folder: Path, job: str) -> bool:
    return len(_start_steps(folder, job)) > 1
