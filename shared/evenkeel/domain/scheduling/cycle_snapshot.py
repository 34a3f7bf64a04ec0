"""Everything that one scheduling cycle read, and the queue that the admission rules see in it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.admission.build_request import build_request
from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.admission.start_size import delay_smaller_start
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pod_shares import NodeShares
from evenkeel.domain.capacity.run_times import PastJob
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy import Policy
from evenkeel.domain.quotas.spending import Spending
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.renting.displacement import displacement_requester
from evenkeel.domain.renting.rental_book import RentalBook
from evenkeel.domain.renting.serving_rentals import ServingState
from evenkeel.domain.scheduling.queue_cursors import QueueCursors


class CycleSnapshot(NamedTuple):
    """Everything that one scheduling cycle read. The versions of the rows are in `LoadedCycle`."""

    authority: AdmissionAuthority = AdmissionAuthority.EVENKEEL
    setup: TeamSetup = TeamSetup()
    scheduler_state: SchedulerState = SchedulerState()
    """The state that earlier cycles left."""
    automation_hold_reason: str = ""
    """Why a person holds all scheduling; empty if no person does."""

    pending: Mapping[str, Job] = {}
    """Pending jobs by id."""
    deferred_jobs: frozenset[str] = frozenset()
    """Pending jobs that this cycle leaves out, because the ledger refused their admission."""
    jobs_with_charge: Mapping[str, Job] = {}
    """Jobs that hold a charge, by id. Without teams, only those that a decision needs."""
    elastic: Mapping[str, Job] = {}
    """Elastic jobs that hold nodes or are changing size, by id."""
    attempts: tuple[Attempt, ...] = ()
    """Recent attempts of the jobs whose run time a decision needs."""

    live_charges: tuple[Charge, ...] = ()
    """Charges of live attempts."""
    released_charges: tuple[Charge, ...] = ()
    """Charges that the last attempts of pending jobs released."""
    spent: Mapping[tuple[str, str], Spending] = {}
    """(team, name of the budget period) → the use of its settled attempts and its rentals."""
    used: Mapping[str, Mapping[str, float]] = {}
    """Team with a queue ordered by usage → submitter → decayed usage of its settled attempts, in accelerators."""
    work_at_risk_by_job: Mapping[str, float] = {}
    """Job that holds a charge → accelerator-seconds of work that it would lose if it stopped now."""

    capacities: tuple[NodeCapacity, ...] = ()
    """All nodes of the readable clusters. Rented nodes are reserved for their jobs."""
    kueue_namespaces: Mapping[tuple[str, str], str] = {}
    """(cluster, namespace) in which Kueue admits jobs → the object that proves it."""
    unreadable_clusters: frozenset[str] = frozenset()
    """Clusters that could not be read."""

    rental_book: RentalBook = RentalBook()
    shortages: Shortages | None = None
    """Recent refusals of capacity; None until a decision needs them."""
    past_jobs: tuple[PastJob, ...] = ()
    """Run times of the latest jobs that ended by themselves; empty until a decision needs them."""
    serving_pods: Mapping[str, Sequence[UnmanagedPod]] = {}
    """Readable cluster with serving workloads → its pods."""
    serving_states: Mapping[str, tuple[ServingState, int]] = {}
    """Id of a Deployment → its stored state, with the version of its row."""

    cursor_after_read: Mapping[str, str] = {}
    """Team whose queue is longer than this cycle read → the cursor behind the jobs that it read."""
    cursor_after_first_page: Mapping[str, str] = {}
    """Team → the cursor after the first page of its queue."""
    cursors_of_next_cycle: QueueCursors | None = None
    """The cursors from which the next cycle continues; None if no queue is longer than its first page."""

    def without_jobs(self, job_ids: Collection[str]) -> "CycleSnapshot":
        """Return the snapshot with these pending jobs left out."""
        return self._replace(deferred_jobs=self.deferred_jobs | frozenset(job_ids))

    def known_job(self, job_id: str) -> Job | None:
        """Return a job that this cycle read, whatever its state."""
        return self.jobs_with_charge.get(job_id) or self.elastic.get(job_id) or self.pending.get(job_id)

    def eligible_jobs(self) -> Iterator[Job]:
        """Yield the pending jobs that may start in their namespace."""
        for job in self.pending.values():
            if job.job_id not in self.deferred_jobs and not self.other_team_of_namespace(job):
                yield job

    def jobs_being_displaced(self, job_id: str) -> list[str]:
        """Return the jobs that received a request to free their nodes for a job, and still hold them."""
        requester = displacement_requester(job_id)
        charged_jobs = (self.known_job(charge.job_id) for charge in self.live_charges)
        return [
            job.job_id
            for job in charged_jobs
            if job and (stop := job.stop_of(job.current_attempt)) and stop.by == requester
        ]

    def other_team_of_namespace(self, job: Job) -> str:
        """Return the other team that owns a job's namespace; empty if no other team does."""
        team = self.setup.namespaces.get(job.namespace, "")
        return team if team != job.spec.team else ""

    def is_unreadable(self, job: Job) -> bool:
        """Whether the cluster on which a job would start could not be read."""
        return bool(self.unreadable_clusters) and (
            self.rental_book.in_rented_cluster(job).cluster in self.unreadable_clusters
        )

    def is_in_kueue_namespace(self, job: Job) -> bool:
        """Whether Kueue admits jobs in a job's namespace."""
        return (job.cluster, job.namespace) in self.kueue_namespaces

    def requests(self, policy: Policy, now: datetime) -> tuple[AdmissionRequest, ...]:
        """Return the requests of the pending jobs that the admission rules decide about."""
        shares = NodeShares(self.capacities, policy.burst.pools)
        may_backfill = not self.setup.has_teams
        return tuple(
            delay_smaller_start(
                build_request(self.rental_book.in_rented_cluster(job), shares, policy, now, may_backfill=may_backfill),
                job.lost_at,
                policy.scheduling.elastic,
            )
            for job in self.eligible_jobs()
            if not self.is_in_kueue_namespace(job) and not self.is_unreadable(job)
        )

    def admission_input(self, policy: Policy, now: datetime) -> AdmissionInput:
        """Return the input of the admission rules, with all nodes of the fleet."""
        return AdmissionInput(
            capacities=self.capacities,
            pending=self.requests(policy, now),
            setup=self.setup,
            charges=self.charges(),
            stopping=self._stopping_jobs(),
            scheduler_state=self.scheduler_state,
            spent=self.spent,
            last_reasons={job_id: job.queue_reason for job_id, job in self.pending.items()},
            used=self.used,
            work_at_risk_by_job=self.work_at_risk_by_job,
            unreadable_clusters=self.unreadable_clusters,
        )

    def resizable_jobs(self) -> dict[str, Job]:
        """Return the elastic jobs, without the jobs on nodes of unreadable clusters."""
        elsewhere = {charge.job_id for charge in self.live_charges if charge.cluster in self.unreadable_clusters}
        return {job_id: job for job_id, job in self.elastic.items() if job_id not in elsewhere}

    def charges(self) -> tuple[Charge, ...]:
        """Return the charges that count against quotas, each with the present priority of its job."""
        if not self.setup.has_teams:
            return self.live_charges
        # The priority of a job may have changed since its admission.
        current = (
            charge.replace(priority=self.jobs_with_charge[charge.job_id].priority)
            if charge.job_id in self.jobs_with_charge
            else charge
            for charge in self.live_charges
        )
        return (*current, *self._retained_charges())

    def _retained_charges(self) -> Iterator[Charge]:
        """Yield the released charges of interrupted jobs on unreadable clusters: their quota stays reserved.

        The quota of a preempted job is not retained, since another job was given it.
        """
        for charge in self.released_charges:
            job = self.pending.get(charge.job_id)
            if job is None or charge.cluster not in self.unreadable_clusters or job.current_attempt != charge.attempt:
                continue
            if not job.is_preempted:
                yield charge

    def _stopping_jobs(self) -> frozenset[str]:
        """Return the jobs that hold a charge although they were asked to stop."""
        if not self.setup.has_teams:
            return frozenset()
        stopping_job_ids = {job_id for job_id, job in self.jobs_with_charge.items() if job.stop_of(job.current_attempt)}
        return frozenset(
            (stopping_job_ids | self.scheduler_state.stopping.keys()) & {charge.job_id for charge in self.live_charges}
        )
