"""The port Cluster: the same tests for the fake and for the adapter on the local GPU cluster."""

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from evenkeel.domain.capacity.efa import EfaRequest
from evenkeel.domain.external.unmanaged_workloads import Consent, PodRecreation, UnmanagedPod
from evenkeel.domain.jobs.attempt import PodPhase
from evenkeel.domain.kept_logs import shortened_with_times
from evenkeel.domain.nodes import AWAITING_VALIDATION_TAINT
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.domain.recovery.validation import CheckResult
from evenkeel.domain.resources import NONE, Resources
from evenkeel.ports import (
    CheckSpec,
    ClusterCordonResult,
    EvictionStatus,
    LaunchResult,
    LaunchSpec,
    NotFound,
    PodGroup,
    Refused,
    UncordonResult,
)
from tests.contract.clusters_under_test import (
    CLUSTER,
    NAMESPACE,
    ClusterUnderTest,
    FakeClusterUnderTest,
    a_launch,
    free_nodes,
    restored_fleet,
    seen,
)


@pytest.fixture(params=["twin", "local"])
def bench(request: pytest.FixtureRequest) -> Iterator[ClusterUnderTest]:
    if request.param == "twin":
        yield FakeClusterUnderTest()
    else:
        yield from restored_fleet(request.getfixturevalue("gpu_cluster"), request.param)


def test_server_version_is_read_from_kubernetes(bench: ClusterUnderTest) -> None:
    assert bench.cluster.server_version(CLUSTER).startswith("v1.")


def test_healthy_node_is_read_as_healthy(bench: ClusterUnderTest) -> None:
    node = free_nodes(bench)[0]

    assert bench.cluster.node(CLUSTER, node.name) == node
    assert node.name == f"hyperpod-{node.instance_id}"
    assert (node.is_ready, node.not_ready_since, node.is_cordoned, node.incident_id) == (True, None, False, None)
    assert (node.accelerators, node.accelerator_resource) == (8, "nvidia.com/gpu")
    assert (node.efa, node.huge_pages_mib) == (32, 10_256)
    assert (node.pool, node.instance_type) == ("p5-workers", "ml.p5.48xlarge")
    assert node.boot_id
    assert node.labels["kubernetes.io/hostname"]


def test_nodes_are_sorted_and_tainted_nodes_await_validation(bench: ClusterUnderTest) -> None:
    nodes = bench.eventually(lambda: bench.cluster.nodes(CLUSTER), "nodes")

    assert [node.name for node in nodes] == sorted(node.name for node in nodes)
    tainted = [node for node in nodes if node.pool == "p5-tainted"]
    assert tainted
    assert all(node.is_awaiting_validation and not node.is_schedulable for node in tainted)


def test_missing_node_is_read_as_none(bench: ClusterUnderTest) -> None:
    assert bench.cluster.node(CLUSTER, "hyperpod-i-0aaaaaaaaaaaaaaaa") is None
    assert bench.cluster.cordon(CLUSTER, "hyperpod-i-0aaaaaaaaaaaaaaaa", "inc-1") is ClusterCordonResult.GONE
    assert bench.cluster.return_to_service(CLUSTER, "hyperpod-i-0aaaaaaaaaaaaaaaa", "inc-1") is UncordonResult.GONE


def test_repeated_cordon_of_an_incident_is_recognised(bench: ClusterUnderTest) -> None:
    name = free_nodes(bench)[0].name

    first = bench.cluster.cordon(CLUSTER, name, "inc-1")
    second = bench.cluster.cordon(CLUSTER, name, "inc-1")
    other = bench.cluster.cordon(CLUSTER, name, "inc-2")

    assert (first, second, other) == (
        ClusterCordonResult.CORDONED,
        ClusterCordonResult.ALREADY_CORDONED,
        ClusterCordonResult.BY_OTHER_INCIDENT,
    )
    node = bench.cluster.node(CLUSTER, name)
    assert node is not None
    assert (node.is_cordoned, node.incident_id, node.is_schedulable) == (True, "inc-1", False)


def test_cordon_of_a_person_is_kept(bench: ClusterUnderTest) -> None:
    name = free_nodes(bench)[0].name
    bench.cordon_as_a_person(name)

    assert bench.cluster.cordon(CLUSTER, name, "inc-1") is ClusterCordonResult.BY_PERSON
    assert bench.cluster.return_to_service(CLUSTER, name, "inc-1") is UncordonResult.CORDONED_BY_OTHER
    assert bench.cluster.return_to_service(CLUSTER, name, None) is UncordonResult.CORDONED_BY_OTHER
    node = bench.cluster.node(CLUSTER, name)
    assert node is not None
    assert node.is_cordoned


