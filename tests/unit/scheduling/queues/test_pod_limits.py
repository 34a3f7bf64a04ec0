"""LimitRange and RuntimeClass in a plan: their defaults and overhead count, and their limits keep jobs out."""

from typing import Any

import pytest

from evenkeel.domain.queue_simulation.setup import DeclaredJob, QuotaDocuments

Json = dict[str, Any]
QUEUE: Json = {"queues": [{"name": "research", "groups": [{"p5": {"cpu": 100, "memory": "1Ti"}}]}]}


def a_limit_range(kind: str = "Container", namespace: str = "nlp", name: str = "limits", **limits: Json) -> Json:
    metadata = {"name": name, "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": metadata,
        "spec": {"limits": [{"type": kind, **limits}]},
    }


def a_runtime_class(**overhead: str) -> Json:
    metadata = {"name": "kata"}
    return {"kind": "RuntimeClass", "metadata": metadata, "handler": "kata", "overhead": {"podFixed": overhead}}


def a_workload(resources: Json | None = None, **pod: Any) -> Json:
    container = {"name": "main", "resources": resources or {}}
    template = {"spec": {"containers": [container], **pod}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "a", "namespace": "nlp"},
        "spec": {"queueName": "research", "podSets": [{"name": "main", "count": 2, "template": template}]},
    }


def read_job(workload: Json, *documents: Json) -> tuple[DeclaredJob, list[str]]:
    setup = QuotaDocuments()
    for document in (QUEUE, *documents):
        setup.add(document, "quota.yaml")
    job = setup.job(workload, "jobs.yaml")
    return job, list(setup.read_warnings.warnings)


def requests_of(workload: Json, *documents: Json) -> dict[str, int]:
    (pod_set,) = read_job(workload, *documents)[0].workload.pod_sets
    return dict(pod_set.requests)


def test_limit_range_default_request_counts_for_silent_containers() -> None:
    limits = a_limit_range(defaultRequest={"cpu": "2"}, default={"cpu": "4", "memory": "1Gi"})

    assert requests_of(a_workload(), limits) == {"cpu": 2000, "memory": 2**30}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max": {"cpu": "4"}}, {"cpu": 4000}),
        ({"min": {"cpu": "1"}}, {"cpu": 1000}),
        ({"min": {"cpu": "1"}, "max": {"cpu": "4"}}, {"cpu": 4000}),
        ({"max": {"cpu": "4"}, "default": {"cpu": "3"}}, {"cpu": 3000}),
        ({"max": {"cpu": "4"}, "defaultRequest": {"cpu": "2"}}, {"cpu": 2000}),
    ],
)
def test_limit_range_has_the_defaults_of_the_api(limits: Json, expected: dict[str, int]) -> None:
    assert requests_of(a_workload(), a_limit_range(**limits)) == expected


def test_limits_of_pods_get_no_defaults_of_the_api() -> None:
    assert requests_of(a_workload({"requests": {"cpu": "1"}}), a_limit_range("Pod", max={"memory": "1Gi"})) == {
        "cpu": 1000
    }


def test_stated_request_wins_over_the_default() -> None:
    limits = a_limit_range(defaultRequest={"cpu": "2"})

    assert requests_of(a_workload({"requests": {"cpu": "1"}}), limits) == {"cpu": 1000}


def test_limit_range_of_another_namespace_changes_nothing() -> None:
    limits = a_limit_range(namespace="vision", defaultRequest={"cpu": "2"})

    assert requests_of(a_workload({"requests": {"cpu": "1"}}), limits) == {"cpu": 1000}


def test_first_default_of_several_limit_ranges_counts() -> None:
    first = a_limit_range(name="a", defaultRequest={"cpu": "2"})
    second = a_limit_range(name="b", defaultRequest={"cpu": "9"})

    assert requests_of(a_workload(), second, first) == {"cpu": 2000}


def test_runtime_class_overhead_is_added_to_each_pod() -> None:
    workload = a_workload({"requests": {"cpu": "1"}}, runtimeClassName="kata")

    assert requests_of(workload, a_runtime_class(cpu="250m", memory="120Mi")) == {"cpu": 1250, "memory": 120 * 2**20}


def test_overhead_in_the_template_wins_over_the_runtime_class() -> None:
    workload = a_workload({"requests": {"cpu": "1"}}, runtimeClassName="kata", overhead={"cpu": "1"})

    assert requests_of(workload, a_runtime_class(cpu="250m")) == {"cpu": 2000}


def test_missing_runtime_class_is_reported() -> None:
    _, warnings = read_job(a_workload({"requests": {"cpu": "1"}}, runtimeClassName="kata"))

    assert any("no file has RuntimeClass kata" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (a_limit_range(max={"cpu": "4"}), "cpu is above the maximum 4 of a container"),
        (a_limit_range(min={"cpu": "16"}), "cpu is below the minimum 16 of a container"),
        (a_limit_range("Pod", max={"cpu": "4"}), "cpu is above the maximum 4 of a pod"),
        (a_limit_range("Pod", min={"cpu": "16"}), "cpu is below the minimum 16 of a pod"),
        (a_limit_range(max={"cpu": "8"}, min={"cpu": "8"}), ""),
        (a_limit_range("PersistentVolumeClaim", max={"cpu": "1"}), ""),
        (a_limit_range(max={"memory": "1Gi"}), ""),
    ],
)
def test_pod_outside_its_limit_range_is_inadmissible(limits: Json, expected: str) -> None:
    job, _ = read_job(a_workload({"requests": {"cpu": "8"}, "limits": {"cpu": "8"}}), limits)

    reason = job.workload.inadmissible_reason
    assert reason == (f"The job's pods break a LimitRange of their namespace: {expected}." if expected else "")


def test_lowest_maximum_of_several_limit_ranges_counts() -> None:
    ranges = (a_limit_range(name="a", max={"cpu": "4"}), a_limit_range(name="b", max={"cpu": "16"}))

    job, _ = read_job(a_workload({"requests": {"cpu": "8"}, "limits": {"cpu": "8"}}), *ranges)

    assert "above the maximum 4" in job.workload.inadmissible_reason
