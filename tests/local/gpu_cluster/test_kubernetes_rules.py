"""Defaults, conversions and refusals of a Kubernetes API server; like the contract suite, also for a real server."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import yaml

from tests.local.gpu_cluster.contract import REAL, budgets_of, finalize, jobs_of
from tests.local.gpu_cluster.kube_client import (
    APPLY,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    Json,
    KubeApiError,
    KubeClient,
    a_claim,
    a_job,
    a_pod,
    eventually,
)

needs_controllers = pytest.mark.skipif(bool(REAL), reason="a bare API server runs no controllers")
REQUIRED, INVALID, UNSUPPORTED = "FieldValueRequired", "FieldValueInvalid", "FieldValueNotSupported"
FORBIDDEN, DUPLICATE, NOT_FOUND = "FieldValueForbidden", "FieldValueDuplicate", "FieldValueNotFound"
TOO_LONG, TOO_MANY = "FieldValueTooLong", "FieldValueTooMany"


def put_at(body: Json, path: str, value: Any) -> Json:
    """Return a copy of a body with a value at a path such as `spec.containers.0.env`."""
    changed: Json = json.loads(json.dumps(body))
    *parents, last = path.split(".")
    part: Any = changed
    for name in parents:
        part = part[int(name)] if name.isdigit() else part.setdefault(name, {})
    part[last] = value
    return changed


def a_suspended_job(api: KubeClient, space: str) -> Json:
    """Create a suspended Job. Return it without a version, so that writes of controllers cause no conflict."""
    job = api.create(jobs_of(space), a_job("one", "true", spec={"suspend": True}))
    del job["metadata"]["resourceVersion"]
    return job


def causes_of(refused: KubeApiError) -> set[tuple[str, str]]:
    """Return the reason and field of each cause of a 422."""
    assert (refused.code, refused.reason) == (422, "Invalid"), refused
    return {(cause["reason"], cause["field"]) for cause in refused.status["details"]["causes"]}


# Quantities

QUANTITIES = [
    (8, "8"),
    (0.5, "500m"),
    ("1000m", "1"),
    ("1500m", "1500m"),
    ("1024Mi", "1Gi"),
    ("1.5Gi", "1536Mi"),
    ("1000", "1k"),
    (1500, "1500"),
    ("0", "0"),
    ("1e3", "1e3"),
    ("1e4", "10e3"),
    ("100u", "1m"),
    ("2048Ki", "2Mi"),
    ("100000", "100k"),
]


@pytest.mark.parametrize(("written", "stored"), QUANTITIES)
def test_quantities_are_stored_in_canonical_form(api: KubeClient, space: str, written: Any, stored: str) -> None:
    pod = a_pod("one", schedulerName="nobody")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"memory": written}}
    quota = {"metadata": {"name": "one"}, "spec": {"hard": {"requests.memory": written}}}

    created = api.create(f"{space}/pods", pod)
    limited = api.create(f"{space}/resourcequotas", quota)

    assert created["spec"]["containers"][0]["resources"]["limits"] == {"memory": stored}
    assert limited["spec"]["hard"] == {"requests.memory": stored}


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC, JSON_PATCH])
def test_patched_quantity_is_stored_in_canonical_form(api: KubeClient, node: str, kind: str) -> None:
    value = {"memory": "1024Mi", "nvidia.com/gpu": 8}
    body: Any = {"status": {"capacity": value}}
    if kind == JSON_PATCH:
        body = [{"op": "add", "path": "/status/capacity", "value": value}]

    patched = api.patch(f"{node}/status", body, kind)

    assert patched["status"]["capacity"] == {"memory": "1Gi", "nvidia.com/gpu": "8"}


def test_requests_default_to_limits_in_pods_only(api: KubeClient, space: str) -> None:
    job = api.create(jobs_of(space), a_job("one", "true", gpus=8, spec={"suspend": True}))
    pod = api.create(f"{space}/pods", a_pod("one", gpus=8, schedulerName="nobody"))

    limits = {"limits": {"nvidia.com/gpu": "8"}}
    assert job["spec"]["template"]["spec"]["containers"][0]["resources"] == limits
    assert pod["spec"]["containers"][0]["resources"] == {**limits, "requests": {"nvidia.com/gpu": "8"}}


# Defaults


def test_pod_gets_its_defaults(api: KubeClient, space: str) -> None:
    body = a_pod("one", schedulerName="nobody", volumes=[{"name": "scratch"}])
    del body["spec"]["restartPolicy"]
    container = body["spec"]["containers"][0]
    container["ports"] = [{"containerPort": 80}]
    container["env"] = [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    container["readinessProbe"] = {"httpGet": {"port": 80}}

    spec = api.create(f"{space}/pods", body)["spec"]

    assert (spec["restartPolicy"], spec["dnsPolicy"], spec["enableServiceLinks"]) == ("Always", "ClusterFirst", True)
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("default", "default")
    assert {"name": "scratch", "emptyDir": {}} in spec["volumes"]
    defaulted = spec["containers"][0]
    assert (defaulted["terminationMessagePath"], defaulted["terminationMessagePolicy"]) == (
        "/dev/termination-log",
        "File",
    )
    assert defaulted["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert defaulted["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    probe = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
    assert defaulted["readinessProbe"] == {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, **probe}


def test_replaced_deployment_gets_its_defaults_again(api: KubeClient, space: str) -> None:
    path = space.replace("/api/v1", "/apis/apps/v1") + "/deployments"
    labels = {"app": "one"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "x:1"}]}}
    body = {"metadata": {"name": "one"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    first = api.create(path, put_at(body, "spec.paused", True))

    again = api.call("PUT", f"{path}/one", put_at(body, "spec.paused", True))

    assert again["spec"] == first["spec"]


def test_string_data_of_a_secret_becomes_data(api: KubeClient, space: str) -> None:
    body = {"metadata": {"name": "one"}, "data": {"a": "MQ==", "b": "MQ=="}, "stringData": {"b": "two"}}

    created = api.create(f"{space}/secrets", body)
    patched = api.patch(f"{space}/secrets/one", {"stringData": {"c": "three"}})

    assert (created["data"], created["type"]) == ({"a": "MQ==", "b": "dHdv"}, "Opaque")
    assert "stringData" not in patched
    assert patched["data"]["c"] == base64.b64encode(b"three").decode()


def test_items_in_list_of_built_in_kind_omit_kind(api: KubeClient, space: str) -> None:
    api.create(f"{space}/configmaps", {"metadata": {"name": "one"}})

    listed = api.get(f"{space}/configmaps")
    watched = next(api.watch(f"{space}/configmaps?fieldSelector=metadata.name=one"))

    assert listed["kind"] == "ConfigMapList"
    assert all("kind" not in item and "apiVersion" not in item for item in listed["items"])
    assert (watched["object"]["kind"], watched["object"]["apiVersion"]) == ("ConfigMap", "v1")


def test_long_name_prefix_makes_a_name_of_63_characters(api: KubeClient, space: str) -> None:
    created = api.create(f"{space}/configmaps", {"metadata": {"generateName": "a" * 80}})

    assert created["metadata"]["name"].startswith("a" * 58)
    assert len(created["metadata"]["name"]) == 63


# Admission


def test_pod_with_an_unknown_service_account_is_forbidden(api: KubeClient, space: str) -> None:
    refused = api.status_of("POST", f"{space}/pods", a_pod("one", serviceAccountName="nobody"))

    namespace = space.rsplit("/", 1)[1]
    message = f'error looking up service account {namespace}/nobody: serviceaccount "nobody" not found'
    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert refused.status["message"] == f'pods "one" is forbidden: {message}'
    assert refused.status["details"] == {"name": "one", "kind": "pods"}


@needs_controllers
def test_job_with_an_unknown_service_account_gets_an_event(api: KubeClient, space: str) -> None:
    api.create(jobs_of(space), a_job("one", "true", serviceAccountName="nobody"))

    def event_messages() -> list[str]:
        events = api.items(f"{space}/events?fieldSelector=involvedObject.name=one")
        return [event["message"] for event in events if event["reason"] == "FailedCreate"]

    messages = eventually(event_messages, "the event")
    assert "error looking up service account" in messages[0]
    assert api.items(f"{space}/pods") == []


def test_pod_with_a_numeric_priority_is_refused(api: KubeClient, space: str) -> None:
    refused = api.status_of("POST", f"{space}/pods", a_pod("one", priority=5))

    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert "the integer value of priority (5) must not be provided in pod spec" in str(refused.status["message"])


# Pods

POD_RULES: list[tuple[str, Any, tuple[str, str]]] = [
    ("spec.containers", [], (REQUIRED, "spec.containers")),
    ("spec.containers.0.name", "Main", (INVALID, "spec.containers[0].name")),
    ("spec.containers.0.image", "", (REQUIRED, "spec.containers[0].image")),
    ("spec.containers.0.env", [{"name": ""}], (REQUIRED, "spec.containers[0].env[0].name")),
    ("spec.containers.0.env", [{"value": "x"}], (REQUIRED, "spec.containers[0].env[0].name")),
    ("spec.containers.0.env", [{"name": "a=b"}], (INVALID, "spec.containers[0].env[0].name")),
    ("spec.containers.0.env", [{"name": "é"}], (INVALID, "spec.containers[0].env[0].name")),
    ("spec.containers.0.env", [{"name": "A", "valueFrom": {}}], (INVALID, "spec.containers[0].env[0].valueFrom")),
    (
        "spec.containers.0.env",
        [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}}],
        (UNSUPPORTED, "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath"),
    ),
    (
        "spec.containers.0.env",
        [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}],
        (REQUIRED, "spec.containers[0].env[0].valueFrom.secretKeyRef.key"),
    ),
    (
        "spec.containers.0.volumeMounts",
        [{"name": "none", "mountPath": "/x"}],
        (NOT_FOUND, "spec.containers[0].volumeMounts[0].name"),
    ),
    (
        "spec.initContainers",
        [{"name": "i", "image": "x", "volumeMounts": [{"name": "none", "mountPath": "/x"}]}],
        (NOT_FOUND, "spec.initContainers[0].volumeMounts[0].name"),
    ),
    ("spec.initContainers", [{"name": "main", "image": "x"}], (DUPLICATE, "spec.initContainers[0].name")),
    ("spec.containers.0.ports", [{"containerPort": 0}], (REQUIRED, "spec.containers[0].ports[0].containerPort")),
    ("spec.containers.0.ports", [{"containerPort": 65536}], (INVALID, "spec.containers[0].ports[0].containerPort")),
    (
        "spec.containers.0.ports",
        [{"containerPort": 1, "protocol": "tcp"}],
        (UNSUPPORTED, "spec.containers[0].ports[0].protocol"),
    ),
    (
        "spec.containers.0.ports",
        [{"containerPort": 1, "name": "much-too-long-a-name"}],
        (INVALID, "spec.containers[0].ports[0].name"),
    ),
    ("spec.containers.0.imagePullPolicy", "Sometimes", (UNSUPPORTED, "spec.containers[0].imagePullPolicy")),
    ("spec.containers.0.resources", {"limits": {"gpu": 1}}, (INVALID, "spec.containers[0].resources.limits[gpu]")),
    ("spec.containers.0.resources", {"limits": {"cpu": "-1"}}, (INVALID, "spec.containers[0].resources.limits[cpu]")),
    (
        "spec.containers.0.resources",
        {"limits": {"nvidia.com/gpu": "500m"}},
        (INVALID, "spec.containers[0].resources.limits[nvidia.com/gpu]"),
    ),
    (
        "spec.containers.0.resources",
        {"limits": {"cpu": 1}, "requests": {"cpu": 2}},
        (INVALID, "spec.containers[0].resources.requests"),
    ),
    ("spec.volumes", [{"name": "a"}, {"name": "a"}], (DUPLICATE, "spec.volumes[1].name")),
    ("spec.volumes", [{"name": "Not_A_Label"}], (INVALID, "spec.volumes[0].name")),
    ("spec.volumes", [{"name": "a", "hostPath": {}}], (REQUIRED, "spec.volumes[0].hostPath.path")),
    (
        "spec.volumes",
        [{"name": "a", "emptyDir": {}, "hostPath": {"path": "/x"}}],
        (FORBIDDEN, "spec.volumes[0].hostPath"),
    ),
    ("spec.restartPolicy", "Sometimes", (UNSUPPORTED, "spec.restartPolicy")),
    ("spec.dnsPolicy", "Sometimes", (UNSUPPORTED, "spec.dnsPolicy")),
    ("spec.activeDeadlineSeconds", 0, (INVALID, "spec.activeDeadlineSeconds")),
    ("spec.hostname", "a.b", (INVALID, "spec.hostname")),
    ("spec.nodeSelector", {"a b": "x"}, (INVALID, "spec.nodeSelector")),
    ("spec.tolerations", [{"operator": "Equal", "value": "x"}], (INVALID, "spec.tolerations[0].operator")),
    (
        "spec.tolerations",
        [{"key": "a", "operator": "Exists", "value": "x"}],
        (INVALID, "spec.tolerations[0].operator"),
    ),
    ("spec.tolerations", [{"key": "a", "operator": "Sometimes"}], (UNSUPPORTED, "spec.tolerations[0].operator")),
    ("spec.tolerations", [{"key": "a", "effect": "Never"}], (UNSUPPORTED, "spec.tolerations[0].effect")),
    (
        "spec.tolerations",
        [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1}],
        (INVALID, "spec.tolerations[0].effect"),
    ),
    ("metadata.labels", {"a": "not a value"}, (INVALID, "metadata.labels")),
    ("metadata.annotations", {"not a key": "x"}, (INVALID, "metadata.annotations")),
    ("metadata.annotations", {"a": "x" * 262_144}, (TOO_LONG, "metadata.annotations")),
    ("metadata.finalizers", ["unqualified"], (INVALID, "metadata.finalizers[0]")),
    ("metadata.ownerReferences", [{"apiVersion": "v1", "kind": "Pod"}], (INVALID, "metadata.ownerReferences.name")),
]


@pytest.mark.parametrize(("path", "value", "cause"), POD_RULES)
def test_invalid_pod_is_refused(api: KubeClient, space: str, path: str, value: Any, cause: tuple[str, str]) -> None:
    refused = api.status_of("POST", f"{space}/pods", put_at(a_pod("one", schedulerName="nobody"), path, value))

    assert cause in causes_of(refused)
    assert str(refused.status["message"]).startswith('Pod "one" is invalid: ')
    assert refused.status["details"]["kind"] == "Pod"


@pytest.mark.parametrize("name", ["A_B", "my.name", "with-hyphen", "1digit", "a b"])
def test_relaxed_environment_names_are_accepted(api: KubeClient, space: str, name: str) -> None:
    pod = put_at(a_pod("one", schedulerName="nobody"), "spec.containers.0.env", [{"name": name, "value": "x"}])

    assert api.create(f"{space}/pods", pod)["spec"]["containers"][0]["env"] == [{"name": name, "value": "x"}]


def test_pod_update_accepts_only_added_tolerations(api: KubeClient, space: str) -> None:
    first = api.create(f"{space}/pods", a_pod("one", schedulerName="nobody", tolerations=[{"key": "a"}]))
    more = [*first["spec"]["tolerations"], {"key": "b", "operator": "Exists"}]

    added = api.patch(f"{space}/pods/one", {"spec": {"tolerations": more}})
    removed = api.status_of("PATCH", f"{space}/pods/one", {"spec": {"tolerations": more[1:]}}, MERGE)
    longer = api.status_of(
        "PATCH", f"{space}/pods/one", {"spec": {"containers": [*first["spec"]["containers"]] * 2}}, MERGE
    )

    assert added["spec"]["tolerations"] == more
    assert causes_of(removed) == {(FORBIDDEN, "spec.tolerations")}
    assert (FORBIDDEN, "spec.containers") in causes_of(longer)


# Jobs


def a_policy(**rule: Any) -> Json:
    return {"rules": [{"action": "FailJob", **rule}]}


RULE = "spec.podFailurePolicy.rules[0]"
JOB_RULES: list[tuple[str, Any, tuple[str, str]]] = [
    ("spec.podFailurePolicy", a_policy(), (INVALID, RULE)),
    (
        "spec.podFailurePolicy",
        a_policy(onExitCodes={"operator": "In", "values": [1]}, onPodConditions=[{"type": "A"}]),
        (INVALID, RULE),
    ),
    (
        "spec.podFailurePolicy",
        a_policy(action="Retry", onPodConditions=[{"type": "A"}]),
        (UNSUPPORTED, f"{RULE}.action"),
    ),
    ("spec.podFailurePolicy", {"rules": [{"onPodConditions": [{"type": "A"}]}]}, (REQUIRED, f"{RULE}.action")),
    (
        "spec.podFailurePolicy",
        a_policy(action="FailIndex", onPodConditions=[{"type": "A"}]),
        (INVALID, f"{RULE}.action"),
    ),
    (
        "spec.podFailurePolicy",
        a_policy(onExitCodes={"operator": "In", "values": [0]}),
        (INVALID, f"{RULE}.onExitCodes.values[0]"),
    ),
    (
        "spec.podFailurePolicy",
        a_policy(onExitCodes={"operator": "In", "values": [2, 1]}),
        (INVALID, f"{RULE}.onExitCodes.values"),
    ),
    (
        "spec.podFailurePolicy",
        a_policy(onExitCodes={"operator": "In", "values": [1, 1]}),
        (DUPLICATE, f"{RULE}.onExitCodes.values[1]"),
    ),
    (
        "spec.podFailurePolicy",
        a_policy(onExitCodes={"operator": "In", "values": list(range(1, 257))}),
        (TOO_MANY, f"{RULE}.onExitCodes.values"),
    ),
    (
        "spec.podFailurePolicy",
        a_policy(onExitCodes={"operator": "In", "values": [1], "containerName": "none"}),
        (INVALID, f"{RULE}.onExitCodes.containerName"),
    ),
    (
        "spec.podFailurePolicy",
        a_policy(onPodConditions=[{"type": "A", "status": "Perhaps"}]),
        (UNSUPPORTED, f"{RULE}.onPodConditions[0].status"),
    ),
    (
        "spec.podFailurePolicy",
        {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "A"}]}] * 21},
        (TOO_MANY, "spec.podFailurePolicy.rules"),
    ),
    ("metadata.name", "a" * 62, (INVALID, "metadata.name")),
    ("spec.parallelism", 100_001, (INVALID, "spec.parallelism")),
    ("spec.completions", -1, (INVALID, "spec.completions")),
    ("spec.completionMode", "Both", (UNSUPPORTED, "spec.completionMode")),
    ("spec.ttlSecondsAfterFinished", -1, (INVALID, "spec.ttlSecondsAfterFinished")),
    ("spec.maxFailedIndexes", 1, (REQUIRED, "spec.backoffLimitPerIndex")),
    ("spec.managedBy", "nobody", (INVALID, "spec.managedBy")),
    ("spec.template.spec.restartPolicy", "Always", (REQUIRED, "spec.template.spec.restartPolicy")),
    (
        "spec.template.metadata.labels",
        {"batch.kubernetes.io/job-name": "another"},
        (INVALID, "spec.template.metadata.labels[batch.kubernetes.io/job-name]"),
    ),
    ("spec.selector", {"matchLabels": {"app": "x"}}, (INVALID, "spec.selector")),
    ("spec.template.spec.containers.0.image", "", (REQUIRED, "spec.template.spec.containers[0].image")),
]


@pytest.mark.parametrize(("path", "value", "cause"), JOB_RULES)
def test_invalid_job_is_refused(api: KubeClient, space: str, path: str, value: Any, cause: tuple[str, str]) -> None:
    body = put_at(a_job("one", "true", spec={"suspend": True}), path, value)

    refused = api.status_of("POST", jobs_of(space), body)

    assert cause in causes_of(refused)
    name = body["metadata"]["name"]
    assert str(refused.status["message"]).startswith(f'Job.batch "{name}" is invalid: ')
    assert refused.status["details"]["group"] == "batch"


def test_failure_policy_requires_replacement_of_failed_pods_only(api: KubeClient, space: str) -> None:
    body = a_job("one", "true", spec={"suspend": True, "podFailurePolicy": a_policy(onPodConditions=[{"type": "A"}])})

    refused = api.status_of("POST", jobs_of(space), put_at(body, "spec.podReplacementPolicy", "TerminatingOrFailed"))
    created = api.create(jobs_of(space), body)

    assert causes_of(refused) == {(UNSUPPORTED, "spec.podReplacementPolicy")}
    assert created["spec"]["podFailurePolicy"]["rules"][0]["onPodConditions"] == [{"type": "A", "status": "True"}]


DIRECTIVES: list[tuple[str, Any]] = [
    ("spec.nodeSelector", {"pool": "a"}),
    ("spec.tolerations", [{"key": "a", "operator": "Exists"}]),
    ("metadata.annotations", {"a": "b"}),
    ("spec.schedulingGates", [{"name": "a.io/b"}]),
]


@pytest.mark.parametrize(("path", "value"), DIRECTIVES)
def test_unstarted_suspended_job_may_change_its_placement(api: KubeClient, space: str, path: str, value: Any) -> None:
    body = put_at(a_suspended_job(api, space), f"spec.template.{path}", value)

    changed = api.call("PUT", f"{jobs_of(space)}/one", body)

    assert changed["spec"]["template"] == body["spec"]["template"]


FIXED: list[tuple[str, Any, str]] = [
    ("spec.template.spec.containers.0.image", "other:2", "spec.template"),
    ("spec.template.spec.containers.0.command", ["other"], "spec.template"),
    ("spec.template.spec.priorityClassName", "other", "spec.template"),
    ("spec.template.spec.terminationGracePeriodSeconds", 99, "spec.template"),
    ("spec.completionMode", "NonIndexed", "spec.completionMode"),
    ("spec.podFailurePolicy", a_policy(onPodConditions=[{"type": "A"}]), "spec.podFailurePolicy"),
    ("spec.completions", 7, "spec.completions"),
]


@pytest.mark.parametrize(("path", "value", "field"), FIXED)
def test_other_fields_of_a_suspended_job_are_immutable(
    api: KubeClient, space: str, path: str, value: Any, field: str
) -> None:
    first = a_suspended_job(api, space)

    refused = api.status_of("PUT", f"{jobs_of(space)}/one", put_at(first, path, value))

    assert (INVALID, field) in causes_of(refused)


def test_indexed_job_changes_completions_and_parallelism_together(api: KubeClient, space: str) -> None:
    api.create(jobs_of(space), a_job("one", "true", completions=2, spec={"suspend": True}))

    alone = api.status_of("PATCH", f"{jobs_of(space)}/one", {"spec": {"completions": 3}}, MERGE)
    patch = api.patch(f"{jobs_of(space)}/one", {"spec": {"completions": 3, "parallelism": 3}})

    message = "Invalid value: 3: can only be modified in tandem with spec.parallelism"
    assert alone.status["message"] == f'Job.batch "one" is invalid: spec.completions: {message}'
    assert patch["spec"]["completions"] == 3


# Deletion


def test_job_deleted_without_a_policy_gets_the_orphan_finalizer(api: KubeClient, space: str) -> None:
    body = put_at(a_job("one", "true", spec={"suspend": True}), "metadata.finalizers", ["evenkeel.io/held"])
    api.create(jobs_of(space), body)

    deleted = api.delete(f"{jobs_of(space)}/one")
    api.patch(f"{jobs_of(space)}/one", {"metadata": {"finalizers": None}})

    assert (deleted["kind"], deleted["metadata"]["finalizers"]) == ("Job", ["evenkeel.io/held", "orphan"])


@needs_controllers
def test_pods_survive_a_job_deleted_without_a_policy(api: KubeClient, space: str) -> None:
    api.create(jobs_of(space), a_job("one", schedulerName="nobody"))
    (pod,) = eventually(lambda: api.items(f"{space}/pods"), "the pod")
    path = f"{space}/pods/{pod['metadata']['name']}"

    api.delete(f"{jobs_of(space)}/one")
    api.until_gone(f"{jobs_of(space)}/one")

    document = api.until(path, lambda obj: not obj["metadata"].get("finalizers"), "the Job to let go of its pod")
    assert "ownerReferences" not in document["metadata"]


@needs_controllers
@pytest.mark.parametrize("policy", ["Background", "Foreground"])
def test_pods_are_deleted_with_a_job_by_policy(api: KubeClient, space: str, policy: str) -> None:
    api.create(jobs_of(space), a_job("one", schedulerName="nobody"))
    (pod,) = eventually(lambda: api.items(f"{space}/pods"), "the pod")

    api.delete(f"{jobs_of(space)}/one", {"propagationPolicy": policy})

    api.until_gone(f"{space}/pods/{pod['metadata']['name']}")
    api.until_gone(f"{jobs_of(space)}/one")


def test_finalize_call_keeps_the_finalizers_it_lists(api: KubeClient, space: str) -> None:
    api.patch(space, {"metadata": {"finalizers": ["evenkeel.io/held"]}})
    name = space.rsplit("/", 1)[1]
    metadata = {"name": name, "finalizers": ["evenkeel.io/held", "evenkeel.io/more"]}

    stored = api.call("PUT", f"{space}/finalize", {"metadata": metadata, "spec": {"finalizers": ["kubernetes"]}})
    again = finalize(api, space)
    api.patch(space, {"metadata": {"finalizers": None}})

    assert stored["metadata"]["finalizers"] == ["evenkeel.io/held", "evenkeel.io/more"]
    assert not again["spec"].get("finalizers")


# Budgets, taints, ConfigMaps and Secrets

BUDGET_RULES: list[tuple[Json, tuple[str, str]]] = [
    ({"minAvailable": "101%"}, (INVALID, "spec.minAvailable")),
    ({"maxUnavailable": "150%"}, (INVALID, "spec.maxUnavailable")),
    ({"minAvailable": "half"}, (INVALID, "spec.minAvailable")),
    ({"minAvailable": "1"}, (INVALID, "spec.minAvailable")),
    ({"maxUnavailable": -1}, (INVALID, "spec.maxUnavailable")),
    ({"minAvailable": 1, "maxUnavailable": 1}, (INVALID, "spec")),
    ({"minAvailable": 1, "unhealthyPodEvictionPolicy": "Maybe"}, (UNSUPPORTED, "spec.unhealthyPodEvictionPolicy")),
    (
        {"minAvailable": 1, "selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        (REQUIRED, "spec.selector.matchExpressions[0].values"),
    ),
    (
        {"minAvailable": 1, "selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}},
        (INVALID, "spec.selector.matchExpressions[0].operator"),
    ),
    ({"minAvailable": 1, "selector": {"matchLabels": {"a": "b c"}}}, (INVALID, "spec.selector.matchLabels")),
]


@pytest.mark.parametrize(("spec", "cause"), BUDGET_RULES)
def test_invalid_budget_is_refused(api: KubeClient, space: str, spec: Json, cause: tuple[str, str]) -> None:
    refused = api.status_of("POST", budgets_of(space), {"metadata": {"name": "one"}, "spec": spec})

    assert cause in causes_of(refused)


@needs_controllers
def test_budget_without_a_bound_allows_no_disruption(api: KubeClient, space: str) -> None:
    api.create(budgets_of(space), {"metadata": {"name": "one"}, "spec": {"selector": {"matchLabels": {"a": "b"}}}})

    counted = api.until(f"{budgets_of(space)}/one", lambda obj: obj["status"].get("observedGeneration"), "the count")

    assert counted["status"]["disruptionsAllowed"] == 0


TAINT_RULES: list[tuple[list[Json], tuple[str, str]]] = [
    ([{"key": "", "effect": "NoSchedule"}], (INVALID, "metadata.taints[0].key")),
    ([{"key": "a b", "effect": "NoSchedule"}], (INVALID, "metadata.taints[0].key")),
    ([{"key": "a", "value": "b c", "effect": "NoSchedule"}], (INVALID, "metadata.taints[0].value")),
    ([{"key": "a"}], (REQUIRED, "metadata.taints[0].effect")),
    ([{"key": "a", "effect": "Never"}], (UNSUPPORTED, "metadata.taints[0].effect")),
    ([{"key": "a", "effect": "NoSchedule"}] * 2, (DUPLICATE, "metadata.taints[1]")),
]


@pytest.mark.parametrize(("taints", "cause"), TAINT_RULES)
def test_invalid_taint_is_refused_with_its_cause(
    api: KubeClient, node: str, taints: list[Json], cause: tuple[str, str]
) -> None:
    assert cause in causes_of(api.status_of("PATCH", node, {"spec": {"taints": taints}}, MERGE))


CONFIG_RULES: list[tuple[str, Json, tuple[str, str]]] = [
    ("configmaps", {"data": {"a/b": "x"}}, (INVALID, "data[a/b]")),
    ("configmaps", {"data": {"..": "x"}}, (INVALID, "data[..]")),
    ("configmaps", {"data": {"a": "x"}, "binaryData": {"a": "eA=="}}, (INVALID, "data[a]")),
    ("configmaps", {"data": {"a": "x" * (1024 * 1024 + 1)}}, (TOO_LONG, "[]")),
    ("secrets", {"data": {"a b": "eA=="}}, (INVALID, "data[a b]")),
    ("secrets", {"stringData": {"a": "x" * (1024 * 1024 + 1)}}, (TOO_LONG, "data")),
    ("secrets", {"type": "kubernetes.io/tls", "data": {"tls.crt": "eA=="}}, (REQUIRED, "data[tls.key]")),
    ("secrets", {"type": "kubernetes.io/basic-auth"}, (REQUIRED, "data[username]")),
    ("secrets", {"type": "kubernetes.io/dockerconfigjson"}, (REQUIRED, "data[.dockerconfigjson]")),
]


@pytest.mark.parametrize(("plural", "content", "cause"), CONFIG_RULES)
def test_invalid_content_is_refused(
    api: KubeClient, space: str, plural: str, content: Json, cause: tuple[str, str]
) -> None:
    assert cause in causes_of(api.status_of("POST", f"{space}/{plural}", {"metadata": {"name": "one"}, **content}))


@pytest.mark.parametrize("plural", ["configmaps", "secrets"])
def test_immutable_field_is_not_changed(api: KubeClient, space: str, plural: str) -> None:
    api.create(f"{space}/{plural}", {"metadata": {"name": "one"}, "data": {"a": "eA=="}, "immutable": True})

    changed = api.status_of("PATCH", f"{space}/{plural}/one", {"data": {"a": "eQ=="}}, MERGE)
    freed = api.status_of("PATCH", f"{space}/{plural}/one", {"immutable": None}, MERGE)
    labelled = api.patch(f"{space}/{plural}/one", {"metadata": {"labels": {"a": "b"}}})

    assert causes_of(changed) == {(FORBIDDEN, "data")}
    assert causes_of(freed) == {(FORBIDDEN, "immutable")}
    assert labelled["metadata"]["labels"] == {"a": "b"}


def test_apply_is_validated_like_other_writes(api: KubeClient, space: str) -> None:
    body = put_at(a_job("one", "true", spec={"suspend": True}), "spec.parallelism", 100_001)

    refused = api.status_of("PATCH", f"{jobs_of(space)}/one?fieldManager=me", body, APPLY)

    assert (INVALID, "spec.parallelism") in causes_of(refused)


# Parameters

OPTION_RULES: list[tuple[str, str, str, Json | None, tuple[str, str]]] = [
    ("DELETE", "?propagationPolicy=Sideways", "DeleteOptions", None, (UNSUPPORTED, "propagationPolicy")),
    (
        "DELETE",
        "",
        "DeleteOptions",
        {"propagationPolicy": "Background", "orphanDependents": True},
        (INVALID, "propagationPolicy"),
    ),
    ("DELETE", "?dryRun=Some", "DeleteOptions", None, (UNSUPPORTED, "dryRun")),
    ("PATCH", "?dryRun=Some", "PatchOptions", {}, (UNSUPPORTED, "dryRun")),
    ("PATCH", "?force=true", "PatchOptions", {}, (FORBIDDEN, "force")),
    ("PATCH", "?fieldValidation=Never", "PatchOptions", {}, (UNSUPPORTED, "fieldValidation")),
    ("PATCH", f"?fieldManager={'x' * 129}", "PatchOptions", {}, (TOO_LONG, "fieldManager")),
]


@pytest.mark.parametrize(("method", "query", "kind", "body", "cause"), OPTION_RULES)
def test_invalid_query_parameters_are_refused(
    api: KubeClient, space: str, method: str, query: str, kind: str, body: Json | None, cause: tuple[str, str]
) -> None:
    api.create(f"{space}/configmaps", {"metadata": {"name": "one"}})

    refused = api.status_of(
        method, f"{space}/configmaps/one{query}", body, MERGE if method == "PATCH" else "application/json"
    )

    assert cause in causes_of(refused)
    assert (refused.status["details"]["group"], refused.status["details"]["kind"]) == ("meta.k8s.io", kind)


LIST_RULES = [
    ("resourceVersionMatch=Exact", (FORBIDDEN, "resourceVersionMatch")),
    ("resourceVersionMatch=Exact&resourceVersion=0", (FORBIDDEN, "resourceVersionMatch")),
    ("resourceVersionMatch=Nearly&resourceVersion=1", (UNSUPPORTED, "resourceVersionMatch")),
    ("sendInitialEvents=true&resourceVersionMatch=NotOlderThan", (FORBIDDEN, "sendInitialEvents")),
]


@pytest.mark.parametrize(("query", "cause"), LIST_RULES)
def test_inconsistent_list_parameters_are_refused(
    api: KubeClient, space: str, query: str, cause: tuple[str, str]
) -> None:
    assert cause in causes_of(api.status_of("GET", f"{space}/configmaps?{query}"))


def test_deletion_names_the_failed_precondition(api: KubeClient, space: str) -> None:
    created = api.create(f"{space}/configmaps", {"metadata": {"name": "one"}})

    refused = api.status_of("DELETE", f"{space}/configmaps/one", {"preconditions": {"uid": "other"}})

    uid = created["metadata"]["uid"]
    message = f"the UID in the precondition (other) does not match the UID in record ({uid}). "
    assert (refused.code, refused.reason) == (409, "Conflict")
    assert message in str(refused.status["message"])


# Nulls


def test_null_value_in_a_map_is_stored_as_empty(api: KubeClient, space: str) -> None:
    created = api.create(
        f"{space}/configmaps", {"metadata": {"name": "one", "labels": {"a": None}}, "data": {"b": None}}
    )
    refused = api.status_of("POST", f"{space}/pods", put_at(a_pod("one"), "spec.containers.0.env", [None]))

    assert (created["metadata"]["labels"], created["data"]) == ({"a": ""}, {"b": ""})
    assert causes_of(refused) == {(REQUIRED, "spec.containers[0].env[0].name")}


# Names, formats and protected objects


@pytest.mark.parametrize(("field", "value"), [("name", "two"), ("namespace", "elsewhere")])
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_body_with_another_name_than_its_path_is_refused(
    api: KubeClient, space: str, method: str, field: str, value: str
) -> None:
    created = api.create(f"{space}/configmaps", {"metadata": {"name": "one"}})
    body = {"metadata": {field: value}} if method == "PATCH" else put_at(created, f"metadata.{field}", value)

    refused = api.status_of(method, f"{space}/configmaps/one", body, MERGE if method == "PATCH" else "application/json")

    assert (refused.code, refused.reason) == (400, "BadRequest")
    assert f"the {field} of the object ({value}) does not match the {field} on the URL" in str(
        refused.status["message"]
    )


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
def test_protected_namespaces_are_not_deleted(api: KubeClient, name: str) -> None:
    refused = api.status_of("DELETE", f"/api/v1/namespaces/{name}?dryRun=All")

    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert refused.status["message"] == f'namespaces "{name}" is forbidden: this namespace may not be deleted'


def test_response_has_the_format_that_the_client_accepts(api: KubeClient, space: str) -> None:
    api.create(f"{space}/configmaps", {"metadata": {"name": "one"}, "data": {"a": "1"}})

    with api.accepting("application/yaml"):
        text = api.get(f"{space}/configmaps/one")
    with api.accepting("text/html"):
        refused = api.status_of("GET", f"{space}/configmaps/one")

    assert yaml.safe_load(text)["data"] == {"a": "1"}
    assert refused.code == 406


def test_collections_of_namespaces_are_not_deleted(api: KubeClient) -> None:
    assert api.status_of("DELETE", "/api/v1/namespaces?labelSelector=nobody=x").code == 405


# Values of another type

TYPE_RULES: list[tuple[str, Any, str]] = [
    ("spec.parallelism", "two", "cannot unmarshal string into Go struct field JobSpec.spec.parallelism of type int32"),
    ("spec.parallelism", 2**31, "into Go struct field JobSpec.spec.parallelism of type int32"),
    ("spec.activeDeadlineSeconds", 2**63, "into Go struct field JobSpec.spec.activeDeadlineSeconds of type int64"),
    (
        "spec.template.spec.containers.0.env",
        [{"name": "A", "value": 1}],
        "cannot unmarshal number into Go struct field EnvVar.spec.template.spec.containers.env.value of type string",
    ),
    (
        "spec.template.spec.containers.0.resources",
        {"limits": {"cpu": "a lot"}},
        "quantities must match the regular expression",
    ),
]


@pytest.mark.parametrize(("path", "value", "expected"), TYPE_RULES)
def test_value_of_another_type_is_refused_with_its_cause(
    api: KubeClient, space: str, path: str, value: Any, expected: str
) -> None:
    body = put_at(a_job("one", "true", spec={"suspend": True}), path, value)

    refused = api.status_of("POST", jobs_of(space), body)

    assert (refused.code, refused.reason) == (400, "BadRequest")
    assert str(refused.status["message"]).startswith('Job in version "v1" cannot be handled as a Job: ')
    assert expected in str(refused.status["message"])


# Status, claims and roles


def test_status_of_a_node_is_validated(api: KubeClient, node: str) -> None:
    refused = api.status_of("PATCH", f"{node}/status", {"status": {"capacity": {"cpu": "-1"}}}, MERGE)

    assert causes_of(refused) == {(INVALID, "status.capacity.cpu")}


def test_status_of_a_budget_is_validated(api: KubeClient, space: str) -> None:
    api.create(budgets_of(space), {"metadata": {"name": "one"}, "spec": {"minAvailable": 1}})

    refused = api.status_of("PATCH", f"{budgets_of(space)}/one/status", {"status": {"disruptionsAllowed": -1}}, MERGE)

    assert causes_of(refused) == {(INVALID, "status.disruptionsAllowed")}


def test_volume_claim_without_size_or_access_modes_is_refused(api: KubeClient, space: str) -> None:
    path = f"{space}/persistentvolumeclaims"

    refused = api.status_of("POST", path, {"metadata": {"name": "one"}, "spec": {}})
    created = api.create(path, a_claim("one"))
    fixed = api.status_of("PATCH", f"{path}/one", {"spec": {"accessModes": ["ReadWriteOnce"]}}, MERGE)

    assert causes_of(refused) == {(REQUIRED, "spec.accessModes"), (REQUIRED, "spec.resources[storage]")}
    assert created["spec"]["volumeMode"] == "Filesystem"
    assert causes_of(fixed) == {(FORBIDDEN, "spec")}


@pytest.mark.parametrize(
    ("rule", "cause"),
    [
        ({"apiGroups": [""], "resources": ["pods"]}, (REQUIRED, "rules[0].verbs")),
        ({"verbs": ["get"], "resources": ["pods"]}, (REQUIRED, "rules[0].apiGroups")),
        ({"verbs": ["get"], "apiGroups": [""]}, (REQUIRED, "rules[0].resources")),
        ({"verbs": ["get"], "nonResourceURLs": ["/metrics"]}, (INVALID, "rules[0].nonResourceURLs")),
    ],
)
def test_invalid_role_is_refused(api: KubeClient, space: str, rule: Json, cause: tuple[str, str]) -> None:
    path = space.replace("/api/v1", "/apis/rbac.authorization.k8s.io/v1") + "/roles"

    assert cause in causes_of(api.status_of("POST", path, {"metadata": {"name": "one"}, "rules": [rule]}))
