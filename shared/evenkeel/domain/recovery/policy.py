"""Sections of the policy for guardrails and repairs."""

from typing import Self

from pydantic import Field, model_validator

from evenkeel.domain.policy_base import LONGEST_SECONDS, Deadline, Scale, Seconds, Section, Tries
from evenkeel.domain.values import Image, ProgramText, Word


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
    """Repair requests per node slot within a day, over all incidents and nodes of the slot."""
    leave_seconds: Seconds = 900
    """So long before a machine goes by itself the work on it is stopped, where it may run on until then."""
    node_free_deadline_seconds: Deadline = 86_400
    """How long anything may be in the way of a repair before it is weighed anew."""
    flap_window_hours: int = Field(default=24, ge=1, le=8760)
    """Window over which returns to service are counted."""
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
    ends_unmanaged_pods: bool = False
    """Whether pods that are not ours, and are still there when the drain is over, end with the machine although its
    fault could wait; if not, a person is asked."""
    unmanaged_drain_seconds: Seconds = 300
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
    """Command of the test job; exit code 0 means success. Empty = what the image runs by itself."""
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
