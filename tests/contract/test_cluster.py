"""The port Cluster: one body for the twin and for the adapter on the local GPU cluster."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from evenkeel.domain.capacity.efa import EfaRequest
from evenkeel.domain.external.unmanaged_workloads import PodRecreation, UnmanagedPod
from evenkeel.domain.jobs.attempt import PodPhase
from evenkeel.domain.nodes import AWAITING_VALIDATION_TAINT
from evenkeel.domain.recovery.validation import CheckResult
from evenkeel.domain.resources import NONE
from evenkeel.ports import (
    CheckSpec,
    CordonResult,
    EvictionStatus,
    LaunchResult,
    LaunchSpec,
    NotFound,
    Refused,
    ReleaseResult,
    RepairAnswer,
)
from tests.contract.clusters_under_test import (
    CLUSTER,
    NAMESPACE,
    ClusterUnderTest,
    FakeClusterUnderTest,
    a_launch,
    free_nodes,
    on_both,
    seen,
)


@pytest.fixture(params=["twin", "local"])
def bed(request: pytest.FixtureRequest) -> Iterator[ClusterUnderTest]:
    if request.param == "twin":
        yield FakeClusterUnderTest()
    else:
        yield from on_both(request.getfixturevalue("gpu_cluster"), request.param)


def test_server_version_comes_from_the_server(bed: ClusterUnderTest) -> None:
    assert bed.cluster.server_version(CLUSTER).startswith("v1.")


def test_healthy_node_is_read_as_healthy(bed: ClusterUnderTest) -> None:
    node = free_nodes(bed)[0]

    assert bed.cluster.node(CLUSTER, node.name) == node
    assert node.name == f"hyperpod-{node.instance_id}"
    assert (node.is_ready, node.not_ready_since, node.is_cordoned, node.incident_id) == (True, None, False, None)
    assert (node.accelerators, node.accelerator_resource) == (8, "nvidia.com/gpu")
    assert (node.efa, node.huge_pages_mib) == (32, 10_256)
    assert (node.pool, node.instance_type) == ("p5-workers", "ml.p5.48xlarge")
    assert node.boot_id
    assert node.labels["kubernetes.io/hostname"]


def test_nodes_are_sorted_and_tainted_nodes_await_validation(bed: ClusterUnderTest) -> None:
    nodes = bed.eventually(lambda: bed.cluster.nodes(CLUSTER), "nodes")

    assert [node.name for node in nodes] == sorted(node.name for node in nodes)
    tainted = [node for node in nodes if node.pool == "p5-tainted"]
    assert tainted
    assert all(node.is_awaiting_validation and not node.is_schedulable for node in tainted)


def test_missing_node_is_none(bed: ClusterUnderTest) -> None:
    assert bed.cluster.node(CLUSTER, "hyperpod-i-0aaaaaaaaaaaaaaaa") is None
    assert bed.cluster.cordon(CLUSTER, "hyperpod-i-0aaaaaaaaaaaaaaaa", "inc-1") is CordonResult.GONE
    assert bed.cluster.release(CLUSTER, "hyperpod-i-0aaaaaaaaaaaaaaaa", "inc-1") is ReleaseResult.GONE


def test_repeated_cordon_is_recognised_by_its_mark(bed: ClusterUnderTest) -> None:
    name = free_nodes(bed)[0].name

    first = bed.cluster.cordon(CLUSTER, name, "inc-1")
    second = bed.cluster.cordon(CLUSTER, name, "inc-1")
    other = bed.cluster.cordon(CLUSTER, name, "inc-2")

    assert (first, second, other) == (
        CordonResult.CORDONED,
        CordonResult.ALREADY_OURS,
        CordonResult.BY_OTHER_INCIDENT,
    )
    node = bed.cluster.node(CLUSTER, name)
    assert node is not None
    assert (node.is_cordoned, node.incident_id, node.is_schedulable) == (True, "inc-1", False)


def test_cordon_of_a_person_is_kept(bed: ClusterUnderTest) -> None:
    name = free_nodes(bed)[0].name
    bed.cordon_as_a_person(name)

    assert bed.cluster.cordon(CLUSTER, name, "inc-1") is CordonResult.BY_PERSON
    assert bed.cluster.release(CLUSTER, name, "inc-1") is ReleaseResult.NOT_OURS
    assert bed.cluster.release(CLUSTER, name, None) is ReleaseResult.NOT_OURS
    node = bed.cluster.node(CLUSTER, name)
    assert node is not None
    assert node.is_cordoned


def test_release_removes_our_cordon_and_only_our_taint(bed: ClusterUnderTest) -> None:
    name = free_nodes(bed)[0].name
    bed.taint(name)
    bed.cluster.cordon(CLUSTER, name, "inc-1")

    other = bed.cluster.release(CLUSTER, name, "inc-2")
    first = bed.cluster.release(CLUSTER, name, "inc-1")
    second = bed.cluster.release(CLUSTER, name, "inc-1")

    assert (other, first, second) == (ReleaseResult.NOT_OURS, ReleaseResult.RELEASED, ReleaseResult.ALREADY_FREE)
    node = bed.cluster.node(CLUSTER, name)
    assert node is not None
    assert (node.is_cordoned, node.incident_id, node.is_awaiting_validation) == (False, None, False)
    own = [taint for taint in node.taints if not taint.startswith("node.kubernetes.io/unschedulable")]
    assert own == ["own=x:NoSchedule"]


def test_release_without_an_incident_removes_the_taint(bed: ClusterUnderTest) -> None:
    name = free_nodes(bed)[0].name
    bed.taint(name)

    assert bed.cluster.release(CLUSTER, name, None) is ReleaseResult.RELEASED
    assert bed.cluster.release(CLUSTER, name, None) is ReleaseResult.ALREADY_FREE
    node = bed.cluster.node(CLUSTER, name)
    assert node is not None
    assert not any(AWAITING_VALIDATION_TAINT in taint for taint in node.taints)


def test_uncordon_removes_a_persons_cordon_and_keeps_a_recoverys(bed: ClusterUnderTest) -> None:
    name = free_nodes(bed)[0].name
    bed.cordon_as_a_person(name)

    first, second = bed.cluster.uncordon(CLUSTER, name), bed.cluster.uncordon(CLUSTER, name)
    bed.cluster.cordon(CLUSTER, name, "inc-1")

    assert (first, second) == (ReleaseResult.RELEASED, ReleaseResult.ALREADY_FREE)
    assert bed.cluster.uncordon(CLUSTER, name) is ReleaseResult.NOT_OURS
    assert bed.cluster.uncordon(CLUSTER, "hyperpod-i-0aaaaaaaaaaaaaaaa") is ReleaseResult.GONE


def test_one_of_two_concurrent_incidents_owns_the_cordon(bed: ClusterUnderTest) -> None:
    name = free_nodes(bed)[0].name
    answers: dict[str, CordonResult] = {}

    def cordon(incident_id: str) -> None:
        answers[incident_id] = bed.cluster.cordon(CLUSTER, name, incident_id)

    threads = [threading.Thread(target=cordon, args=(f"inc-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    owners = [incident for incident, answer in answers.items() if answer is CordonResult.CORDONED]
    node = bed.cluster.node(CLUSTER, name)
    assert node is not None
    assert owners == [node.incident_id]
    assert len(answers) == 4


def test_node_without_karpenter_is_not_terminated(bed: ClusterUnderTest) -> None:
    node = free_nodes(bed)[0]
    assert node.instance_id

    with pytest.raises(Refused):
        bed.cluster.delete_node(CLUSTER, node.name, node.instance_id)
    assert bed.cluster.delete_node(CLUSTER, node.name, "i-0aaaaaaaaaaaaaaaa") is RepairAnswer.NO_SUCH_NODE
    assert bed.cluster.delete_node(CLUSTER, "burst-1", node.instance_id) is RepairAnswer.NO_SUCH_NODE


@pytest.mark.parametrize(("script", "result"), [("exit 0", CheckResult.PASSED), ("exit 3", CheckResult.FAILED)])
def test_validation_job_runs_on_a_cordoned_tainted_node(
    bed: ClusterUnderTest, script: str, result: CheckResult
) -> None:
    node = free_nodes(bed)[0]
    bed.taint(node.name)
    bed.cluster.cordon(CLUSTER, node.name, "inc-1")
    name = f"inc-{bed.new_job()}-check"
    spec = CheckSpec(
        cluster=CLUSTER,
        namespace=NAMESPACE,
        name=name,
        node_name=node.name,
        image="registry/node-test:1",
        command=("sh", "-c", script),
        accelerators=node.accelerators,
        accelerator_resource=node.accelerator_resource,
        deadline_seconds=30,
    )
    before = bed.cluster.check_result(CLUSTER, NAMESPACE, name)

    bed.cluster.start_check(spec)
    bed.cluster.start_check(spec)
    bed.tested(name, passes=result is CheckResult.PASSED)

    assert before is CheckResult.PENDING
    bed.eventually(lambda: bed.cluster.check_result(CLUSTER, NAMESPACE, name) is result, f"the test job to be {result}")


def test_lost_node_shows_since_when_it_is_not_ready(bed: ClusterUnderTest) -> None:
    name = free_nodes(bed)[0].name

    bed.loses(name)

    node = bed.eventually(
        lambda: (found := bed.cluster.node(CLUSTER, name)) and not found.is_ready and found, "the node to be NotReady"
    )
    assert node.not_ready_since is not None
    assert not node.is_schedulable


def test_an_attempt_runs_a_pod_on_each_of_its_nodes(bed: ClusterUnderTest) -> None:
    nodes = free_nodes(bed, 2)
    spec = a_launch(bed, nodes)

    result, uid = bed.cluster.launch(spec)

    def running() -> bool:
        pods = seen(bed, spec).pods
        return len(pods) == 2 and all(pod.phase is PodPhase.RUNNING for pod in pods)

    bed.eventually(running, "two running pods")
    found = seen(bed, spec)
    assert result is LaunchResult.CREATED
    assert (found.uid, found.has_completed, found.has_failed, found.is_deleting) == (uid, False, False, False)
    assert {pod.node_name for pod in found.pods} == {node.name for node in nodes}
    assert found in bed.cluster.workloads(CLUSTER)
    in_use = bed.cluster.resources_in_use(CLUSTER)
    assert {name: amounts.accelerators for name, amounts in in_use.items() if amounts.accelerators} == {
        node.name: 8 for node in nodes
    }


def test_an_attempt_launched_twice_is_one_workload(bed: ClusterUnderTest) -> None:
    spec = a_launch(bed, free_nodes(bed))
    first = bed.cluster.launch(spec)

    second = bed.cluster.launch(spec)

    assert second == (LaunchResult.ALREADY_THERE, first[1])
    assert len(bed.cluster.workloads(CLUSTER)) == 1


def test_a_gang_with_efa_gets_its_nodes(bed: ClusterUnderTest) -> None:
    nodes = free_nodes(bed)[:2]
    spec = replace(a_launch(bed, nodes), network=EfaRequest(32, 5120))

    bed.cluster.launch(spec)

    def placed() -> bool:
        return {pod.node_name for pod in seen(bed, spec).pods} == {node.name for node in nodes}

    bed.eventually(placed, "the pods to have nodes")


def test_no_namespace_is_managed_without_kueue(bed: ClusterUnderTest) -> None:
    assert bed.cluster.kueue_namespaces(CLUSTER) == {}


def test_kueue_without_a_local_queue_manages_no_namespace(bed: ClusterUnderTest) -> None:
    bed.installs_kueue()

    assert bed.cluster.kueue_namespaces(CLUSTER) == {}


def test_namespace_with_a_local_queue_is_managed_by_kueue(bed: ClusterUnderTest) -> None:
    bed.installs_kueue(queue="default", labels=True)

    assert bed.cluster.kueue_namespaces(CLUSTER) == {NAMESPACE: "its LocalQueue default"}


def test_labelled_namespace_is_managed_by_kueue(bed: ClusterUnderTest) -> None:
    bed.installs_kueue(labels=True)

    assert bed.cluster.kueue_namespaces(CLUSTER) == {NAMESPACE: "its label kueue.x-k8s.io/managed-namespace=true"}


def test_attempt_suspended_by_a_webhook_is_refused_and_deleted(bed: ClusterUnderTest) -> None:
    spec = a_launch(bed, free_nodes(bed))
    bed.suspends(spec)

    for _ in range(2):
        with pytest.raises(Refused, match="suspended at its creation"):
            bed.cluster.launch(spec)
    bed.cluster.stop(spec.attempt, 1)

    bed.eventually(lambda: seen(bed, spec).uid == "", "the Job to be gone")
    assert seen(bed, spec).pods == ()


def test_job_handed_to_kueue_has_no_pods_before_admission(bed: ClusterUnderTest) -> None:
    spec = a_launch(bed, free_nodes(bed), local_queue="research")

    first = bed.cluster.launch(spec)

    assert bed.cluster.launch(spec) == (LaunchResult.ALREADY_THERE, first[1])
    found = seen(bed, spec)
    assert (found.uid, found.is_suspended, found.pods, found.kueue) == (first[1], True, (), None)
    assert [each.is_suspended for each in bed.cluster.workloads(CLUSTER)] == [True]


def test_kueue_status_is_read_from_the_workload(bed: ClusterUnderTest) -> None:
    bed.installs_kueue(queue="research")
    spec = a_launch(bed, free_nodes(bed), local_queue="research")
    bed.cluster.launch(spec)
    since = "2026-11-03T10:00:00Z"
    waits = {"type": "QuotaReserved", "status": "False", "reason": "WaitingForQuota", "message": "8 more needed"}
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "for another"}
    status = {
        "conditions": [{**waits, "lastTransitionTime": since}, {**evicted, "lastTransitionTime": since}],
        "requeueState": {"count": 1, "requeueAt": since},
        "accumulatedPastExecutionTimeSeconds": 0,
        "admissionChecks": [{"name": "nodes", "state": "Pending", "message": "asked", "lastTransitionTime": since}],
    }

    bed.says_of(spec, status, active=False)

    kueue = seen(bed, spec).kueue
    assert kueue is not None
    assert (kueue.queue, kueue.is_active, kueue.was_admitted, kueue.requeue_at) == (
        "research",
        False,
        True,
        datetime(2026, 11, 3, 10, tzinfo=UTC),
    )
    assert [(each.type, each.is_true, each.reason, each.message) for each in kueue.conditions] == [
        ("QuotaReserved", False, "WaitingForQuota", "8 more needed"),
        ("Evicted", True, "Preempted", "for another"),
    ]
    assert [(each.name, each.state, each.message) for each in kueue.checks] == [("nodes", "Pending", "asked")]


def test_unlaunched_attempt_has_no_pods(bed: ClusterUnderTest) -> None:
    spec = a_launch(bed, free_nodes(bed))

    found = seen(bed, spec)

    assert (found.uid, found.pods) == ("", ())
    bed.cluster.stop(spec.attempt, 1)
    bed.cluster.force_delete_pods(spec.attempt, spec.attempt.node_names)
    with pytest.raises(NotFound):
        bed.cluster.logs(spec.attempt, 0, 10)


def test_succeeded_attempt_is_completed(bed: ClusterUnderTest) -> None:
    spec = a_launch(bed, free_nodes(bed), "exit 0")
    bed.cluster.launch(spec)
    bed.ends(spec, 0)

    bed.eventually(lambda: seen(bed, spec).has_completed, "the job to be complete")

    (pod,) = seen(bed, spec).pods
    assert (pod.phase, pod.exit_code) == (PodPhase.SUCCEEDED, 0)
    assert seen(bed, spec).has_failed is False
    assert bed.cluster.resources_in_use(CLUSTER).get(pod.node_name, NONE) == NONE


def test_failed_attempt_shows_its_exit_code(bed: ClusterUnderTest) -> None:
    spec = a_launch(bed, free_nodes(bed), "exit 75")
    bed.cluster.launch(spec)
    bed.ends(spec, 75)

    bed.eventually(lambda: seen(bed, spec).has_failed, "the job to have failed")

    (pod,) = seen(bed, spec).pods
    assert (pod.phase, pod.exit_code, pod.reason) == (PodPhase.FAILED, 75, "Error")
    assert seen(bed, spec).has_completed is False


def test_the_last_lines_of_a_ranks_log_are_read(bed: ClusterUnderTest) -> None:
    nodes = free_nodes(bed, 2)
    spec = a_launch(bed, nodes, 'echo one; echo two; echo "rank $JOB_COMPLETION_INDEX"')
    bed.cluster.launch(spec)
    bed.ends(spec, 0)
    bed.eventually(lambda: seen(bed, spec).has_completed, "the job to be complete")

    def tail(rank: int) -> str:
        return bed.cluster.logs(spec.attempt, rank, 2)

    assert [tail(rank).splitlines() for rank in (0, 1)] == [["two", "rank 0"], ["two", "rank 1"]]
    head = bed.cluster.logs(spec.attempt, 0, None)
    assert head.splitlines() == ["one", "two", "rank 0"]
    with pytest.raises(NotFound):
        tail(2)


def test_ends_of_all_logs_are_read_by_rank(bed: ClusterUnderTest) -> None:
    nodes = free_nodes(bed, 2)
    spec = a_launch(bed, nodes, 'echo one; echo two; echo "rank $JOB_COMPLETION_INDEX"')
    bed.cluster.launch(spec)
    bed.ends(spec, 0)
    bed.eventually(lambda: seen(bed, spec).has_completed, "the job to be complete")

    tails = bed.cluster.tails(spec.attempt, 2, 64, 10.0)

    assert {rank: (tail.text.splitlines(), tail.why) for rank, tail in tails.items()} == {
        0: (["two", "rank 0"], ""),
        1: (["two", "rank 1"], ""),
    }
    assert {tail.node_name for tail in tails.values()} == {node.name for node in nodes}
    first, second = bed.cluster.tails(spec.attempt, 2, 1, 10.0).values()
    assert (bool(first.text), first.why, second.text, bool(second.why)) == (True, "", "", True)
    assert bed.cluster.tails(spec.attempt.but(attempt=9), 2, 64, 10.0) == {}


def test_stopped_attempt_frees_its_accelerators(bed: ClusterUnderTest) -> None:
    spec = a_launch(bed, free_nodes(bed, 2))
    bed.cluster.launch(spec)
    attempt = spec.attempt

    for _ in range(2):
        bed.cluster.stop(attempt, 1)

    bed.eventually(lambda: seen(bed, spec).pods == () and seen(bed, spec).uid == "", "the pods to be gone")
    assert bed.cluster.resources_in_use(CLUSTER) == {}
    assert bed.cluster.workloads(CLUSTER) == ()


def test_stopped_pod_on_a_lost_node_stays_until_force_deleted(bed: ClusterUnderTest) -> None:
    nodes = free_nodes(bed, 2)
    spec = a_launch(bed, nodes)
    bed.cluster.launch(spec)
    bed.eventually(lambda: all(pod.phase is PodPhase.RUNNING for pod in seen(bed, spec).pods), "running pods")
    lost = nodes[0].name
    bed.loses(lost)
    bed.eventually(lambda: (node := bed.cluster.node(CLUSTER, lost)) and not node.is_ready, "the node to be NotReady")

    bed.cluster.stop(spec.attempt, 1)
    bed.eventually(lambda: len(seen(bed, spec).pods) == 1, "the other pod to be gone")

    (pod,) = seen(bed, spec).pods
    assert (pod.node_name, pod.is_terminating) == (lost, True)
    for _ in range(2):
        bed.cluster.force_delete_pods(spec.attempt, [lost])
    bed.eventually(lambda: seen(bed, spec).pods == (), "the pod to be forgotten")


def test_only_pods_on_the_named_nodes_are_force_deleted(bed: ClusterUnderTest) -> None:
    spec = a_launch(bed, free_nodes(bed, 1))
    bed.cluster.launch(spec)
    bed.eventually(lambda: seen(bed, spec).pods, "a pod")

    bed.cluster.force_delete_pods(spec.attempt, ["hyperpod-i-0aaaaaaaaaaaaaaaa"])

    assert len(seen(bed, spec).pods) == 1
    assert seen(bed, spec).uid


def test_a_pod_whose_node_is_cordoned_waits_unschedulable(bed: ClusterUnderTest) -> None:
    node = free_nodes(bed)[0]
    bed.cluster.cordon(CLUSTER, node.name, "inc-1")
    spec = a_launch(bed, [node])

    bed.cluster.launch(spec)

    bed.eventually(lambda: [pod.reason for pod in seen(bed, spec).pods] == ["Unschedulable"], "an unschedulable pod")
    (pod,) = seen(bed, spec).pods
    assert (pod.phase, pod.node_name) == (PodPhase.PENDING, "")


def test_another_attempt_of_the_job_is_another_workload(bed: ClusterUnderTest) -> None:
    nodes = free_nodes(bed, 2)
    spec = a_launch(bed, nodes[:1])
    later = replace(spec, attempt=spec.attempt.but(attempt=2, node_names=(nodes[1].name,)))
    bed.cluster.launch(spec)
    bed.cluster.launch(later)

    bed.cluster.stop(spec.attempt, 1)

    bed.eventually(lambda: seen(bed, spec).pods == (), "attempt 1 to be gone")
    assert seen(bed, later).uid
    assert [workload.attempt for workload in bed.cluster.workloads(CLUSTER)] == [2]


# ---------------------------------------------------------------- labels prove nothing


def test_job_with_borrowed_labels_elsewhere_is_not_the_attempts(bed: ClusterUnderTest) -> None:
    spec = a_launch(bed, free_nodes(bed))
    _, uid = bed.cluster.launch(spec)
    recorded = spec.attempt.but(workload_uid=uid)
    bed.forges_job(spec, "default")

    bed.eventually(lambda: [each for each in bed.cluster.workloads(CLUSTER) if each.has_completed], "a forged success")

    for attempt in (spec.attempt, recorded):
        found = bed.cluster.workload(attempt)
        assert (found.uid, found.namespace, found.has_completed, len(found.pods)) == (uid, NAMESPACE, False, 1)
        assert attempt.own(bed.cluster.workloads(CLUSTER)) == found
    bed.cluster.stop(recorded, 1)
    bed.eventually(lambda: [each.namespace for each in bed.cluster.workloads(CLUSTER)] == ["default"], "one Job")


def test_foreign_job_of_the_same_name_is_not_adopted(bed: ClusterUnderTest) -> None:
    spec = a_launch(bed, free_nodes(bed))
    forged = replace(spec, attempt=spec.attempt.but(decision_id="dec-forged"))
    bed.cluster.launch(forged)

    with pytest.raises(Refused):
        bed.cluster.launch(spec)

    assert (seen(bed, spec).uid, seen(bed, spec).pods) == ("", ())
    bed.cluster.stop(spec.attempt, 1)
    assert seen(bed, forged).uid


def test_recreated_job_with_another_uid_is_not_the_attempts(bed: ClusterUnderTest) -> None:
    spec = a_launch(bed, free_nodes(bed))
    _, uid = bed.cluster.launch(spec)
    recorded = spec.attempt.but(workload_uid=uid)
    bed.deletes_job(spec)
    bed.eventually(lambda: not bed.cluster.workload(recorded).uid, "the Job to be gone")

    again = bed.eventually(lambda: created_anew(bed, spec), "another Job of its name")

    assert again != uid
    found = bed.cluster.workload(recorded)
    assert found.uid == ""
    assert recorded.own(bed.cluster.workloads(CLUSTER)) == found
    bed.cluster.stop(recorded, 1)
    assert seen(bed, spec).uid == again


def created_anew(bed: ClusterUnderTest, spec: LaunchSpec) -> str:
    result, uid = bed.cluster.launch(spec)
    return uid if result is LaunchResult.CREATED else ""


def test_bare_pod_with_borrowed_labels_is_not_the_attempts(bed: ClusterUnderTest) -> None:
    here, there = free_nodes(bed, 2)
    spec = a_launch(bed, [here], "echo mine; exec sleep 60")
    bed.cluster.launch(spec)
    bed.forges_pod(spec, there.name)

    def claims() -> list[UnmanagedPod]:
        pods = [pod for pod in bed.cluster.pods(CLUSTER) if pod.claim and pod.node_name]
        return pods if len(pods) == 2 else []

    pods = bed.eventually(claims, "two placed pods that claim the attempt")

    assert {(pod.node_name, pod.claim.controller == spec.attempt.workload_name) for pod in pods if pod.claim} == {
        (here.name, True),
        (there.name, False),
    }
    assert [pod.node_name for pod in seen(bed, spec).pods] == [here.name]
    bed.cluster.stop(spec.attempt, 1)
    bed.cluster.force_delete_pods(spec.attempt, [there.name])
    bed.eventually(lambda: seen(bed, spec).pods == () and seen(bed, spec).uid == "", "the attempt to be gone")
    assert [pod.node_name for pod in bed.cluster.pods(CLUSTER)] == [there.name]
    with pytest.raises(NotFound):
        bed.cluster.logs(spec.attempt, 0, 10)


# ---------------------------------------------------------------- work that is not ours


def test_unmanaged_pods_show_owner_and_recreation(bed: ClusterUnderTest) -> None:
    node = free_nodes(bed)[0]
    bed.cluster.launch(a_launch(bed, free_nodes(bed, 2)[1:]))
    bed.holds("bare", node.name)
    bed.holds("kubeflow-0", node.name, owner="PyTorchJob", resume="allowed")
    bed.holds("hyperpod-0", node.name, owner="HyperPodPyTorchJob", resume="allowed")

    def foreign() -> list[UnmanagedPod]:
        pods = [pod for pod in bed.cluster.pods(CLUSTER) if pod.claim is None]
        return pods if len(pods) == 3 else []

    found = bed.eventually(foreign, "three pods")

    assert {(pod.name, pod.kind, pod.workload, pod.recreation, pod.may_move, pod.is_movable) for pod in found} == {
        ("bare", "", "bare", PodRecreation.NEVER, False, False),
        ("kubeflow-0", "PyTorchJob", "llama", PodRecreation.BY_OWNER, True, True),
        ("hyperpod-0", "HyperPodPyTorchJob", "llama", PodRecreation.BY_HYPERPOD, True, False),
    }
    assert {(pod.namespace, pod.node_name, pod.accelerators) for pod in found} == {("default", node.name, 2)}
    assert bed.cluster.resources_in_use(CLUSTER)[node.name].accelerators == 6


def test_unmanaged_pods_are_listed_by_node(bed: ClusterUnderTest) -> None:
    here, there = free_nodes(bed, 2)
    bed.holds("replica-0", here.name, owner="ReplicaSet")
    bed.holds("replica-1", there.name, owner="ReplicaSet")
    bed.eventually(lambda: len(bed.cluster.pods(CLUSTER)) == 2, "two pods")

    assert [pod.name for pod in bed.cluster.pods(CLUSTER, here.name)] == ["replica-0"]
    assert bed.cluster.pods(CLUSTER, "no-such-node") == ()
    assert bed.cluster.pods(CLUSTER, "") == ()


def test_eviction_of_a_pod_takes_effect_once(bed: ClusterUnderTest) -> None:
    node = free_nodes(bed)[0]
    bed.holds("kubeflow-0", node.name, owner="PyTorchJob")
    (pod,) = bed.eventually(lambda: bed.cluster.pods(CLUSTER), "a pod")

    assert bed.cluster.evict(CLUSTER, pod).result is EvictionStatus.EVICTED

    bed.eventually(lambda: not bed.cluster.pods(CLUSTER), "the pod to be gone")
    assert bed.cluster.evict(CLUSTER, pod).result is EvictionStatus.GONE


def test_recreated_pod_of_the_same_name_is_not_evicted(bed: ClusterUnderTest) -> None:
    node = free_nodes(bed)[0]
    bed.holds("kubeflow-0", node.name, owner="PyTorchJob")
    (pod,) = bed.eventually(lambda: bed.cluster.pods(CLUSTER), "a pod")

    assert bed.cluster.evict(CLUSTER, pod.but(uid="another")).result is EvictionStatus.GONE
    assert bed.cluster.pods(CLUSTER)


def test_a_disruption_budget_is_respected(bed: ClusterUnderTest) -> None:
    node = free_nodes(bed)[0]
    bed.holds("kubeflow-0", node.name, owner="PyTorchJob", allows_eviction=False)
    (pod,) = bed.eventually(lambda: bed.cluster.pods(CLUSTER), "a pod")

    assert bed.cluster.evict(CLUSTER, pod).result is EvictionStatus.NOT_NOW
    assert bed.cluster.pods(CLUSTER)


def test_pod_under_two_budgets_is_not_evicted_now(bed: ClusterUnderTest) -> None:
    node = free_nodes(bed)[0]
    bed.holds("kubeflow-0", node.name, owner="PyTorchJob")
    bed.budgets("kubeflow-0", 2)
    (pod,) = bed.eventually(lambda: bed.cluster.pods(CLUSTER), "a pod")
    bed.eventually(lambda: bed.is_running(pod), "the pod to run")

    eviction = bed.cluster.evict(CLUSTER, pod)

    assert (eviction.result, "more than one PodDisruptionBudget" in eviction.why) == (EvictionStatus.NOT_NOW, True)
    assert bed.cluster.pods(CLUSTER)


def test_pod_of_a_terminating_namespace_is_not_evicted_now(bed: ClusterUnderTest) -> None:
    node = free_nodes(bed)[0]
    bed.holds("kubeflow-0", node.name)
    bed.eventually(lambda: bed.cluster.pods(CLUSTER), "a pod")
    bed.ends_namespace("kubeflow-0")
    (pod,) = bed.eventually(lambda: bed.cluster.pods(CLUSTER), "a pod")

    eviction = bed.cluster.evict(CLUSTER, pod)

    assert (eviction.result, "being terminated" in eviction.why) == (EvictionStatus.NOT_NOW, True)


def test_a_watch_reports_changes_of_nodes_pods_and_jobs(bed: ClusterUnderTest) -> None:
    node = free_nodes(bed)[0]
    spec = a_launch(bed, [node])
    kinds: set[str] = set()
    steps = iter([lambda: bed.cluster.launch(spec), lambda: bed.cluster.cordon(CLUSTER, node.name, "inc-1")])
    is_heard = threading.Event()

    def on_change(kind: str) -> None:
        kinds.add(kind)
        if kinds == {"node", "pod", "job"}:
            is_heard.set()

    def over() -> bool:
        next(steps, lambda: None)()
        return is_heard.is_set()

    bed.cluster.watch(CLUSTER, on_change, until=over)

    assert kinds == {"node", "pod", "job"}
