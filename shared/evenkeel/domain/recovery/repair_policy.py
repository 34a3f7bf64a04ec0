"""Policy sections for guardrails and repairs."""

from typing import Self

from pydantic import Field, model_validator

from evenkeel.domain.policy_section import LONGEST_SECONDS, Deadline, Scale, Seconds, Section, Tries
from evenkeel.domain.values import Image, ProgramText, Word


class GuardrailPolicy(Section):
    """Limits on harmful actions.

    If a pool has a limit as a count and as a share, the lower limit applies. A limit is at least 1, so a pool of three
    nodes can still repair a node.
    """

    fleet_repairs: int = Field(default=10, ge=1, le=1000)
    """Nodes in repair at a time. All of them share one row of the ledger, which limits this value."""
    pool_repairs: int | None = Field(default=4, ge=1, le=1_000_000)
    """Nodes of one pool in repair at a time, as a count; null = no limit by count."""
    pool_repair_share: float | None = Field(default=0.1, gt=0, le=1)
    """Share of the pool's nodes in repair at a time; null = no limit by share."""
    repairs_per_hour: int = Field(default=20, ge=1, le=1000)
    """Repair requests for the whole fleet."""
    fleet_cordons: int = Field(default=60, ge=1, le=1000)
    """Nodes that Evenkeel keeps cordoned at a time. All of them share one row of the ledger."""
    pool_cordons: int | None = Field(default=20, ge=1, le=1_000_000)
    """Nodes of one pool that Evenkeel keeps cordoned at a time, as a count; null = no limit by count."""
    pool_cordon_share: float | None = Field(default=0.3, gt=0, le=1)
    """Share of the pool's nodes that Evenkeel keeps cordoned at a time; null = no limit by share."""
    leaving_seconds: Seconds = 900
    """If AWS ends a node within this time, the cordon limits do not apply to it."""
    shared_cause_count: int = Field(default=3, ge=2, le=1_000_000)
    """If this many nodes of one zone, UltraServer or image fail within the window, Evenkeel assumes a shared cause."""
    shared_cause_share: float = Field(default=0.05, gt=0, le=1)
    """A shared cause also needs at least this share of its nodes, because in a large zone a few faults are chance."""
    shared_cause_window_seconds: Deadline = 900
    """The window within which faults may have a shared cause."""
    stale_after_seconds: Seconds = 1800
    """If a node looks healthy and its evidence is older than this, Evenkeel validates it and does not repair it."""

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        for act, bounds in (
            ("repair", (self.pool_repairs, self.pool_repair_share)),
            ("cordon", (self.pool_cordons, self.pool_cordon_share)),
        ):
            if bounds == (None, None):
                raise ValueError(f"the {act}s of a pool have no limit: give a count, a share or both")
        return self


class RepairPolicy(Section):
    """Limits and deadlines of the node branch."""

    reboot_deadline_seconds: Deadline = 900
    """Time for a node to return after a reboot. After it, the next rung is due."""
    replace_deadline_seconds: Deadline = 1800
    """Time for a replacement. The published p90 of a HyperPod replacement is about 16 minutes."""
    takeover_seconds: Seconds = 600
    """With NodeRecovery=Automatic: if HyperPod does nothing for this long, Evenkeel takes over the repair."""
    owner_deadline_seconds: Seconds = 5400
    """With NodeRecovery=Automatic: if HyperPod's last attempt is this old, Evenkeel takes over the repair."""
    karpenter_repairs: bool = False
    """Whether Karpenter's own node repair is on. If so, Evenkeel waits for it; if not, Evenkeel drains the node."""
    karpenter_deadline_seconds: Deadline = 2700
    """Time for Karpenter's own repair, which starts after 10 or 30 minutes, depending on the condition."""
    controller_deadline_seconds: Deadline = 3600
    """Time for the repair by another controller, such as NVSentinel. After it, Evenkeel pages a person."""
    max_attempts: Tries = 3
    """Repair requests per incident, all rungs together."""
    max_attempts_a_day: Tries = 6
    """Repair requests per node slot within a day, over all incidents and nodes of the slot."""
    leave_seconds: Seconds = 900
    """If jobs may finish on a node that AWS ends, they stop this long before its end."""
    repair_possible_deadline_seconds: Deadline = 86_400
    """How long a repair waits for jobs or for the provider's own change before Evenkeel decides again."""
    flap_window_hours: int = Field(default=24, ge=1, le=8760)
    """Window over which returns to service are counted."""
    flap_margin_factor: int = Field(default=4, ge=1, le=10)
    """Each return within the window multiplies the margin of the next validation by this factor."""
    lemon_returns: Tries = 3
    """A node with this many returns within the window is a lemon: Evenkeel replaces it and does not reboot it again."""
    reconcile_after_seconds: Seconds = 600
    """A request whose reply was lost is repeated once, if it shows no effect for this long."""
    retry_seconds: Deadline = 30
    """Pause before Evenkeel decides again after a refused or throttled request."""
    settle_scale: Scale = 1.0
    """Factor on the catalogue's settle seconds."""
    ends_unmanaged_pods: bool = False
    """Whether pods outside Evenkeel that remain after the drain end with the node, even if its fault could wait.
    If not, Evenkeel asks a person."""
    unmanaged_drain_seconds: Seconds = 300
    """Drain time for pods outside Evenkeel after a fault without a drain."""
    drain_scale: Scale = 1.0
    """Factor on the catalogue's drain seconds."""
    validation_deadline_seconds: Deadline = 600
    """Time for a node to pass its validation. After it, the next rung is due."""
    deep_checks_after: tuple[Word, ...] = ()
    """Fault classes after which HyperPod's deep health check validates the node, if the fault requires `deep`. The
    check takes about two hours per node, and HyperPod itself repairs a node that fails it."""
    deep_check_min_seconds: Seconds = 300
    """Ignore the result label of a deep check that is younger than this: it may belong to an earlier check."""
    deep_check_deadline_seconds: Deadline = 14_400
    """Time for a deep health check."""
    test_job_image: Image = ""
    """Image of the test job that validates a node; empty = no test job. The job gets all accelerators of the node."""
    test_job_command: tuple[ProgramText, ...] = ()
    """Command of the test job; exit code 0 means success. Empty = the default command of the image."""
    test_jobs_after: tuple[Word, ...] = ("hardware", "mixed", "network", "software")
    """Fault classes after which a test job validates the node, if no deep check does."""
    test_job_deadline_seconds: Deadline = 900
    """Time for the test job."""
    return_margin_seconds: Seconds = 10
    """A node must have been Ready this long before it is validated."""
    approval_deadline_seconds: Deadline = 3600
    """How long mode `recommend` waits for an approval."""
    guardrails: GuardrailPolicy = GuardrailPolicy()
    """Limits on harmful actions."""

    @model_validator(mode="after")
    def _margin_ends(self) -> Self:
        longest_seconds = self.return_margin_seconds * self.flap_margin_factor**self.lemon_returns
        if longest_seconds > LONGEST_SECONDS:
            raise ValueError(
                "returnMarginSeconds x flapMarginFactor ** lemonReturns must be at most 31,536,000 seconds (a year)"
            )
        return self
