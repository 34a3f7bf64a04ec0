"""A job type sets the fields that a submission omits; the other fields stay."""

from typing import Any

import pytest

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.build_request import build_request
from evenkeel.domain.admission.decide_job import AdmissionAction
from evenkeel.domain.admission.pool_fits import SharedFits, pool_fits
from evenkeel.domain.admission.queue_without_teams import decide_in_queue_order
from evenkeel.domain.capacity.compatibility import Requirements
from evenkeel.domain.capacity.pod_shares import NodeShares
from evenkeel.domain.capacity.pool_choices import PoolChoice, Toleration
from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.jobs.job_types import JobTypes, check_type, with_defaults
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.policy import Policy, PolicyError, changed
from evenkeel.domain.resources import NONE
from tests.unit.scheduling.builders import NOW, a_job, a_node_capacity, a_request, a_spec

DEDICATED = {"key": "dedicated", "operator": "Equal", "value": "hyperpod", "effect": "NoSchedule"}
TYPES = JobTypes.model_validate(
    {
        "default": "development",
        "types": {
            "production": {
                "priorityClass": "critical",
                "image": "registry/train:1",
                "command": ["python"],
                "args": ["train.py"],
                "env": {"NCCL_DEBUG": "INFO", "SEED": "1"},
                "acceleratorsPerNode": 8,
                "nodes": 2,
                "maxRestarts": 3,
                "pools": ["hyperpod", "demand"],
                "tolerations": [DEDICATED],
            },
            "development": {"priorityClass": "high", "acceleratorsPerNode": 4, "pools": ["demand", "hyperpod"]},
        },
        "pools": {
            "hyperpod": {"labels": {"node-type": "hyperpod"}, "market": "committed"},
            "demand": {"labels": {"node-type": "eks"}, "market": "on-demand"},
        },
    }
)


def error_messages(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "a", "image": "registry/own:1", "command": ("own",)} | fields)


def test_job_type_sets_omitted_fields() -> None:
    spec = with_defaults(JobSpec(name="a", job_type="production"), TYPES)
    bare = with_defaults(error_messages(job_type="production", image="x:1", command=("y",)), TYPES)

    assert (spec.image, spec.command, spec.args) == ("registry/train:1", ("python",), ("train.py",))
    assert (spec.priority_class, spec.nodes, spec.accelerators_per_node, spec.max_restarts) == ("critical", 2, 8, 3)
    assert (bare.image, bare.command, bare.args) == ("x:1", ("y",), ())


def test_submission_overrides_the_type_and_environments_merge() -> None:
    spec = with_defaults(
        error_messages(
            job_type="production", priority_class="low", nodes=1, accelerators_per_node=0, env={"SEED": "7"}
        ),
        TYPES,
    )

    assert (spec.priority_class, spec.nodes, spec.accelerators_per_node) == ("low", 1, 0)
    assert spec.env == {"NCCL_DEBUG": "INFO", "SEED": "7"}


def test_arguments_alone_use_the_command_of_the_type() -> None:
    spec = with_defaults(JobSpec(name="a", args=("b.py",), job_type="production"), TYPES)

    assert (spec.command, spec.args) == (("python",), ("b.py",))


def test_job_without_type_gets_the_default_type() -> None:
    spec = with_defaults(error_messages(), TYPES)

    assert (spec.job_type, spec.priority_class, spec.accelerators_per_node) == ("development", "high", 4)
    assert [choice.name for choice in spec.pools] == ["demand", "hyperpod"]
    assert spec.pools[0].market is Market.ON_DEMAND


def test_without_types_no_field_is_set() -> None:
    spec = error_messages()

    assert with_defaults(spec, JobTypes()) is spec


