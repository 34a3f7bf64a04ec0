"""A published values file imports unchanged, and each of its traps is reported."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from evenkeel.domain.jobs.read_helm_values import read_helm_values
from evenkeel.domain.jobs.templates import FindingSeverity, JobTemplates, ValuesError

FILE = Path(__file__).resolve().parents[2] / "fixtures" / "values" / "hybrid.yaml"


def values_text() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))
    return document


def found_traps(read: JobTemplates) -> set[str]:
    return {finding.trap for finding in read.findings if finding.trap}


def test_values_file_is_imported_unchanged() -> None:
    read = read_helm_values(values_text())

    rows = [
        (
            template.name,
            template.priority_class,
            template.pools,
            template.accelerators,
            template.cpu_millis // 1000,
            template.memory_bytes >> 30,
        )
        for template in read.templates
    ]
    assert rows == [
        ("production", "critical", ("hyperpod", "eksDemand"), 8, 32, 64),
        ("development", "high", ("eksDemand", "hyperpod"), 4, 16, 32),
        ("research", "medium", ("eksSpot", "hyperpod", "eksDemand"), 2, 8, 16),
    ]
    assert [
        (template_priority_class.name, template_priority_class.value, template_priority_class.weight)
        for template_priority_class in read.classes
    ] == [
        ("critical", 1_000_000, 100),
        ("high", 800_000, 80),
        ("medium", 600_000, 60),
        ("low", 400_000, 40),
        ("preemptible", 200_000, 20),
    ]
    assert (read.image, read.command, read.retries, read.keep_seconds) == (
        "nvidia/pytorch:23.10-py3",
        ("python",),
        3,
        86_400,
    )
    assert read.claims == {"data": "training-data-pvc", "checkpoints": "model-checkpoints-pvc"}
    assert read.template_of() == read.template_of("development")


def test_every_known_trap_in_a_values_file_is_reported() -> None:
    assert found_traps(read_helm_values(values_text())) == {f"T0-{number}" for number in range(1, 15)}


def without_path(path: str) -> dict[str, Any]:
    file = values_text()
    *parents, last = path.split(".")
    section: Any = file
    for parent in parents:
        section = section[parent]
    del section[last]
    return file


def with_values(**changes: Any) -> dict[str, Any]:
    file = values_text()
    for path, value in changes.items():
        *parents, last = path.split("__")
        section: Any = file
        for parent in parents:
            section = section[parent]
        section[last] = value
    return file


ONE_SIZE = {
    name: {"labels": {"node-type": name, "gpu-type": "a100-80gb"}} for name in ("hyperpod", "eks-on-demand", "eks-spot")
}
LARGE = {"requests": {"nvidia.com/gpu": 8, "cpu": "96", "memory": "1152Gi"}}


@pytest.mark.parametrize(
    ("document", "trap"),
    [
        (with_values(env={"CUDA_VISIBLE_DEVICES": "0,1"}), "T0-2"),
        (with_values(env={"NVIDIA_VISIBLE_DEVICES": "all"}), "T0-2"),
        (with_values(nodeSelectors=ONE_SIZE), "T0-4"),
        (without_path("backoffLimit"), "T0-7"),
        (without_path("ttlSecondsAfterFinished"), "T0-8"),
        (with_values(checkpointSeconds=600, graceSeconds=90), "T0-9"),
        (with_values(dataPvcName="", checkpointPvcName=""), "T0-10"),
        (
            with_values(
                jobTemplates__development__priorityClassName="low",
                jobTemplates__research__priorityClassName="preemptible",
                priorityClasses={
                    k: v for k, v in values_text()["priorityClasses"].items() if k not in ("high", "medium")
                },
            ),
            "T0-11",
        ),
        (without_path("priorityClasses.preemptible.preemptionPolicy"), "T0-12"),
    ],
)
def test_values_file_without_traps_has_no_finding(document: dict[str, Any], trap: str) -> None:
    assert trap not in found_traps(read_helm_values(document))


def test_proportional_resources_have_no_finding() -> None:
    document = with_values(jobTemplates__production__resources=LARGE)

    read = read_helm_values(document)

    assert (read.templates[0].proposed_cpu_millis, read.templates[0].proposed_memory_bytes) == (0, 0)
    assert not [finding for finding in read.findings if finding.trap == "T0-3" and "production" in finding.field]
    assert read.templates[1].proposed_memory_bytes == 576 << 30


def test_wrongly_indented_preemption_policy_is_not_read_as_class() -> None:
    document = without_path("priorityClasses.preemptible.preemptionPolicy")
    document["priorityClasses"]["preemptionPolicy"] = "PreemptLowerPriority"

    read = read_helm_values(document)

    assert [template_priority_class.name for template_priority_class in read.classes] == [
        "critical",
        "high",
        "medium",
        "low",
        "preemptible",
    ]
    assert [finding.field for finding in read.findings if finding.trap == "T0-12"] == [
        "priorityClasses.preemptionPolicy"
    ]


def test_unusable_cuda_visible_devices_is_left_out_and_reported() -> None:
    read = read_helm_values(values_text())

    assert read.env == {"NCCL_DEBUG": "INFO"}
    assert next(finding for finding in read.findings if finding.trap == "T0-2").weight is FindingSeverity.REFUSED


def test_unknown_field_is_reported() -> None:
    read = read_helm_values(with_values(backofLimit=3))

    assert [finding.field for finding in read.findings if not finding.trap] == ["backofLimit"]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "not one object"),
        (without_path("priorityClasses"), "priorityClasses: is not an object"),
        (with_values(jobType="prodution"), "no template 'prodution'"),
        (with_values(jobTemplates__production__priorityClassName="urgent"), "no class 'urgent'"),
        (with_values(jobTemplates__production__nodeSelector={"node-type": "moon"}), "no pool has the labels"),
        (
            with_values(jobTemplates__production__resources={"requests": {"memory": "64 gigs"}}),
            "jobTemplates.production",
        ),
        (with_values(backoffLimit="three"), "backoffLimit: is not a whole number"),
        (with_values(image={"tag": "1"}), "image.repository: is not a text"),
        (with_values(priorityClasses__low={"value": True}), "priorityClasses.low.value"),
    ],
)
def test_error_about_an_unreadable_values_file_names_the_field(document: Any, message: str) -> None:
    with pytest.raises(ValuesError, match=message):
        read_helm_values(document)
