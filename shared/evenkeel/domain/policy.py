"""The policy: every number and switch that a decision may depend on. The defaults are the production values."""

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

from pydantic import ValidationError, model_validator

from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.capacity_policy import InstanceTypeName, SiteInstanceType
from evenkeel.domain.capacity.instance_types import InstanceTypes, shipped_instance_types
from evenkeel.domain.capacity.training_plans import PlanEnds, with_training_plan_ends
from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.external.adoption_policy import AdoptionPolicy, ServingWorkload
from evenkeel.domain.health.faults import CatalogueError, FaultCatalogue, FaultOverride, default_catalogue
from evenkeel.domain.health.health_policy import SourcePolicy, WatchPolicy
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.jobs.job_types import JobTypes
from evenkeel.domain.policy_section import LARGEST, LONGEST_SECONDS, ModeRule, Section
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.renting.burst_policy import BurstPolicy, RentedPool
from evenkeel.domain.values import NOT_A_NUMBER, Instant, Line, Value, Word, booleans_for_numbers
from evenkeel.domain.wrong_fields import requirement


class Policy(Section):
    """A version of the whole policy."""

    name: Line = "production"
    """A name of your choice; records of decisions show it beside the hash."""
    modes: tuple[ModeRule, ...] = ()
    """Modes for some faults or pools that are more cautious than the stack's mode."""
    repair: RepairPolicy = RepairPolicy()
    """How nodes are repaired, and the guardrails."""
    jobs: JobPolicy = JobPolicy()
    """How attempts start, stop and resume, and the limits of pods."""
    economy: EconomyPolicy = EconomyPolicy()
    """Prices and expected durations."""
    instance_types: dict[InstanceTypeName, SiteInstanceType] = {}
    """Instance types that the shipped catalogue does not have yet, by name, with or without `ml.`. A type stated
    here replaces the catalogue's entry."""
    watch: WatchPolicy = WatchPolicy()
    """How nodes and incidents are watched."""
    sources: SourcePolicy = SourcePolicy()
    """How old facts may be before they are shown as stale."""
    scheduling: SchedulingPolicy = SchedulingPolicy()
    """Spares, limits of queues, elastic jobs, serving Deployments, reservations."""
    burst: BurstPolicy = BurstPolicy()
    """The nodes that Evenkeel may rent, and the maximum cost."""
    adoption: AdoptionPolicy = AdoptionPolicy()
    """The recovery of jobs that users submitted without Evenkeel."""
    job_types: JobTypes = JobTypes()
    """Defaults of submissions, by the type of job."""
    storage: dict[Word, dict[Word, Line]] = {}
    """Storage behind each claim, by cluster and claim: for example the id of a file system. Claims of two clusters are
    the same storage only if these values are equal."""
    faults: dict[Word, FaultOverride] = {}
    """The site's changes to the fault catalogue, by fault key."""

    @property
    def pools_for_jobs(self) -> tuple[RentedPool, ...]:
        """The pools in which Evenkeel may rent nodes for jobs: all pools that no serving Deployment uses."""
        serving_pools = {name for workload in self.scheduling.serving for name in workload.rents_from}
        return tuple(pool for pool in self.burst.pools if pool.name not in serving_pools)

    def pools_for(self, serving: ServingWorkload) -> tuple[RentedPool, ...]:
        """Return the pools of a serving Deployment. Pools of equal cost are tried in this order."""
        return tuple(pool for pool in self.burst.pools if pool.name in serving.rents_from)

    @model_validator(mode="after")
    def _serving_has_pools_of_its_own(self) -> Self:
        by_name = {pool.name: pool for pool in self.burst.pools}
        owners: dict[str, str] = {}
        for workload in self.scheduling.serving:
            for name in workload.rents_from:
                pool = by_name.get(name)
                if pool is None or pool.cluster != workload.cluster:
                    raise ValueError(
                        f"serving {workload.label}: there is no pool {name} to rent from in {workload.cluster}"
                    )
                if not pool.taints:
                    raise ValueError(f"serving {workload.label}: {name} needs a taint, or other pods may start there")
                if owners.setdefault(name, workload.label) != workload.label:
                    raise ValueError(f"{name} is a pool of {owners[name]} and of {workload.label}: name it only once")
        return self

    @model_validator(mode="after")
    def _knows_its_instance_types(self) -> Self:
        if self.instance_types:
            # Prices are asked of the section alone, so it must know these types, too.
            self.__dict__["economy"] = self.economy.with_types(self.hardware)
        for problem in self.economy.unknown_types():
            raise ValueError(f"economy.{problem}")
        return self

    @functools.cached_property
    def hardware(self) -> InstanceTypes:
        """The catalogue of instance types with the site's own."""
        return shipped_instance_types().with_types(
            {name: listed_type.to_instance_type for name, listed_type in self.instance_types.items()}
        )

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        """Check the numbers in shared types, which have no upper limit of their own."""
        for where, section in (
            ("scheduling.elastic", self.scheduling.elastic),
            ("scheduling.reservations", self.scheduling.reservations),
            ("burst.pools", self.burst.pools),
            ("jobTypes", self.job_types),
            ("faults", self.faults),
        ):
            for field, maximum in _values_beyond_limits(where, section):
                raise ValueError(f"{field}: must lie between 0 and {maximum}")
        return self

    @model_validator(mode="after")
    def _knows_its_faults(self) -> Self:
        named_classes = [rule.fault_class for rule in self.modes if rule.fault_class]
        if not self.faults and not named_classes:
            return self  # a cold start need not read the whole catalogue
        try:
            catalogue = default_catalogue().with_overrides(self.faults)
        except CatalogueError as error:
            raise ValueError(f"faults: {error}") from error
        fault_classes = {fault.fault_class for fault in catalogue.values()}
        for fault_class in named_classes:
            if fault_class not in fault_classes:
                raise ValueError(
                    f"modes: there is no fault class {fault_class}; omit faultClass for all, or use one of "
                    f"{', '.join(sorted(fault_classes))}"
                )
        return self

    @functools.cached_property
    def catalogue(self) -> FaultCatalogue:
        """The fault catalogue with the site's changes."""
        return default_catalogue().with_overrides(self.faults)

    @functools.cached_property
    def priority_classes(self) -> frozenset[str]:
        """The priority classes that a job may use if no teams exist: all classes that the policy names."""
        burst = self.burst
        return frozenset((*self.jobs.priority_classes, *burst.delay_micros_per_hour, *burst.expected_run_seconds))

    @functools.cached_property
    def hash(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical JSON form. Decision records name the policy by it."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def with_training_plan_ends(self, ends: PlanEnds) -> Self:
        """Return the policy that also has the reservations of training plans, as SageMaker states them.

        The hash stays the hash of the policy that was set. The facts of a decision hold the times that it used.
        """
        reservations = with_training_plan_ends(self.scheduling.reservations, ends)
        extended_policy = self.replace_unchecked(
            scheduling=self.scheduling.replace_unchecked(reservations=reservations)
        )
        extended_policy.__dict__["hash"] = self.hash
        return extended_policy


_MOST = {"Seconds": LONGEST_SECONDS, "Hours": LONGEST_SECONDS // 3600}
"""Upper limits, by the unit at the end of a field's name."""


def _values_beyond_limits(where: str, section: object) -> Iterator[tuple[str, int]]:
    """Yield the path of each number that is below 0 or too large, with its upper limit."""
    match section:
        case Value():
            fields = type(section).model_fields
            for name, field in fields.items():
                yield from _values_beyond_limits(f"{where}.{field.alias or name}", getattr(section, name))
        case Mapping():
            for name, value in section.items():
                yield from _values_beyond_limits(f"{where}.{name}", value)
        case tuple():
            for index, value in enumerate(section):
                yield from _values_beyond_limits(f"{where}[{index}]", value)
        case int() | float():
            maximum = next((maximum for unit, maximum in _MOST.items() if where.endswith(unit)), LARGEST)
            if not 0 <= section <= maximum:
                yield where, maximum


class PolicyError(ValueError):
    """A policy, or a site's changes to it, are not valid. The message names each wrong field."""


class PolicyChange(Value):
    """The last change of a site's own values."""

    number: int
    """Number of the change; the first is 1."""
    changes: dict[str, Any]
    """All values that differ from the shipped policy, in the form of the policy's JSON."""
    before: dict[str, Any] | None = None
    """All values that differed from the shipped policy before this change."""
    by: str
    reason: str
    at: Instant


class PolicyInForce(NamedTuple):
    """The policy in force after a site's last change."""

    policy: Policy | None
    """The policy in force; None if no policy of the site can be used."""
    number: int | None
    """Number of the change in force; 0 = the shipped policy; None = no policy is in force."""
    refused: str
    """Why the last change is not in force; empty if it is."""


def resolve_policy(base: Policy, change: PolicyChange | None) -> PolicyInForce:
    """Return the policy in force, the number of its change, and why it is not the last change.

    Each change is validated when it is made. So a change that is not valid now was made for another release. Then the
    change before it is in force. No policy is in force if that change is not valid, or had no values. The shipped
    policy never replaces the site's policy, because it has none of the site's restrictions.
    """
    if change is None:
        return PolicyInForce(base, 0, "")
    try:
        return PolicyInForce(changed(base, change.changes), change.number, "")
    except PolicyError as error:
        problem = f"change {change.number} by {change.by}: {error}"
    if change.before:
        with contextlib.suppress(PolicyError):
            return PolicyInForce(changed(base, change.before), change.number - 1, problem)
    return PolicyInForce(None, None, problem)


def changed(base: Policy, changes: Mapping[str, Any]) -> Policy:
    """Return a policy with a site's changes. All other values stay as they are.

    Args:
        base: The policy that the site starts from.
        changes: The changed values, in the form of the policy's JSON.

    Raises:
        PolicyError: A field is unknown, or its value is not valid.
    """
    wrong = [f"{_field_prefix(path)}{NOT_A_NUMBER}" for path in booleans_for_numbers(Policy, changes)]
    if wrong:
        raise PolicyError("; ".join(wrong))
    try:
        return Policy.model_validate(_merge(base.to_json(), changes))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        raise PolicyError(
            "; ".join(
                f"{_field_prefix(fault['loc'])}{requirement(fault, Policy)}" for fault in faults[:_MAX_ERRORS_SHOWN]
            )
        ) from error


_MAX_ERRORS_SHOWN = 20
"""Maximum errors that a message names."""


def _merge(base: Any, changes: Any) -> Any:
    if not isinstance(base, Mapping) or not isinstance(changes, Mapping):
        return changes
    return {**base, **{name: _merge(base.get(name), value) for name, value in changes.items()}}


def _field_prefix(parts: tuple[int | str, ...]) -> str:
    return f"{'.'.join(map(str, parts))}: " if parts else ""