def test_cordon_at_a_read_version_detects_a_later_manual_cordon(bench: ClusterUnderTest) -> None:
    first, second = free_nodes(bench, 2)
    bench.cordon_as_a_person(first.name)

    result = bench.cluster.cordon(CLUSTER, first.name, "inc-1", first.resource_version)
    done = bench.cluster.cordon(CLUSTER, second.name, "inc-1", second.resource_version)
    again = bench.cluster.cordon(CLUSTER, second.name, "inc-1", second.resource_version)

    assert (result, done, again) == (
        ClusterCordonResult.BY_PERSON,
        ClusterCordonResult.CORDONED,
        ClusterCordonResult.ALREADY_CORDONED,
    )


def test_release_removes_only_evenkeels_cordon_and_taint(bench: ClusterUnderTest) -> None:
    name = free_nodes(bench)[0].name
    bench.taint_node(name)
    bench.cluster.cordon(CLUSTER, name, "inc-1")

    other = bench.cluster.return_to_service(CLUSTER, name, "inc-2")
    first = bench.cluster.return_to_service(CLUSTER, name, "inc-1")
    second = bench.cluster.return_to_service(CLUSTER, name, "inc-1")

    assert (other, first, second) == (
        UncordonResult.CORDONED_BY_OTHER,
        UncordonResult.RELEASED,
        UncordonResult.ALREADY_FREE,
    )
    node = bench.cluster.node(CLUSTER, name)
    assert node is not None
    assert (node.is_cordoned, node.incident_id, node.is_awaiting_validation) == (False, None, False)
    taints = [taint for taint in node.taints if not taint.startswith("node.kubernetes.io/unschedulable")]
    assert taints == ["own=x:NoSchedule"]


def test_release_without_an_incident_removes_the_taint(bench: ClusterUnderTest) -> None:
    name = free_nodes(bench)[0].name
    bench.taint_node(name)

    assert bench.cluster.return_to_service(CLUSTER, name, None) is UncordonResult.RELEASED
    assert bench.cluster.return_to_service(CLUSTER, name, None) is UncordonResult.ALREADY_FREE
    node = bench.cluster.node(CLUSTER, name)
    assert node is not None
    assert not any(AWAITING_VALIDATION_TAINT in taint for taint in node.taints)


def test_uncordon_removes_manual_cordon_and_keeps_cordon_of_recovery(bench: ClusterUnderTest) -> None:
    name = free_nodes(bench)[0].name
    bench.cordon_as_a_person(name)

    first, second = bench.cluster.remove_manual_cordon(CLUSTER, name), bench.cluster.remove_manual_cordon(CLUSTER, name)
    bench.cluster.cordon(CLUSTER, name, "inc-1")

    assert (first, second) == (UncordonResult.RELEASED, UncordonResult.ALREADY_FREE)
    assert bench.cluster.remove_manual_cordon(CLUSTER, name) is UncordonResult.CORDONED_BY_OTHER
    assert bench.cluster.remove_manual_cordon(CLUSTER, "hyperpod-i-0aaaaaaaaaaaaaaaa") is UncordonResult.GONE


