"""HyperPod's quotas, and conversions between the three formats."""

import json
from typing import Any

import pytest

from evenkeel.domain.capacity.instance_types import shipped_instance_types
from evenkeel.domain.kueue.capacity import quotas_of
from evenkeel.domain.kueue.objects import Queue, Quota
from evenkeel.domain.queue_simulation import hyperpod_cluster_policy
from evenkeel.domain.queue_simulation.documents import DocumentError
from evenkeel.domain.queue_simulation.profiles import RULES, Profile
from evenkeel.domain.queue_simulation.quota_formats import Format, convert
from evenkeel.domain.queue_simulation.setup import QuotaDocuments

Json = dict[str, Any]
GIB = 2**30
GPU, CPU, MEMORY, EFA = "nvidia.com/gpu", "cpu", "memory", "vpc.amazonaws.com/efa"


def quota(*resources: Json, team: str = "research", weight: int | None = None, **sharing: Any) -> Json:
    """Return CreateComputeQuota's request."""
    target: Json = {"TeamName": team} | ({} if weight is None else {"FairShareWeight": weight})
    config: Json = {"ComputeQuotaResources": list(resources)}
    if sharing:
        config["ResourceSharingConfig"] = sharing
    return {"Name": team, "ClusterArn": "arn", "ComputeQuotaConfig": config, "ComputeQuotaTarget": target}


def declared_team(*documents: Json) -> QuotaDocuments:
    quota_documents = QuotaDocuments(Profile.HYPERPOD, RULES[Profile.KUEUE])
    for document in documents:
        quota_documents.add(document, "test")
    return quota_documents


def quota_resources(*resources: Json, **sharing: Any) -> dict[tuple[str, str], Quota]:
    (queue,) = declared_team(quota(*resources, **sharing)).everything()[0]
    return {key: quota for key, quota in quotas_of(queue.groups).items() if quota.nominal}


def nominal_quotas(*resources: Json) -> dict[str, int]:
    return {key[1]: quota.nominal for key, quota in quota_resources(*resources).items()}


# ---------------------------------------------------------------- amounts


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"InstanceType": "ml.g5.12xlarge", "Count": 1}, {CPU: 48000, MEMORY: 192 * GIB, GPU: 4, EFA: 1}),
        ({"InstanceType": "ml.p5.48xlarge", "Accelerators": 2}, {CPU: 48000, MEMORY: 512 * GIB, GPU: 2, EFA: 32}),
        ({"InstanceType": "ml.g5.2xlarge", "Accelerators": 2}, {CPU: 16000, MEMORY: 64 * GIB, GPU: 2}),
        ({"InstanceType": "ml.g5.2xlarge", "VCpu": 4}, {CPU: 4000, MEMORY: 16 * GIB}),
        ({"InstanceType": "ml.g5.2xlarge", "MemoryInGiB": 8}, {CPU: 2000, MEMORY: 8 * GIB}),
        # Two explicit shares: the larger one determines the omitted amounts.
        (
            {"InstanceType": "ml.g6.12xlarge", "Accelerators": 2, "VCpu": 48},
            {CPU: 48000, MEMORY: 192 * GIB, GPU: 2, EFA: 1},
        ),
        ({"InstanceType": "ml.c5.large", "Count": 3}, {CPU: 6000, MEMORY: 12 * GIB}),
    ],
)
def test_omitted_amounts_follow_from_the_largest_share(resources: Json, expected: dict[str, int]) -> None:
    assert nominal_quotas(resources) == expected


def test_instance_counts_and_accelerator_amounts_of_quota_add_up() -> None:
    quotas = nominal_quotas(
        {"InstanceType": "ml.g5.2xlarge", "Count": 2}, {"InstanceType": "ml.g5.2xlarge", "Accelerators": 1}
    )

    assert quotas == {CPU: 24000, MEMORY: 96 * GIB, GPU: 3}