def test_unknown_type_is_reported_by_field() -> None:
    (wrong,) = check_type(error_messages(job_type="prodution"), TYPES)
    (none,) = check_type(error_messages(job_type="production"), JobTypes())

    assert (wrong.field, wrong.message) == (
        "jobType",
        "There is no job type prodution. Did you mean production?",
    )
    assert "The site's policy defines no job types." in none.message
    assert check_type(error_messages(), TYPES) == ()


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"default": "none"}, "jobTypes"),
        ({"types": {"a": {"prioritClass": "x"}}}, "jobTypes.types.a.prioritClass"),
        ({"types": {"a": {"pools": ["x", "x"]}}}, "jobTypes"),
        ({"types": {"a": {"nodes": 0}}}, "jobTypes.types.a.nodes"),
    ],
)
def test_invalid_job_types_of_a_policy_are_reported_by_field(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(PolicyError, match=where):
        changed(Policy(), {"jobTypes": changes})


# ---------------------------------------------------------------- pools and tolerations in admission

HYPERPOD = PoolChoice(name="hyperpod", labels={"node-type": "hyperpod"})
DEMAND = PoolChoice(name="demand", labels={"node-type": "eks"})
ROOMS = (
    a_node_capacity(1, pool="plan", labels={"node-type": "hyperpod"}),
    a_node_capacity(2, pool="burst", labels={"node-type": "eks"}),
    a_node_capacity(3, pool="burst", labels={"node-type": "eks"}),
    a_node_capacity(4, pool="other"),
)


def decide_request(request: AdmissionRequest, *capacities: Any) -> Any:
    return decide_in_queue_order(
        AdmissionInput(capacities=capacities or ROOMS, pending=(request,)), Policy().scheduling, NOW
    )[0]


def test_jobs_of_equal_shape_share_fits_of_labelled_pools() -> None:
    fits = SharedFits(ROOMS, Policy().scheduling)

    choices = ((DEMAND, HYPERPOD), (HYPERPOD,))
    requests = [a_request(nodes=count, pools=pools) for count in (1, 2, 3, 9) for pools in choices]

    shared = [fits.fits_of(request, ROOMS) for request in requests]

    assert shared == [pool_fits(request, ROOMS, Policy().scheduling) for request in requests]
    assert len({repr(pool_fits) for pool_fits in shared}) > 2


def test_preferred_pool_is_used_despite_a_tighter_one() -> None:
    first = decide_request(a_request(pools=(DEMAND, HYPERPOD)))
    second = decide_request(a_request(pools=(HYPERPOD, DEMAND)))

    assert (first.pool, second.pool) == ("burst", "plan")
    assert [(alternative.option, alternative.why_not) for alternative in second.alternatives] == [
        ("burst (ml.p5.48xlarge)", "The job prefers another pool.")
    ]


def test_job_uses_its_next_pool_when_the_first_is_full() -> None:
    capacities = (ROOMS[0].replace(free=NONE), *ROOMS[1:])

    assert decide_request(a_request(pools=(HYPERPOD, DEMAND)), *capacities).pool == "burst"
    decision = decide_request(a_request(pools=(HYPERPOD,)), *capacities)
    assert (decision.action, len(decision.facts.fits)) == (AdmissionAction.WAIT, 1)


def test_tainted_node_accepts_jobs_that_tolerate_all_taints() -> None:
    tainted = a_node_capacity(1, unschedulable_reason="tainted", taints=("dedicated=hyperpod:NoSchedule",))
    toleration = Toleration.model_validate(DEDICATED)

    assert decide_request(a_request(), tainted).action is AdmissionAction.WAIT
    assert decide_request(a_request(tolerations=(toleration,)), tainted).action is AdmissionAction.ADMIT
    other = tainted.replace(taints=("dedicated=hyperpod:NoSchedule", "spot=true:NoSchedule"))
    assert decide_request(a_request(tolerations=(toleration,)), other).action is AdmissionAction.WAIT


@pytest.mark.parametrize(
    ("toleration", "taint", "tolerated"),
    [
        ({"key": "spot", "value": "true"}, "spot=true:NoSchedule", True),
        ({"key": "spot", "value": "false"}, "spot=true:NoSchedule", False),
        ({"key": "spot", "operator": "Exists"}, "spot=true:NoExecute", True),
        ({"key": "spot", "operator": "Exists", "effect": "NoSchedule"}, "spot=true:NoExecute", False),
        ({"key": "a"}, "a=:NoSchedule", True),
    ],
)
def test_toleration_matches_taints_like_kubernetes(toleration: Any, taint: str, tolerated: bool) -> None:
    assert Toleration.model_validate(toleration).tolerates(taint) is tolerated


def test_nodes_without_required_properties_are_not_offered() -> None:
    small, large = (
        a_node_capacity(1, instance_type="ml.p4d.24xlarge"),
        a_node_capacity(2, instance_type="ml.p4de.24xlarge"),
    )
    unknown = a_node_capacity(3, instance_type="ml.x9.large")
    request = a_request(requires=Requirements(accelerator_memory_gib=80))

    fits = pool_fits(request, (small, large, unknown), Policy().scheduling)

    assert [fit.instance_type for fit in fits] == ["ml.p4de.24xlarge"]


def test_nodes_of_a_type_that_the_policy_describes_are_offered() -> None:
    new = {"vcpu": 256, "memoryGib": 4096, "gpus": 8, "model": "r300", "acceleratorMemoryMib": 100_000}
    policy = changed(Policy(), {"instanceTypes": {"x9.large": new}})
    nodes = (a_node_capacity(1, instance_type="ml.x9.large"),)

    def fitting_types(gib: int, policy: Policy) -> list[str]:
        job = a_job(spec=a_spec(requires=Requirements(accelerator_memory_gib=gib)))
        request = build_request(job, NodeShares(nodes, ()), policy, NOW)
        return [fit.instance_type for fit in pool_fits(request, nodes, policy.scheduling)]

    assert fitting_types(80, policy) == ["ml.x9.large"]
    assert fitting_types(120, policy) == fitting_types(80, Policy()) == []


def test_rented_nodes_need_no_labels_and_no_catalogue_entry() -> None:
    rented = a_node_capacity(1, instance_type="x9.large", reserved_for="job-1")
    request = a_request(pools=(HYPERPOD,), requires=Requirements(accelerator_memory_gib=80))

    assert [fit.preference_rank for fit in pool_fits(request, (rented,), Policy().scheduling)] == [0]