def test_one_of_two_concurrent_incidents_owns_the_cordon(bench: ClusterUnderTest) -> None:
    name = free_nodes(bench)[0].name
    answers: dict[str, ClusterCordonResult] = {}

    def cordon(incident_id: str) -> None:
        answers[incident_id] = bench.cluster.cordon(CLUSTER, name, incident_id)

    threads = [threading.Thread(target=cordon, args=(f"inc-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    owners = [incident for incident, answer in answers.items() if answer is ClusterCordonResult.CORDONED]
    node = bench.cluster.node(CLUSTER, name)
    assert node is not None
    assert owners == [node.incident_id]
    assert len(answers) == 4


def test_node_without_karpenter_is_not_terminated(bench: ClusterUnderTest) -> None:
    node = free_nodes(bench)[0]
    assert node.instance_id

    with pytest.raises(Refused):
        bench.cluster.delete_node(CLUSTER, node.name, node.instance_id)
    assert bench.cluster.delete_node(CLUSTER, node.name, "i-0aaaaaaaaaaaaaaaa") is RepairAnswer.NO_SUCH_NODE
    assert bench.cluster.delete_node(CLUSTER, "burst-1", node.instance_id) is RepairAnswer.NO_SUCH_NODE


@pytest.mark.parametrize(("script", "result"), [("exit 0", CheckResult.PASSED), ("exit 3", CheckResult.FAILED)])
def test_validation_job_runs_on_a_cordoned_tainted_node(
    bench: ClusterUnderTest, script: str, result: CheckResult
) -> None:
    node = free_nodes(bench)[0]
    bench.taint_node(node.name)
    bench.cluster.cordon(CLUSTER, node.name, "inc-1")
    name = f"inc-{bench.new_job()}-check"
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
    before = bench.cluster.check_result(CLUSTER, NAMESPACE, name)

    bench.cluster.start_check(spec)
    bench.cluster.start_check(spec)
    bench.end_validation_job(name, passes=result is CheckResult.PASSED)

    assert before is CheckResult.PENDING
    bench.eventually(
        lambda: bench.cluster.check_result(CLUSTER, NAMESPACE, name) is result, f"the test job to be {result}"
    )


def test_lost_node_shows_since_when_it_is_not_ready(bench: ClusterUnderTest) -> None:
    name = free_nodes(bench)[0].name

    bench.disconnect_node(name)

    node = bench.eventually(
        lambda: (
            (kubernetes_node := bench.cluster.node(CLUSTER, name)) and not kubernetes_node.is_ready and kubernetes_node
        ),
        "the node to be NotReady",
    )
    assert node.not_ready_since is not None
    assert node.ready_since is None
    assert not node.is_schedulable


def test_attempt_runs_pod_on_each_of_its_nodes(bench: ClusterUnderTest) -> None:
    nodes = free_nodes(bench, 2)
    spec = a_launch(bench, nodes)

    result, uid = bench.cluster.launch(spec)

    def running() -> bool:
        pods = seen(bench, spec).pods
        return len(pods) == 2 and all(pod.phase is PodPhase.RUNNING for pod in pods)

    bench.eventually(running, "two running pods")
    workload = seen(bench, spec)
    assert result is LaunchResult.CREATED
    assert (workload.uid, workload.has_completed, workload.has_failed, workload.is_deleting) == (
        uid,
        False,
        False,
        False,
    )
    assert {pod.node_name for pod in workload.pods} == {node.name for node in nodes}
    assert workload in bench.cluster.workloads(CLUSTER)
    in_use = bench.cluster.resources_in_use(CLUSTER)
    assert {name: amounts.accelerators for name, amounts in in_use.items() if amounts.accelerators} == {
        node.name: 8 for node in nodes
    }


def test_pods_request_cpu_and_memory(bench: ClusterUnderTest) -> None:
    (node, *_) = free_nodes(bench)
    spec = a_launch(bench, [node], cpu_per_node=16, memory_gib_per_node=64)

    bench.cluster.launch(spec)
    bench.eventually(lambda: any(pod.phase is PodPhase.RUNNING for pod in seen(bench, spec).pods), "the pod to run")

    in_use = bench.cluster.resources_in_use(CLUSTER)[node.name]
    assert in_use == Resources(accelerators=8, cpu_millis=16_000, memory_mib=64 * 1024)


def test_attempt_launched_twice_is_one_workload(bench: ClusterUnderTest) -> None:
    spec = a_launch(bench, free_nodes(bench))
    first = bench.cluster.launch(spec)

    second = bench.cluster.launch(spec)

    assert second == (LaunchResult.ALREADY_THERE, first[1])
    assert len(bench.cluster.workloads(CLUSTER)) == 1


def test_gang_that_requests_efa_runs_on_nodes_with_efa(bench: ClusterUnderTest) -> None:
    nodes = free_nodes(bench)[:2]
    spec = replace(a_launch(bench, nodes), network=EfaRequest(32, 5120))

    bench.cluster.launch(spec)

    def pods_have_nodes() -> bool:
        return {pod.node_name for pod in seen(bench, spec).pods} == {node.name for node in nodes}

    bench.eventually(pods_have_nodes, "the pods to have nodes")


def test_no_namespace_is_managed_without_kueue(bench: ClusterUnderTest) -> None:
    assert bench.cluster.kueue_namespaces(CLUSTER) == {}


def test_kueue_without_a_local_queue_manages_no_namespace(bench: ClusterUnderTest) -> None:
    bench.install_kueue()

    assert bench.cluster.kueue_namespaces(CLUSTER) == {}


def test_namespace_with_a_local_queue_is_managed_by_kueue(bench: ClusterUnderTest) -> None:
    bench.install_kueue(queue="default", labels=True)

    assert bench.cluster.kueue_namespaces(CLUSTER) == {NAMESPACE: "its LocalQueue default"}


def test_labelled_namespace_is_managed_by_kueue(bench: ClusterUnderTest) -> None:
    bench.install_kueue(labels=True)

    assert bench.cluster.kueue_namespaces(CLUSTER) == {NAMESPACE: "its label kueue.x-k8s.io/managed-namespace=true"}


def test_attempt_suspended_by_a_webhook_is_refused_and_deleted(bench: ClusterUnderTest) -> None:
    spec = a_launch(bench, free_nodes(bench))
    bench.suspend_on_creation(spec)

    for _ in range(2):
        with pytest.raises(Refused, match="suspended at its creation"):
            bench.cluster.launch(spec)
    bench.cluster.stop(spec.attempt, 1)

    bench.eventually(lambda: seen(bench, spec).uid == "", "the Job to be gone")
    assert seen(bench, spec).pods == ()


def test_job_handed_to_kueue_has_no_pods_before_admission(bench: ClusterUnderTest) -> None:
    spec = a_launch(bench, free_nodes(bench), local_queue="research")

    first = bench.cluster.launch(spec)

    assert bench.cluster.launch(spec) == (LaunchResult.ALREADY_THERE, first[1])
    workload = seen(bench, spec)
    assert (workload.uid, workload.is_suspended, workload.pods, workload.kueue) == (first[1], True, (), None)
    assert [workload.is_suspended for workload in bench.cluster.workloads(CLUSTER)] == [True]


def test_kueue_status_is_read_from_the_workload(bench: ClusterUnderTest) -> None:
    bench.install_kueue(queue="research")
    spec = a_launch(bench, free_nodes(bench), local_queue="research")
    bench.cluster.launch(spec)
    since = "2026-11-03T10:00:00Z"
    waits = {"type": "QuotaReserved", "status": "False", "reason": "WaitingForQuota", "message": "8 more needed"}
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "for another"}
    status = {
        "conditions": [{**waits, "lastTransitionTime": since}, {**evicted, "lastTransitionTime": since}],
        "requeueState": {"count": 1, "requeueAt": since},
        "accumulatedPastExecutionTimeSeconds": 0,
        "admissionChecks": [{"name": "nodes", "state": "Pending", "message": "asked", "lastTransitionTime": since}],
    }

    bench.create_kueue_workload(spec, status, active=False)

    kueue = seen(bench, spec).kueue
    assert kueue is not None
    assert (kueue.queue, kueue.is_active, kueue.was_admitted, kueue.requeue_at) == (
        "research",
        False,
        True,
        datetime(2026, 11, 3, 10, tzinfo=UTC),
    )
    assert [
        (condition.type, condition.is_true, condition.reason, condition.message) for condition in kueue.conditions
    ] == [
        ("QuotaReserved", False, "WaitingForQuota", "8 more needed"),
        ("Evicted", True, "Preempted", "for another"),
    ]
    assert [(kueue_check.name, kueue_check.state, kueue_check.message) for kueue_check in kueue.checks] == [
        ("nodes", "Pending", "asked")
    ]


def test_unlaunched_attempt_has_no_pods(bench: ClusterUnderTest) -> None:
    spec = a_launch(bench, free_nodes(bench))

    workload = seen(bench, spec)

    assert (workload.uid, workload.pods) == ("", ())
    bench.cluster.stop(spec.attempt, 1)
    bench.cluster.force_delete_pods(spec.attempt, spec.attempt.node_names)
    with pytest.raises(NotFound):
        bench.cluster.logs(spec.attempt, 0, 10)


def test_succeeded_attempt_is_completed(bench: ClusterUnderTest) -> None:
    spec = a_launch(bench, free_nodes(bench), "exit 0")
    bench.cluster.launch(spec)
    bench.end_pods(spec, 0)

    bench.eventually(lambda: seen(bench, spec).has_completed, "the job to be complete")

    (pod,) = seen(bench, spec).pods
    assert (pod.phase, pod.exit_code) == (PodPhase.SUCCEEDED, 0)
    assert seen(bench, spec).has_failed is False
    assert bench.cluster.resources_in_use(CLUSTER).get(pod.node_name, NONE) == NONE


def test_failed_attempt_shows_its_exit_code(bench: ClusterUnderTest) -> None:
    spec = a_launch(bench, free_nodes(bench), "exit 75")
    bench.cluster.launch(spec)
    bench.end_pods(spec, 75)

    bench.eventually(lambda: seen(bench, spec).has_failed, "the job to have failed")

    (pod,) = seen(bench, spec).pods
    assert (pod.phase, pod.exit_code, pod.reason) == (PodPhase.FAILED, 75, "Error")
    assert seen(bench, spec).has_completed is False


def test_last_lines_of_ranks_log_are_read(bench: ClusterUnderTest) -> None:
    nodes = free_nodes(bench, 2)
    spec = a_launch(bench, nodes, 'echo one; echo two; echo "rank $JOB_COMPLETION_INDEX"')
    bench.cluster.launch(spec)
    bench.end_pods(spec, 0)
    bench.eventually(lambda: seen(bench, spec).has_completed, "the job to be complete")

    def tail(rank: int) -> str:
        return bench.cluster.logs(spec.attempt, rank, 2)

    assert [tail(rank).splitlines() for rank in (0, 1)] == [["two", "rank 0"], ["two", "rank 1"]]
    head = bench.cluster.logs(spec.attempt, 0, None)
    assert head.splitlines() == ["one", "two", "rank 0"]
    stamped = bench.cluster.logs(spec.attempt, 0, 2, timestamps=True).splitlines()
    times, lines = zip(*(line.split(" ", 1) for line in stamped), strict=True)
    assert lines == ("two", "rank 0")
    assert [bool(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", time)) for time in times] == [True, True]
    with pytest.raises(NotFound):
        tail(2)


def test_last_log_lines_of_every_rank_are_read(bench: ClusterUnderTest) -> None:
    nodes = free_nodes(bench, 2)
    spec = a_launch(bench, nodes, 'echo one; echo two; echo "rank $JOB_COMPLETION_INDEX"')
    bench.cluster.launch(spec)
    bench.end_pods(spec, 0)
    bench.eventually(lambda: seen(bench, spec).has_completed, "the job to be complete")

    tails = bench.cluster.log_tails(spec.attempt, 2, 64, 10.0)

    texts = {rank: shortened_with_times(tail.text, ()) for rank, tail in tails.items()}
    assert all(len(text.times) == 2 and text.times[0].startswith("20") for text in texts.values())
    assert {rank: (texts[rank].text.splitlines(), tail.why) for rank, tail in tails.items()} == {
        0: (["two", "rank 0"], ""),
        1: (["two", "rank 1"], ""),
    }
    assert {tail.node_name for tail in tails.values()} == {node.name for node in nodes}
    first, second = bench.cluster.log_tails(spec.attempt, 2, 1, 10.0).values()
    assert (bool(first.text), first.why, second.text, bool(second.why)) == (True, "", "", True)
    assert bench.cluster.log_tails(spec.attempt.replace(attempt=9), 2, 64, 10.0) == {}


def test_stopped_attempt_frees_its_accelerators(bench: ClusterUnderTest) -> None:
    spec = a_launch(bench, free_nodes(bench, 2))
    bench.cluster.launch(spec)
    attempt = spec.attempt

    for _ in range(2):
        bench.cluster.stop(attempt, 1)

    bench.eventually(lambda: seen(bench, spec).pods == () and seen(bench, spec).uid == "", "the pods to be gone")
    assert bench.cluster.resources_in_use(CLUSTER) == {}
    assert bench.cluster.workloads(CLUSTER) == ()


def test_stopped_pod_on_a_lost_node_stays_until_force_deleted(bench: ClusterUnderTest) -> None:
    nodes = free_nodes(bench, 2)
    spec = a_launch(bench, nodes)
    bench.cluster.launch(spec)
    bench.eventually(lambda: all(pod.phase is PodPhase.RUNNING for pod in seen(bench, spec).pods), "running pods")
    lost = nodes[0].name
    bench.disconnect_node(lost)
    bench.eventually(
        lambda: (node := bench.cluster.node(CLUSTER, lost)) and not node.is_ready, "the node to be NotReady"
    )

    bench.cluster.stop(spec.attempt, 1)
    bench.eventually(lambda: len(seen(bench, spec).pods) == 1, "the other pod to be gone")

    (pod,) = seen(bench, spec).pods
    assert (pod.node_name, pod.is_terminating) == (lost, True)
    for _ in range(2):
        bench.cluster.force_delete_pods(spec.attempt, [lost])
    bench.eventually(lambda: seen(bench, spec).pods == (), "the pod to be forgotten")


def test_only_pods_on_the_named_nodes_are_force_deleted(bench: ClusterUnderTest) -> None:
    spec = a_launch(bench, free_nodes(bench, 1))
    bench.cluster.launch(spec)
    bench.eventually(lambda: seen(bench, spec).pods, "a pod")

    bench.cluster.force_delete_pods(spec.attempt, ["hyperpod-i-0aaaaaaaaaaaaaaaa"])

    assert len(seen(bench, spec).pods) == 1
    assert seen(bench, spec).uid


def test_pod_whose_node_is_cordoned_waits_unschedulable(bench: ClusterUnderTest) -> None:
    node = free_nodes(bench)[0]
    bench.cluster.cordon(CLUSTER, node.name, "inc-1")
    spec = a_launch(bench, [node])

    bench.cluster.launch(spec)

    bench.eventually(
        lambda: [pod.reason for pod in seen(bench, spec).pods] == ["Unschedulable"], "an unschedulable pod"
    )
    (pod,) = seen(bench, spec).pods
    assert (pod.phase, pod.node_name) == (PodPhase.PENDING, "")


def test_another_attempt_of_the_job_is_another_workload(bench: ClusterUnderTest) -> None:
    nodes = free_nodes(bench, 2)
    spec = a_launch(bench, nodes[:1])
    later = replace(spec, attempt=spec.attempt.replace(attempt=2, node_names=(nodes[1].name,)))
    bench.cluster.launch(spec)
    bench.cluster.launch(later)

    bench.cluster.stop(spec.attempt, 1)

    bench.eventually(lambda: seen(bench, spec).pods == (), "attempt 1 to be gone")
    assert seen(bench, later).uid
    assert [workload.attempt for workload in bench.cluster.workloads(CLUSTER)] == [2]


# ---------------------------------------------------------------- labels prove nothing


def test_job_with_copied_labels_elsewhere_belongs_to_no_attempt(bench: ClusterUnderTest) -> None:
    spec = a_launch(bench, free_nodes(bench))
    _, uid = bench.cluster.launch(spec)
    recorded = spec.attempt.replace(workload_uid=uid)
    bench.forge_job(spec, "default")

    bench.eventually(
        lambda: [workload for workload in bench.cluster.workloads(CLUSTER) if workload.has_completed],
        "a forged success",
    )

    for attempt in (spec.attempt, recorded):
        workload = bench.cluster.workload(attempt)
        assert (workload.uid, workload.namespace, workload.has_completed, len(workload.pods)) == (
            uid,
            NAMESPACE,
            False,
            1,
        )
        assert attempt.own_workload(bench.cluster.workloads(CLUSTER)) == workload
    bench.cluster.stop(recorded, 1)
    bench.eventually(
        lambda: [workload.namespace for workload in bench.cluster.workloads(CLUSTER)] == ["default"], "one Job"
    )


def test_existing_job_of_another_decision_is_not_adopted(bench: ClusterUnderTest) -> None:
    spec = a_launch(bench, free_nodes(bench))
    forged = replace(spec, attempt=spec.attempt.replace(decision_id="dec-forged"))
    bench.cluster.launch(forged)

    with pytest.raises(Refused):
        bench.cluster.launch(spec)

    assert (seen(bench, spec).uid, seen(bench, spec).pods) == ("", ())
    bench.cluster.stop(spec.attempt, 1)
    assert seen(bench, forged).uid


def test_recreated_job_with_another_uid_belongs_to_no_attempt(bench: ClusterUnderTest) -> None:
    spec = a_launch(bench, free_nodes(bench))
    _, uid = bench.cluster.launch(spec)
    recorded = spec.attempt.replace(workload_uid=uid)
    bench.delete_job(spec)
    bench.eventually(lambda: not bench.cluster.workload(recorded).uid, "the Job to be gone")

    again = bench.eventually(lambda: recreate_job(bench, spec), "another Job of its name")

    assert again != uid
    workload = bench.cluster.workload(recorded)
    assert workload.uid == ""
    assert recorded.own_workload(bench.cluster.workloads(CLUSTER)) == workload
    bench.cluster.stop(recorded, 1)
    assert seen(bench, spec).uid == again


def recreate_job(bench: ClusterUnderTest, spec: LaunchSpec) -> str:
    result, uid = bench.cluster.launch(spec)
    return uid if result is LaunchResult.CREATED else ""


def test_bare_pod_with_copied_labels_belongs_to_no_attempt(bench: ClusterUnderTest) -> None:
    here, other_node = free_nodes(bench, 2)
    spec = a_launch(bench, [here], "echo mine; exec sleep 60")
    bench.cluster.launch(spec)
    bench.forge_pod(spec, other_node.name)

    def claims() -> list[UnmanagedPod]:
        pods = [pod for pod in bench.cluster.pods(CLUSTER) if pod.claim and pod.node_name]
        return pods if len(pods) == 2 else []

    pods = bench.eventually(claims, "two placed pods that claim the attempt")

    assert {(pod.node_name, pod.claim.controller == spec.attempt.workload_name) for pod in pods if pod.claim} == {
        (here.name, True),
        (other_node.name, False),
    }
    assert [pod.node_name for pod in seen(bench, spec).pods] == [here.name]
    bench.cluster.stop(spec.attempt, 1)
    bench.cluster.force_delete_pods(spec.attempt, [other_node.name])
    bench.eventually(lambda: seen(bench, spec).pods == () and seen(bench, spec).uid == "", "the attempt to be gone")
    assert [pod.node_name for pod in bench.cluster.pods(CLUSTER)] == [other_node.name]
    with pytest.raises(NotFound):
        bench.cluster.logs(spec.attempt, 0, 10)


# ---------------------------------------------------------------- work that is not ours


def test_unmanaged_pods_show_their_owner_and_whether_it_recreates_them(bench: ClusterUnderTest) -> None:
    node = free_nodes(bench)[0]
    bench.cluster.launch(a_launch(bench, free_nodes(bench, 2)[1:]))
    bench.create_unmanaged_pod("bare", node.name)
    bench.create_unmanaged_pod("notebook-0", node.name, owner="StatefulSet", resume="allowed")
    bench.create_unmanaged_pod("hyperpod-0", node.name, owner="HyperPodPyTorchJob", resume="allowed")

    def foreign() -> list[UnmanagedPod]:
        pods = [pod for pod in bench.cluster.pods(CLUSTER) if pod.claim is None]
        return pods if len(pods) == 3 else []

    pods = bench.eventually(foreign, "three pods")

    assert {(pod.name, pod.kind, pod.workload, pod.recreation, pod.consent, pod.is_movable) for pod in pods} == {
        ("bare", "", "bare", PodRecreation.NEVER, Consent.UNSET, False),
        ("notebook-0", "StatefulSet", "llama", PodRecreation.BY_OWNER, Consent.ALLOWED, True),
        ("hyperpod-0", "HyperPodPyTorchJob", "llama", PodRecreation.BY_HYPERPOD, Consent.ALLOWED, False),
    }
    assert {(pod.namespace, pod.node_name, pod.accelerators) for pod in pods} == {("default", node.name, 2)}
    in_use = {group: bench.cluster.resources_in_use(CLUSTER, group) for group in PodGroup}
    assert in_use[PodGroup.ALL][node.name].accelerators == 6
    assert (in_use[PodGroup.MOVABLE], in_use[PodGroup.BOUND]) == (in_use[PodGroup.ALL], {})
    live = bench.cluster.live_pods(CLUSTER)
    assert (live.movable, live.bound) == (in_use[PodGroup.MOVABLE], {})
    assert {pod.uid for pod in live.pods} == {pod.uid for pod in bench.cluster.pods(CLUSTER)}
    used = bench.cluster.pods_in_use(CLUSTER)
    assert used.movable == in_use[PodGroup.MOVABLE]
    assert [(allocated.job_uid, allocated.pods) for allocated in used.attempts] == [
        (workload.job_uid, workload.pods) for workload in bench.cluster.workloads(CLUSTER)
    ]


def test_unmanaged_pods_are_listed_by_node(bench: ClusterUnderTest) -> None:
    here, other_node = free_nodes(bench, 2)
    bench.create_unmanaged_pod("replica-0", here.name, owner="ReplicaSet")
    bench.create_unmanaged_pod("replica-1", other_node.name, owner="ReplicaSet")
    bench.eventually(lambda: len(bench.cluster.pods(CLUSTER)) == 2, "two pods")

    assert [pod.name for pod in bench.cluster.pods(CLUSTER, here.name)] == ["replica-0"]
    assert bench.cluster.pods(CLUSTER, "no-such-node") == ()
    assert bench.cluster.pods(CLUSTER, "") == ()


def test_eviction_of_a_pod_takes_effect_once(bench: ClusterUnderTest) -> None:
    node = free_nodes(bench)[0]
    bench.create_unmanaged_pod("kubeflow-0", node.name, owner="PyTorchJob")
    (pod,) = bench.eventually(lambda: bench.cluster.pods(CLUSTER), "a pod")

    assert bench.cluster.evict(CLUSTER, pod).result is EvictionStatus.EVICTED

    bench.eventually(lambda: not bench.cluster.pods(CLUSTER), "the pod to be gone")
    assert bench.cluster.evict(CLUSTER, pod).result is EvictionStatus.GONE


def test_recreated_pod_of_the_same_name_is_not_evicted(bench: ClusterUnderTest) -> None:
    node = free_nodes(bench)[0]
    bench.create_unmanaged_pod("kubeflow-0", node.name, owner="PyTorchJob")
    (pod,) = bench.eventually(lambda: bench.cluster.pods(CLUSTER), "a pod")

    assert bench.cluster.evict(CLUSTER, pod.replace(uid="another")).result is EvictionStatus.GONE
    assert bench.cluster.pods(CLUSTER)


def test_disruption_budget_is_respected(bench: ClusterUnderTest) -> None:
    node = free_nodes(bench)[0]
    bench.create_unmanaged_pod("kubeflow-0", node.name, owner="PyTorchJob", allows_eviction=False)
    (pod,) = bench.eventually(lambda: bench.cluster.pods(CLUSTER), "a pod")

    assert bench.cluster.evict(CLUSTER, pod).result is EvictionStatus.NOT_NOW
    assert bench.cluster.pods(CLUSTER)


def test_pod_with_two_disruption_budgets_is_not_evicted_now(bench: ClusterUnderTest) -> None:
    node = free_nodes(bench)[0]
    bench.create_unmanaged_pod("kubeflow-0", node.name, owner="PyTorchJob")
    bench.create_disruption_budgets("kubeflow-0", 2)
    (pod,) = bench.eventually(lambda: bench.cluster.pods(CLUSTER), "a pod")
    bench.eventually(lambda: bench.is_running(pod), "the pod to run")

    eviction = bench.cluster.evict(CLUSTER, pod)

    assert (eviction.result, "more than one PodDisruptionBudget" in eviction.why) == (EvictionStatus.NOT_NOW, True)
    assert bench.cluster.pods(CLUSTER)


def test_pod_of_a_terminating_namespace_is_not_evicted_now(bench: ClusterUnderTest) -> None:
    node = free_nodes(bench)[0]
    bench.create_unmanaged_pod("kubeflow-0", node.name)
    bench.eventually(lambda: bench.cluster.pods(CLUSTER), "a pod")
    bench.delete_namespace_of_pod("kubeflow-0")
    (pod,) = bench.eventually(lambda: bench.cluster.pods(CLUSTER), "a pod")

    eviction = bench.cluster.evict(CLUSTER, pod)

    assert (eviction.result, "being terminated" in eviction.why) == (EvictionStatus.NOT_NOW, True)


def test_watch_reports_changes_of_nodes_pods_and_jobs(bench: ClusterUnderTest) -> None:
    node = free_nodes(bench)[0]
    spec = a_launch(bench, [node])
    kinds: set[str] = set()
    steps = iter([lambda: bench.cluster.launch(spec), lambda: bench.cluster.cordon(CLUSTER, node.name, "inc-1")])
    is_heard = threading.Event()

    def on_change(kind: str) -> None:
        kinds.add(kind)
        if kinds == {"node", "pod", "job"}:
            is_heard.set()

    def over() -> bool:
        next(steps, lambda: None)()
        return is_heard.is_set()

    bench.cluster.watch(CLUSTER, on_change, until=over)

    assert kinds == {"node", "pod", "job"}