def test_neuron_devices_and_partitions_are_separate_resources() -> None:
    neuron = nominal_quotas({"InstanceType": "ml.trn1.32xlarge", "Accelerators": 8})
    partition = {"Type": "mig-1g.10gb", "Count": 14}
    mig = nominal_quotas({"InstanceType": "ml.p5.48xlarge", "AcceleratorPartition": partition})

    assert neuron["aws.amazon.com/neurondevice"] == 8
    # 14 of the 56 partitions of eight GPUs are a quarter of the instance.
    assert (mig["nvidia.com/mig-1g.10gb"], mig[CPU]) == (14, 48000)


@pytest.mark.parametrize(
    ("sharing", "expected"),
    [
        ({}, Quota(5, 2)),
        ({"Strategy": "LendAndBorrow", "BorrowLimit": 30}, Quota(5, 1)),
        ({"Strategy": "LendAndBorrow", "BorrowLimit": 500}, Quota(5, 25)),
        ({"Strategy": "Lend"}, Quota(5, 0)),
        ({"Strategy": "DontLend"}, Quota(5, 0, 0)),
        (
            {
                "Strategy": "LendAndBorrow",
                "AbsoluteBorrowLimits": [{"InstanceType": "ml.p5.48xlarge", "Accelerators": 3}],
            },
            Quota(5, 3),
        ),
    ],
)
def test_borrow_limit_applies_to_each_resource_rounded_down(sharing: Json, expected: Quota) -> None:
    quotas = quota_resources({"InstanceType": "ml.p5.48xlarge", "Accelerators": 5}, **sharing)

    assert quotas[("ml.p5.48xlarge", GPU)] == expected


def test_team_without_weight_has_weight_zero_and_reclaims() -> None:
    (queue,) = declared_team(quota({"InstanceType": "ml.p5.48xlarge", "Count": 1})).everything()[0]

    assert (queue.name, queue.fair_weight) == ("hyperpod-ns-research-clusterqueue", 0.0)
    assert (str(queue.preemption.within), str(queue.preemption.reclaim)) == ("LowerPriority", "Any")


def test_idle_capacity_has_its_own_queue() -> None:
    policy = {"SchedulerConfig": {"IdleResourceSharing": "Enabled"}}
    cluster = {"InstanceGroups": [{"InstanceType": "ml.p5.48xlarge", "CurrentCount": 3}]}
    queues, _, _ = declared_team(quota({"InstanceType": "ml.p5.48xlarge", "Count": 1}), policy, cluster).everything()

    idle = quotas_of(queues[1].groups)
    assert queues[1].name == "hyperpod-ns-idle-resource-sharing-cq-1"
    assert (idle[("ml.p5.48xlarge", GPU)], idle[("ml.p5.48xlarge", CPU)]) == (Quota(16, 0), Quota(384000, 0))


def test_imported_priority_classes_have_the_names_that_jobs_use() -> None:
    quota_documents = declared_team({"SchedulerConfig": {"PriorityClasses": [{"Name": "training", "Weight": 70}]}})

    assert quota_documents.priorities == {"training-priority": 70}


def test_unknown_instance_type_is_reported() -> None:
    with pytest.raises(DocumentError, match=r"ComputeQuota/research: InstanceType: ml\.x1 is not in the catalogue"):
        quota_resources({"InstanceType": "ml.x1", "Count": 1})


# ---------------------------------------------------------------- round trips

