"""Rentals in a second cluster: the job starts there, returns from there, and nothing of it stays behind."""

from dataclasses import dataclass, field

from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.rental import RentalState
from tests.fakes import a_node
from tests.fakes.cluster import CLUSTER
from tests.unit.services_jobs.test_rentals import SPOT, RentalScenario, a_policy, a_pool

BURST = "burst-eks"


def a_policy_elsewhere() -> Policy:
    return a_policy(pools=(a_pool(SPOT, Market.SPOT, cluster=BURST),))


@dataclass
class SecondClusterScenario(RentalScenario):
    """The committed nodes are in the first cluster; the pool to rent from is in the second."""

    policy: Policy = field(default_factory=a_policy_elsewhere)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scenario.clusters = (CLUSTER, BURST)
        self.world.cluster.limits = {(BURST, SPOT): (0, 0)}

    def launch_nodes(self) -> None:
        """Launch a node of the second cluster for each capacity pod without one."""
        cluster = self.world.cluster
        for spec in list(cluster.capacity.values()):
            assert spec.cluster == BURST
            limit = cluster.limits[BURST, spec.pool] or (0, 0)
            for _ in range(min(spec.nodes, limit[0]) - len(cluster.node_claims(BURST, spec.pool))):
                self.launched += 1
                node = a_node(
                    300 + self.launched,
                    cluster=BURST,
                    name=f"ip-10-4-0-{self.launched}",
                    pool=spec.pool,
                    hyperpod_cluster_id=None,
                    created_at=self.world.clock.now(),
                    instance_type="p5.48xlarge",
                    efa=spec.efa,
                    labels={"karpenter.sh/nodepool": spec.pool},
                )
                cluster.launch_rented(node)


def test_job_starts_on_nodes_rented_in_another_cluster() -> None:
    renting = SecondClusterScenario()

    _, second = renting.run_second_job_on_rented_nodes()

    attempt = renting.scenario.attempt(second.job_id, 1)
    assert (second.state, second.cluster) == (JobState.RUNNING, CLUSTER)
    assert (attempt.cluster, attempt.pool, attempt.is_rented) == (BURST, SPOT, True)
    assert attempt.node_names == renting.rental(second.job_id).node_names
    assert renting.world.cluster.limits[BURST, SPOT] == (2, 16)


def test_job_migrates_back_to_its_own_cluster() -> None:
    renting = SecondClusterScenario()
    first, second = renting.run_second_job_on_rented_nodes()
    renting.world.cluster.finish_pods(first.job_id, 1)
    renting.scenario.settle(first.job_id, 1)

    renting.scenario.run_scheduling_cycle()
    stopping = renting.scenario.job(second.job_id).stop_request
    renting.world.cluster.stop(renting.scenario.attempt(second.job_id, 1), 0)
    renting.scenario.settle(second.job_id, 1)
    renting.scenario.run_scheduling_cycle()
    for _ in range(3):
        renting.advance_executions()

    assert stopping is not None
    again = renting.scenario.attempt(second.job_id, 2)
    assert (again.cluster, again.is_rented) == (CLUSTER, False)
    assert renting.rental(second.job_id).state is RentalState.ENDED
    assert renting.leftovers() == []


def test_rental_of_another_cluster_ends_with_its_job() -> None:
    renting = SecondClusterScenario()
    _, second = renting.run_second_job_on_rented_nodes()

    renting.world.cluster.finish_pods(second.job_id, 1)
    renting.scenario.settle(second.job_id, 1)
    for _ in range(3):
        renting.advance_executions()

    assert renting.rental(second.job_id).state is RentalState.ENDED
    assert renting.leftovers() == []
    assert not renting.world.cluster.nodes(BURST)


def test_unreadable_second_cluster_keeps_its_rental_and_rents_no_other() -> None:
    renting = SecondClusterScenario()
    _, second = renting.run_second_job_on_rented_nodes()
    renting.world.cluster.unreadable_lists[BURST] = {"nodes"}

    renting.scenario.run_scheduling_cycle()

    assert renting.rental(second.job_id).state is RentalState.READY
    assert renting.scenario.job(second.job_id).stop_request is None
    assert renting.allocation_count() == 1
