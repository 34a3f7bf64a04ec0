"""Every number and switch that a decision may depend on. Defaults are the production values."""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator

from evenkeel.domain.capacity.pools import Pool, Reservation
from evenkeel.domain.economics import money
from evenkeel.domain.elastic.grow_shrink import ElasticTerms
from evenkeel.domain.health.faults import Catalogue, CatalogueError, FaultOverride, shipped
from evenkeel.domain.jobs.types import JobTypes
from evenkeel.domain.values import NOT_A_NUMBER, Image, Instant, Line, ProgramText, Value, Word, booleans_for_numbers

LONGEST_SECONDS = 31_536_000
"""A year: what waits longer is no deadline, and no workflow lives to see it."""
LARGEST = 10**12
"""Of all other numbers that have no bound of their own. Sums and products of such are still counted exactly."""


def _no_system_class(name: str) -> str:
    if name.startswith("system-"):
        raise ValueError("classes that begin with system- are Kubernetes' own")
    return name


Seconds = Annotated[int, Field(ge=0, le=LONGEST_SECONDS)]
"""A pause or a margin, which may be none."""
Deadline = Annotated[int, Field(ge=1, le=LONGEST_SECONDS)]
"""What is due at once would be overdue before it began."""
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Tries = Annotated[int, Field(ge=0, le=1000)]
Usd = Annotated[float, Field(ge=0, le=10_000)]
Micros = Annotated[int, Field(ge=0, le=10**15)]
Scale = Annotated[float, Field(ge=0, le=100)]