TEAMS = (
    quota({"InstanceType": "ml.p5.48xlarge", "Count": 2}, weight=10, Strategy="Lend"),
    quota({"InstanceType": "ml.trn1.32xlarge", "Accelerators": 8}, team="b", Strategy="DontLend"),
    {"SchedulerConfig": {"PriorityClasses": [{"Name": "training", "Weight": 70}], "FairShare": "Enabled"}},
)
KUEUE: tuple[Json, ...] = (
    {
        "kind": "ResourceFlavor",
        "metadata": {"name": "f"},
        "spec": {"nodeLabels": {"a": "b"}, "nodeTaints": [{"key": "k"}]},
    },
    {"kind": "Cohort", "metadata": {"name": "c"}, "spec": {"parentName": "root", "fairSharing": {"weight": "500m"}}},
    {
        "kind": "ClusterQueue",
        "metadata": {"name": "q"},
        "spec": {
            "cohort": "c",
            "namespaceSelector": {"matchLabels": {"team": "x"}},
            "queueingStrategy": "StrictFIFO",
            "stopPolicy": "Hold",
            "fairSharing": {"weight": "2"},
            "preemption": {
                "withinClusterQueue": "LowerPriority",
                "reclaimWithinCohort": "Any",
                "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 3},
            },
            "flavorFungibility": {"whenCanBorrow": "TryNextFlavor", "preference": "PreemptionOverBorrowing"},
            "resourceGroups": [
                {
                    "coveredResources": ["cpu", "gpu"],
                    "flavors": [
                        {
                            "name": "f",
                            "resources": [
                                {"name": "cpu", "nominalQuota": "1500m", "borrowingLimit": 2},
                                {"name": "gpu", "nominalQuota": "10E", "lendingLimit": 0},
                            ],
                        }
                    ],
                }
            ],
        },
    },
    {"kind": "LocalQueue", "metadata": {"name": "l", "namespace": "n"}, "spec": {"clusterQueue": "q"}},
    {"kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 9},
)


def round_trip(documents: QuotaDocuments, into: Format) -> tuple[QuotaDocuments, tuple[str, ...]]:
    """Convert to a format, and read the result again."""
    written = convert(documents, into)
    return declared_team(*json.loads(json.dumps(written.documents))), written.losses


def declarations(documents: QuotaDocuments) -> tuple[list[Queue], list[object], list[object], dict[str, int]]:
    queues, cohorts, flavors = documents.everything()
    return queues, list(cohorts), list(flavors), documents.priorities


@pytest.mark.parametrize("documents", [TEAMS, KUEUE])
def test_kueue_export_keeps_every_field_that_affects_decisions(documents: tuple[Json, ...]) -> None:
    quota_documents = declared_team(*documents)
    back, losses = round_trip(quota_documents, Format.KUEUE)

    assert declarations(back) == declarations(quota_documents)
    assert [loss for loss in losses if "fair sharing" not in loss] == []


@pytest.mark.parametrize("documents", [TEAMS, KUEUE])
def test_short_form_reports_lost_queue_names(documents: tuple[Json, ...]) -> None:
    quota_documents = declared_team(*documents)
    back, losses = round_trip(quota_documents, Format.EVENKEEL)

    assert declarations(back) == declarations(quota_documents)
    assert back.rules == quota_documents.rules
    assert {loss.partition(" ")[0] for loss in losses} <= {"LocalQueue", "ClusterQueue"}


def test_hyperpod_quotas_survive_every_format() -> None:
    quota_documents = declared_team(*TEAMS)
    for intermediate in (Format.KUEUE, Format.EVENKEEL, Format.HYPERPOD):
        middle, _ = round_trip(quota_documents, intermediate)
        back, losses = round_trip(middle, Format.HYPERPOD)

        assert declarations(back)[0] == declarations(quota_documents)[0]
        assert [loss for loss in losses if "labels" not in loss] == []


def test_hyperpod_export_reports_every_loss() -> None:
    _, losses = round_trip(declared_team(*KUEUE), Format.HYPERPOD)

    text = "\n".join(losses)
    for loss in (
        "is not an instance type",
        "cohort c becomes hyperpod",
        "while borrowing",
        "strategy",
        "fungibility",
        "stop",
        "only one cohort",
        "priority class high",
        "LocalQueue n/l",
    ):
        assert loss in text


def test_disabled_team_admits_no_job() -> None:
    off = quota({"InstanceType": "ml.p5.48xlarge", "Count": 1}) | {"ActivationState": "Disabled"}
    (queue,) = declared_team(off).everything()[0]

    assert not queue.is_active
    assert hyperpod_cluster_policy.compute_quota_of(queue, shipped_instance_types())[0].activation_state == "Disabled"
