"""A Job that is handed over, from its queue to its end, as the adapter reads it: the stand-in plays Kueue."""

from collections.abc import Iterator

import pytest

from evenkeel.domain.external.kueue_status import KueueEviction, describe_status, eviction_of
from evenkeel.domain.jobs.attempt import ObservedWorkload, PodPhase
from evenkeel.ports import LaunchSpec
from evenkeel_local.gpu_cluster import ClusterHandle
from tests.contract.clusters_under_test import CLUSTER, NAMESPACE, LocalClusterUnderTest, a_launch, free_nodes
from tests.fake_kueue import FakeKueue
from tests.fakes.system import A_MOMENT
from tests.waiting import until


@pytest.fixture
def bed(gpu_cluster: ClusterHandle) -> Iterator[LocalClusterUnderTest]:
    bed = LocalClusterUnderTest(gpu_cluster)
    yield bed
    bed.restore()


@pytest.fixture
def kueue(bed: LocalClusterUnderTest) -> Iterator[FakeKueue]:
    with FakeKueue(bed.admin, NAMESPACE, room=0, priorities={"high": 9}) as stand_in:
        yield stand_in
    assert stand_in.faults == []


def seen(bed: LocalClusterUnderTest, spec: LaunchSpec) -> ObservedWorkload:
    return bed.cluster.workload(spec.attempt)


def messages(bed: LocalClusterUnderTest, spec: LaunchSpec) -> str:
    return describe_status(seen(bed, spec).kueue, "research", A_MOMENT)


def taken_back(bed: LocalClusterUnderTest, spec: LaunchSpec) -> KueueEviction | None:
    found = seen(bed, spec).kueue
    assert found
    return eviction_of(found)


def test_job_is_admitted_evicted_and_admitted_again(bed: LocalClusterUnderTest, kueue: FakeKueue) -> None:
    spec = a_launch(bed, free_nodes(bed, 2), local_queue="research")
    bed.cluster.launch(spec)
    until(lambda: "16 more needed" in messages(bed, spec), "Kueue's reason")
    assert (seen(bed, spec).is_suspended, seen(bed, spec).pods) == (True, ())

    kueue.room = 16
    until(lambda: [pod.phase for pod in seen(bed, spec).pods] == [PodPhase.RUNNING] * 2, "its pods to run")
    assert not seen(bed, spec).is_suspended
    assert messages(bed, spec) == "Kueue admitted the job by quota of ml.p5.48xlarge in ClusterQueue research-queue."
    assert len({pod.node_name for pod in seen(bed, spec).pods}) == 2

    kueue.evict(spec.attempt.workload_name, "Preempted", "for another", room=0)
    until(lambda: seen(bed, spec).is_suspended and not seen(bed, spec).pods, "its pods to go")
    assert not seen(bed, spec).has_failed
    until(lambda: (one := seen(bed, spec).kueue) and one.was_admitted, "its quota to go")
    evicted = taken_back(bed, spec)
    assert evicted
    assert (evicted.reason, evicted.was_preempted) == ("Kueue preempted the job: for another.", True)

    kueue.room = 16
    until(lambda: [pod.phase for pod in seen(bed, spec).pods] == [PodPhase.RUNNING] * 2, "its pods to run again")
    assert taken_back(bed, spec)


def test_pending_job_shows_its_position_by_priority_then_age(bed: LocalClusterUnderTest, kueue: FakeKueue) -> None:
    nodes = free_nodes(bed)
    specs = [a_launch(bed, nodes, local_queue="research", priority_class=each) for each in ("", "", "high")]
    for spec in specs:
        bed.cluster.launch(spec)
        until(lambda spec=spec: seen(bed, spec).kueue, "its Workload")  # type: ignore[misc]  # bound now

    def places() -> list[int | None]:
        found = {one.job_id: one.kueue.position if one.kueue else None for one in bed.cluster.workloads(CLUSTER)}
        return [found[spec.attempt.job_id] for spec in specs]

    assert until(lambda: (found := places()) == [2, 3, 1] and found, "the places")
    assert [one.kueue.position for spec in specs if (one := seen(bed, spec)).kueue] == [2, 3, 1]


def test_normal_end_is_reported_to_kueue_as_finished(bed: LocalClusterUnderTest, kueue: FakeKueue) -> None:
    kueue.room = 8
    spec = a_launch(bed, free_nodes(bed), "exit 0", local_queue="research")
    bed.cluster.launch(spec)

    until(lambda: seen(bed, spec).has_completed, "its end")
    until(lambda: (one := seen(bed, spec).kueue) and one.holds("Finished"), "Kueue to know")

    assert taken_back(bed, spec) is None