PriorityClass = Annotated[
    str, Field(max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"), AfterValidator(_no_system_class)
]


class Section(Value):
    """A part of the policy. What it does not know it refuses: a misspelt limit would be no limit.

    Every number has a lower and an upper bound: what lies beyond is a slip, and would stop passes or outlast the
    calendar.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Mode(StrEnum):
    """How far automation may go."""

    OBSERVE = "observe"
    """Decide and record; touch nothing."""
    RECOMMEND = "recommend"
    """Decide, record and wait for approval."""
    ACT = "act"
    """Decide, record and do."""


class ModeRule(Section):
    """How far automation may go about some faults in some pools; the stack's own mode is the ceiling."""

    fault_class: Word = ""
    """As in the catalogue; empty for all."""
    pool: Word = ""
    """Empty for all."""
    mode: Mode


class GuardrailPolicy(Section):
    """Bounds on harmful acts, whatever a ladder wants.

    Where a count and a share of a pool stand side by side the lower binds, and one machine is always allowed: a pool of
    three may still lose one.
    """

    fleet_repairs: int = Field(default=10, ge=1, le=1000)
    """Machines in repair at a time. They are one row of the ledger, as the cordoned ones are: hence the most."""
    pool_repairs: int | None = Field(default=4, ge=1, le=1_000_000)
    pool_repair_share: float | None = Field(default=0.1, gt=0, le=1)
    repairs_per_hour: int = Field(default=20, ge=1, le=1000)
    """Repair calls of the whole fleet."""
    fleet_cordons: int = Field(default=60, ge=1, le=1000)
    """Machines that carry our cordon at a time."""
    pool_cordons: int | None = Field(default=20, ge=1, le=1_000_000)
    pool_cordon_share: float | None = Field(default=0.3, gt=0, le=1)
    leaving_seconds: Seconds = 900
    """A machine that goes by itself within this is cordoned whatever else is out: left open it goes all the same."""
    shared_cause_count: int = Field(default=3, ge=2, le=1_000_000)
    """So many machines of one zone, UltraServer or image that sicken within the window have one cause."""
    shared_cause_share: float = Field(default=0.05, gt=0, le=1)
    """And at least this share of those machines: in a large zone a few are chance."""
    shared_cause_window_seconds: Deadline = 900
    stale_after_seconds: Seconds = 1800
    """Evidence older than this, of a machine that looks well, is re-validated and not acted on."""

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        for act, bounds in (
            ("repair", (self.pool_repairs, self.pool_repair_share)),
            ("cordon", (self.pool_cordons, self.pool_cordon_share)),
        ):
            if bounds == (None, None):
                raise ValueError(f"neither a count nor a share of a pool bounds its {act}s: give at least one")
        return self


RESTART = "restart"
"""In the place of a fault class: the job runs again, and no fault of a node was the reason."""


class RepairPolicy(Section):
    """Limits and deadlines of the node branch."""

    reboot_deadline_seconds: Deadline = 900
    """A reboot is expected back well inside this; past it the next rung is due."""
    replace_deadline_seconds: Deadline = 1800
    """Published p90 of a HyperPod replacement is about 16 minutes."""
    takeover_seconds: Seconds = 600
    """With NodeRecovery=Automatic: so long HyperPod may do nothing before Evenkeel takes over."""
    owner_deadline_seconds: Seconds = 5400
    """With NodeRecovery=Automatic: 90 min after an attempt of HyperPod's without a new one Evenkeel takes over."""
    karpenter_repairs: bool = False
    """Whether Karpenter's own node repair is on: it is then waited for; else machines are drained and given back."""
    karpenter_deadline_seconds: Deadline = 2700
    """Karpenter's own repair acts after 10 or 30 minutes, by the condition."""
    max_attempts: Tries = 3
    """Repair calls per incident, all rungs together."""
    max_attempts_a_day: Tries = 6
    """Repair calls per seat within a day, over all its incidents and lives."""
    leave_seconds: Seconds = 900
    """So long before a machine goes by itself the work on it is stopped, where it may run on until then."""
    way_deadline_seconds: Deadline = 86_400
    """How long anything may be in the way of a repair before it is weighed anew."""
    flap_window_hours: int = Field(default=24, ge=1, le=8760)
    """Returns to service are counted over this long."""
    flap_margin_factor: int = Field(default=4, ge=1, le=10)
    """Each return within the window makes the next validation's margin so many times longer."""
    lemon_returns: Tries = 3
    """So many returns of one machine within the window make a lemon: it is replaced and not rebooted again."""
    reconcile_after_seconds: Seconds = 600
    """A call whose reply was lost is asked again, once, only after this long without evidence of it."""
    retry_seconds: Deadline = 30
    """Pause before a refused or throttled call is decided anew."""
    settle_scale: Scale = 1.0
    """Factor on the catalogue's settle seconds."""
    ends_foreign_pods: bool = False
    """Whether pods that are not ours, and are still there when the drain is over, end with the machine although its
    fault could wait; if not, a person is asked."""
    foreign_drain_seconds: Seconds = 300
    """Drain for pods that are not ours where the fault says nothing of one."""
    drain_scale: Scale = 1.0
    """Factor on the catalogue's drain seconds."""
    validation_deadline_seconds: Deadline = 600
    deep_checks_after: tuple[Word, ...] = ()
    """Fault classes after which HyperPod's deep health check validates, where the fault's row asks for `deep`. It takes
    about two hours a node, and HyperPod itself repairs what fails it."""
    deep_check_least_seconds: Seconds = 300
    """What the node says of a deep check younger than this may be said of an older one."""
    deep_check_deadline_seconds: Deadline = 14_400
    test_job_image: Image = ""
    """Image of the test job that validates a machine; empty = none. It gets all accelerators of the node."""
    test_job_command: tuple[ProgramText, ...] = ()
    """What it runs; exit code 0 is a pass. Empty = what the image runs by itself."""
    test_jobs_after: tuple[Word, ...] = ("hardware", "mixed", "network", "software")
    """Fault classes after which a test job validates, where no deep check does."""
    test_job_deadline_seconds: Deadline = 900
    return_margin_seconds: Seconds = 10
    """A node must have been Ready this long before it is validated."""
    approval_deadline_seconds: Deadline = 3600
    """How long mode `recommend` waits for an approval."""
    guardrails: GuardrailPolicy = GuardrailPolicy()

    @model_validator(mode="after")
    def _margin_ends(self) -> Self:
        longest = self.return_margin_seconds * self.flap_margin_factor**self.lemon_returns
        if longest > LONGEST_SECONDS:
            raise ValueError("returnMarginSeconds times flapMarginFactor to the power of lemonReturns is over a year")
        return self


class JobPolicy(Section):
    """Limits and deadlines of attempts."""

    priority_classes: Annotated[tuple[PriorityClass, ...], Field(max_length=100)] = ()
    """Kubernetes PriorityClasses that pods may have where no teams are set up; none of Kubernetes' own."""
    launch_deadline_seconds: Deadline = 900
    """How long the previous attempt's remains may delay a launch."""
    running_deadline_seconds: Deadline = 900
    """From launch until every pod runs (image pulls included)."""
    run_deadline_seconds: int = Field(default=30_000_000, ge=1, le=31_500_000)
    """Longest a run may take, just under the year that a workflow execution may last."""
    stop_deadline_seconds: Deadline = 1200
    """From a stop request until every pod is gone or fenced out."""
    lost_node_seconds: Seconds = 60
    """A node NotReady this long is taken as lost: its pods are fenced out, not waited for."""
    resume_deadline_seconds: Deadline = 3600
    """From the incident until the job runs again or is handed to the queue; past it a person is paged."""
    application_restarts: Tries = 3
    """Restarts after the application's own faults. Infrastructure faults do not count."""
    same_failures: Tries = 2
    """So many failures alike (same exit code, soon, from the same point) end a job: it would fail again; 0 = no."""
    same_failure_seconds: Seconds = 600
    """Only failures within this time of the pods' start are held to be alike."""
    restart_backoff_seconds: Seconds = 30
    """First pause after an application fault; doubles each time."""
    restart_backoff_max_seconds: Seconds = 3600
    launch_retry_seconds: Deadline = 5
    """Pause before a launch that waits for the previous attempt's remains looks again."""
    blame_seconds: Seconds = 20
    """A failed attempt waits this long before the application is blamed, so that a sick node can show itself."""
    keep_workload_seconds: Seconds = 86_400
    """Ended pods of settled attempts are kept this long, so that their logs can be read; they hold no accelerator."""
    distrust_guard_seconds: Seconds = 300
    """Checkpoints whose write began after the first signal minus this are distrusted where the fault can corrupt."""
    convention_accepted_after: tuple[Word, ...] = (
        *("application", "capacity", "hardware", "info", "mixed", "network", "software"),
        RESTART,
    )
    """Fault classes of the catalogue after which a checkpoint that is complete by its writer's convention will do,
    though no checksum vouches for it; `restart` stands for none of them. After a fault that time does not bound, none
    ever does."""
    start_over_when_unproved: bool = False
    """Whether a job whose finished checkpoints all fail the proof begins again from nothing. If not, its launch is put
    off, with growing pauses, until one holds."""
    others_save_seconds: Seconds = 30
    """Where the sick node is left at once: how long the other ranks of its jobs get to save."""
    rest_before_deadline_seconds: Seconds = 30
    """A save must be done, and its manifest in the store, this long before the machine goes."""
    finish_seconds: Seconds = 86_400
    """How long a job that asks for it may run on beside the cordon of a machine that can wait."""
    max_rollbacks: Tries = 3
    """How often a job may be stopped and taken back because what it had resumed from turned out to be in doubt."""
    expected_resume_seconds: Seconds = 1400
    """Restore and warm-up on free capacity; published p90 at 256 nodes is 1,398 s."""
    expected_replace_seconds: Seconds = 960

    def accepts_convention(self, fault_class: str) -> bool:
        """Whether completeness by convention is enough after a fault of this class, or after `RESTART`."""
        return fault_class in self.convention_accepted_after


class EconomyPolicy(Section):
    """What an accelerator's time is worth, and how long things take where nothing measured says better."""

    usd_per_accelerator_hour: dict[Word, Usd] = {}
    """By instance type, as the site pays for it."""
    other_usd_per_accelerator_hour: Usd = 5.0
    """For every type not listed: a round figure by which options can be compared, nobody's price."""
    expected_reboot_seconds: Seconds = 300
    expected_launch_seconds: Seconds = 60
    """From admission until every pod runs."""
    expected_capacity_seconds: Seconds = 3600
    """Until the queue finds room by itself."""
    expected_checkpoint_seconds: Seconds = 900
    """Usual time between two checkpoints; half of it is lost on average."""
    least_samples: int = Field(default=5, ge=1, le=1000)
    """Measured cases from which on their median counts instead of the figures here."""

    def price_of(self, instance_type: str) -> float:
        """Return dollars an accelerator-hour."""
        return self.usd_per_accelerator_hour.get(instance_type, self.other_usd_per_accelerator_hour)


class WatchPolicy(Section):
    """How the world is heard."""

    not_ready_seconds: Seconds = 300
    """A node NotReady this long sickens: `node:not_ready`."""
    watch_seconds: int = Field(default=50, ge=1, le=75)
    """How long one `watch_cluster` invocation holds its watch."""
    tick_seconds: int = Field(default=5, ge=1, le=300)
    """Without any change, how often `watch_cluster` looks again: some conditions come true by time alone."""
    sweep_page_budget: int = Field(default=50, ge=1, le=10_000)
    """List pages one sweep may read."""
    first_boot_grace_seconds: Seconds = 1800
    """A node younger than this that is not Ready yet is booting, not sick."""
    stale_condition_seconds: Seconds = 172_800
    """A sick condition that has not changed for this long is no news: its agent may be stuck."""
    recovery_told_seconds: Seconds = 600
    """How long it is news that an agent takes a node for well again."""
    execution_grace_seconds: Seconds = 30
    """An incident or attempt older than this without a running execution was left half done."""
    max_runs: int = Field(default=5, ge=1, le=20)
    """Workflow runs of one incident; past it something is wrong with Evenkeel itself, and a person must look."""
    failed_run_backoff_seconds: int = Field(default=60, ge=0, le=86_400)
    """Pause before a run that failed through a fault of our own is followed by another; doubles each time."""


class SourcePolicy(Section):
    """How long each kind of source may stay silent before its facts are shown as stale. A sweep runs each minute."""

    kubernetes_list_seconds: Seconds = 180
    """The nodes, pods and Jobs of one cluster, listed completely."""
    kubernetes_watch_seconds: Seconds = 180
    kueue_seconds: Seconds = 600
    hyperpod_seconds: Seconds = 300
    event_queue_seconds: Seconds = 600
    """Events that wait longer than this without any being handled."""
    scheduling_cycle_seconds: Seconds = 300
    waits_seconds: Seconds = 300
    sweep_seconds: Seconds = 600
    """One step of the sweeper."""

    def threshold_seconds(self, kind: str) -> int:
        """Return the threshold of a kind of source, such as `kubernetes-list`."""
        return int(getattr(self, f"{kind.replace('-', '_')}_seconds"))


class ServingWorkload(Section):
    """A Deployment that serves: its replicas without a node are demand like a waiting job."""

    cluster: Word
    """Kubernetes cluster."""
    namespace: Word
    name: Word
    priority_class: Word = ""
    """Of the fleet's; what it is worth beside jobs."""
    priority: int = Field(default=1_000_000, ge=-2_147_483_648, le=2_000_001_000)
    """Where there is no such class."""
    most_replicas: int = Field(default=100, ge=1, le=100_000)
    """More than so many get no room made, and nothing rented."""
    rents_from: tuple[Word, ...] = ()
    """Names of `burst.pools` that are this Deployment's alone; empty = nothing is rented for it."""
    team: Word = "default"
    """Whose cap holds for what is rented, and whose bill it is on."""
    spike_seconds: int = Field(default=3600, ge=60, le=LONGEST_SECONDS)
    """How long a rented node is expected to be wanted: what its rent is weighed with."""
    patience_seconds: Seconds = 30
    """A replica that has found no node for less than this is not rented for: it may be about to."""
    rented_seconds: int | None = Field(default=None, ge=60, le=LONGEST_SECONDS)
    """How long a rented node may be kept though replicas stand on it; None = as long as they do."""

    @property
    def label(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class ReservedPool(Reservation):
    """A pool whose machines are held until some time only: on a training plan, or in a capacity block."""

    model_config = ConfigDict(extra="forbid")

    cluster: Word
    """Kubernetes cluster."""
    pool: Word

    @property
    def stretch(self) -> Reservation:
        """The time alone."""
        return Reservation(starts_at=self.starts_at, ends_at=self.ends_at, closing_seconds=self.closing_seconds)


class SchedulingPolicy(Section):
    """Admission. First come, first served on free nodes."""

    spare_nodes: dict[Word, Count] = {}
    """Free nodes per pool that only a recovery may take."""
    efa_interfaces: dict[Word, Count] = {}
    """EFA interfaces of each node, by pool, where they differ from the instance type's; 0 = jobs there use none."""
    heads_per_pass: int = Field(default=50, ge=1, le=1000)
    """Pending jobs that one pass weighs, in queue order."""
    most_open_jobs_per_principal: int = Field(default=500, ge=1, le=100_000)
    """Jobs of one submitter that have not ended. A submission beyond it is refused."""
    most_open_jobs_per_team: int = Field(default=2000, ge=1, le=100_000)
    """The same for one team; where no teams are set up, for all jobs together."""
    elastic: ElasticTerms = ElasticTerms()
    """When jobs that can run at several sizes grow, and how long they wait for a spare."""
    serving: tuple[ServingWorkload, ...] = ()
    """Deployments for which elastic jobs make room."""
    reservations: tuple[ReservedPool, ...] = ()
    """Pools whose machines go at a time that is known: jobs leave them before."""

    def reservation_of(self, cluster: str, pool: str) -> Reservation | None:
        """Return for how long a pool's machines are held; None where nothing says that they go."""
        return next((each.stretch for each in self.reservations if (each.cluster, each.pool) == (cluster, pool)), None)

    @model_validator(mode="after")
    def _pools_end_once(self) -> Self:
        places = [(each.cluster, each.pool) for each in self.reservations]
        if len({*places}) < len(places):
            raise ValueError("two reservations of the same pool")
        return self


_TAINT = r"^[!-9;<>-~]+=[!-9;<>-~]*:(NoSchedule|NoExecute)$"


class RentedPool(Pool):
    """A Karpenter NodePool that Evenkeel may rent nodes from. It is Evenkeel's alone: its limit is what is rented."""

    model_config = ConfigDict(extra="forbid")

    name: Word
    taints: tuple[Annotated[str, Field(max_length=400, pattern=_TAINT)], ...] = ()
    """`key=value:Effect` of all its nodes: who does not tolerate them is not sent there."""
    labels: dict[Word, Word] = {}
    """Labels of all its nodes, besides those that Karpenter and Kubernetes set: what a `nodeSelector` may ask for."""

    @model_validator(mode="after")
    def _is_rented_and_bounded(self) -> Self:
        if not self.market.is_rented:
            raise ValueError(f"{self.name}: its market is spot or on-demand")
        if not self.most_nodes or not self.accelerators_per_node:
            raise ValueError(f"{self.name}: a pool without a limit is never opened, nor one without accelerators")
        # The slowest of many launches is told from both: from stranger ones there would come no time at all.
        if self.launch.p90_seconds > min(86_400, 100 * self.launch.p50_seconds or 86_400):
            raise ValueError(f"{self.name}: nine of ten launches take a day at most, and 100 times what five of ten do")
        return self


class BurstPolicy(Section):
    """What may be rented, for whom, and how much. As shipped, nothing is."""

    pools: tuple[RentedPool, ...] = ()
    """In the order in which equals are tried."""
    fleet_cap_micros_per_hour: Micros = 0
    """Millionths of a dollar an hour that all rentals together may cost."""
    team_caps_micros_per_hour: dict[Word, Micros] = {}
    """The same by team."""
    other_team_cap_micros_per_hour: Micros = 0
    """For every team not listed."""
    delay_micros_per_hour: dict[PriorityClass, Micros] = {}
    """What an hour's delay is worth, in millionths of a dollar, by priority class."""
    other_delay_micros_per_hour: Micros = 0
    """For every class not listed; at 0 nothing is rented for it."""
    expected_run_seconds: dict[PriorityClass, Deadline] = {}
    """How long a job runs, by priority class."""
    other_expected_run_seconds: Deadline = 14_400
    ready_seconds: Deadline = 900
    """How long one pool may take to bring all nodes; then the next is asked."""
    quiet_seconds: Seconds = 300
    """How long nodes without work are kept for a job of theirs that waits again."""
    loan_seconds: Deadline = 86_400
    """How long nodes that stand in for failed ones may be kept, if those are not back before."""
    most_offers: int = Field(default=4, ge=1, le=100)
    """Pools that are asked for one rental."""
    rentals_per_pass: Tries = 4
    """New rentals that one pass may begin."""
    spot_checkpoint_share: float = Field(default=0.1, gt=0, le=100)
    """Spot only where a checkpoint comes at least this often, as a share of the mean time between interruptions."""
    capacity_pod_image: Image = "registry.k8s.io/pause:3.10"
    """Of the pods that make Karpenter launch nodes, and hold them until the job's own are there."""
    capacity_pod_namespace: Word = "evenkeel-jobs"
    """Where those pods run for a Deployment: Evenkeel may create none in its own namespace. A job's run beside it."""

    def delay_of(self, priority_class: str) -> int:
        """Return what an hour's delay of a class is worth, in micro-dollars."""
        return self.delay_micros_per_hour.get(priority_class, self.other_delay_micros_per_hour)

    def usd_of_delay(self, priority_class: str) -> float:
        """Return what an hour's delay of a class is worth, in dollars."""
        return self.delay_of(priority_class) / money.MICROS

    def run_seconds_of(self, priority_class: str) -> int:
        """Return how long a job of a class is expected to run."""
        return self.expected_run_seconds.get(priority_class, self.other_expected_run_seconds)

    def team_cap_of(self, team: str) -> int:
        """Return what a team's rentals may cost, in micro-dollars an hour."""
        return self.team_caps_micros_per_hour.get(team, self.other_team_cap_micros_per_hour)

    @model_validator(mode="after")
    def _pools_have_one_name_each(self) -> Self:
        names = [pool.name for pool in self.pools]
        if len({*names}) < len(names):
            raise ValueError("two pools to rent from have the same name")
        return self


class Policy(Section):
    """The whole policy, one version of it."""

    name: Line = "production"
    modes: tuple[ModeRule, ...] = ()
    """Where automation may go less far than the stack allows."""
    repair: RepairPolicy = RepairPolicy()
    jobs: JobPolicy = JobPolicy()
    economy: EconomyPolicy = EconomyPolicy()
    watch: WatchPolicy = WatchPolicy()
    sources: SourcePolicy = SourcePolicy()
    scheduling: SchedulingPolicy = SchedulingPolicy()
    burst: BurstPolicy = BurstPolicy()
    job_types: JobTypes = JobTypes()
    """What submissions leave out, by the kind of job."""
    storage: dict[Word, dict[Word, Line]] = {}
    """Cluster → claim → what lies behind it there, a file system's id for instance: the same claim of two clusters is
    the same storage only where the same stands behind it."""
    faults: dict[Word, FaultOverride] = {}
    """What this site has otherwise than the catalogue, by fault key."""

    @property
    def pools_for_jobs(self) -> tuple[RentedPool, ...]:
        """The pools that jobs may be rented for from: none that is a Deployment's."""
        taken = {name for each in self.scheduling.serving for name in each.rents_from}
        return tuple(pool for pool in self.burst.pools if pool.name not in taken)

    def pools_for(self, serving: ServingWorkload) -> tuple[RentedPool, ...]:
        """Return the pools that are a Deployment's, in the order in which equals are tried."""
        return tuple(pool for pool in self.burst.pools if pool.name in serving.rents_from)

    @model_validator(mode="after")
    def _serving_has_pools_of_its_own(self) -> Self:
        by_name = {pool.name: pool for pool in self.burst.pools}
        owners: dict[str, str] = {}
        for each in self.scheduling.serving:
            for name in each.rents_from:
                pool = by_name.get(name)
                if pool is None or pool.cluster != each.cluster:
                    raise ValueError(f"serving {each.label}: there is no pool {name} to rent from in {each.cluster}")
                if not pool.taints:
                    raise ValueError(f"serving {each.label}: {name} needs a taint, or anybody's pods may start there")
                if owners.setdefault(name, each.label) != each.label:
                    raise ValueError(f"{name} is rented from for {owners[name]} and for {each.label}")
        return self

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        """Hold the numbers of parts that are not the policy's alone, and have no upper bound of their own."""
        for where, part in (
            ("scheduling.elastic", self.scheduling.elastic),
            ("scheduling.reservations", self.scheduling.reservations),
            ("burst.pools", self.burst.pools),
            ("jobTypes", self.job_types),
            ("faults", self.faults),
        ):
            for field, most in _beyond(where, part):
                raise ValueError(f"{field}: must lie between 0 and {most}")
        return self

    @model_validator(mode="after")
    def _knows_its_faults(self) -> Self:
        try:
            shipped().overridden(self.faults)
        except CatalogueError as error:
            raise ValueError(f"faults: {error}") from error
        known = {fault.fault_class for fault in self.catalogue.values()}
        for rule in self.modes:
            if rule.fault_class and rule.fault_class not in known:
                raise ValueError(
                    f"modes: there is no fault class {rule.fault_class}; leave faultClass out for all, or name one of "
                    f"{', '.join(sorted(known))}"
                )
        return self

    @functools.cached_property
    def catalogue(self) -> Catalogue:
        """The fault catalogue as this site has it."""
        return shipped().overridden(self.faults)

    @functools.cached_property
    def priority_classes(self) -> frozenset[str]:
        """The priority classes that a job may name where no teams are set up: those that any part of this names."""
        burst = self.burst
        return frozenset((*self.jobs.priority_classes, *burst.delay_micros_per_hour, *burst.expected_run_seconds))

    @functools.cached_property
    def hash(self) -> str:
        """The first 12 hex digits of the SHA-256 of the canonical JSON form: what a decision record names."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


_MOST = {"Seconds": LONGEST_SECONDS, "Hours": LONGEST_SECONDS // 3600}
"""By the unit that ends a field's name."""


def _beyond(where: str, part: object) -> Iterator[tuple[str, int]]:
    """Yield the numbers that are below 0 or too large, each with the most that it may be."""
    match part:
        case Value():
            fields = type(part).model_fields
            for name, field in fields.items():
                yield from _beyond(f"{where}.{field.alias or name}", getattr(part, name))
        case Mapping():
            for name, each in part.items():
                yield from _beyond(f"{where}.{name}", each)
        case tuple():
            for index, each in enumerate(part):
                yield from _beyond(f"{where}[{index}]", each)
        case int() | float():
            most = next((most for unit, most in _MOST.items() if where.endswith(unit)), LARGEST)
            if not 0 <= part <= most:
                yield where, most


class PolicyError(ValueError):
    """A policy, or a site's changes to one, cannot be used. The message names each field that is wrong."""


class PolicyChange(Value):
    """A site's own values, as they were given last."""

    number: int
    """Counts the changes; the first is 1."""
    changes: dict[str, Any]
    """All that the site has otherwise than the shipped policy, in the form of its JSON."""
    before: dict[str, Any] | None = None
    """The same, before this change."""
    by: str
    reason: str
    at: Instant


class Standing(NamedTuple):
    """What a site's last change has come to."""

    policy: Policy
    """The one in force."""
    number: int
    """Of the change in force; 0 = the shipped policy."""
    refused: str
    """Why the last change is not in it; empty where it is."""


def standing(base: Policy, change: PolicyChange | None) -> Standing:
    """Return the policy in force, which change that is, and why it is not the last; the reason is empty where it is.

    A change is judged when it is given, so one that cannot be used was made for another release: then the one before
    it counts, and at last the shipped policy.
    """
    if change is None:
        return Standing(base, 0, "")
    problem = ""
    for number, changes in ((change.number, change.changes), (change.number - 1, change.before or {})):
        try:
            return Standing(changed(base, changes), number, problem)
        except PolicyError as error:
            problem = problem or f"change {change.number} by {change.by}: {error}"
    return Standing(base, 0, problem)


def in_force(base: Policy, change: PolicyChange | None) -> tuple[Policy, str]:
    """Return the policy in force, and why the last change is not in it; empty where it is."""
    found = standing(base, change)
    return found.policy, found.refused


def changed(base: Policy, changes: Mapping[str, Any]) -> Policy:
    """Return a policy with a site's own values in place of some of its own. What they do not name stays.

    Args:
        base: The policy that the site starts from.
        changes: In the form of the policy's JSON, as far as they go.

    Raises:
        PolicyError: a field is not known, or its value makes no sense.
    """
    wrong = [f"{_where(place)}{NOT_A_NUMBER}" for place in booleans_for_numbers(Policy, changes)]
    if wrong:
        raise PolicyError("; ".join(wrong))
    try:
        return Policy.model_validate(_laid_over(base.to_json(), changes))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        raise PolicyError(
            "; ".join(f"{_where(fault['loc'])}{_said(fault)}" for fault in faults[:_MOST_TOLD])
        ) from error


_MOST_TOLD = 20
"""Faults of one policy that a message names."""


def _laid_over(base: Any, changes: Any) -> Any:
    if not isinstance(base, Mapping) or not isinstance(changes, Mapping):
        return changes
    return {**base, **{name: _laid_over(base.get(name), value) for name, value in changes.items()}}


def _where(parts: tuple[int | str, ...]) -> str:
    return f"{'.'.join(map(str, parts))}: " if parts else ""


def _said(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "extra_forbidden":
        return "there is no such field"
    return str(fault["msg"]).removeprefix("Value error, ")
