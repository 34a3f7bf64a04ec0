"""Checks of a pod's spec and of its changes.

Source: `pkg/apis/core/validation` of Kubernetes 1.33.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.quantities import parse_quantity
from evenkeel_local.gpu_cluster.store import clone
from evenkeel_local.gpu_cluster.validation import names
from evenkeel_local.gpu_cluster.validation.causes import (
    Cause,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    one_of,
    quoted,
    required,
)
from evenkeel_local.gpu_cluster.validation.containers import check_containers

RESTART_POLICIES = ("Always", "OnFailure", "Never")
DNS_POLICIES = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
LONGEST_DEADLINE = 2**31 - 1
NODE_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_CHANGEABLE_FIELDS = (
    "`spec.containers[*].image`",
    "`spec.initContainers[*].image`",
    "`spec.activeDeadlineSeconds`",
    "`spec.tolerations` (only additions to existing tolerations)",
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
)
CHANGEABLE = f"pod updates may not change fields other than {','.join(_CHANGEABLE_FIELDS)}"


def check_pod(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a pod."""
    yield from check_pod_spec(obj.get("spec") or {}, "spec")


def check_pod_template(template: Obj, path: str) -> Iterator[Cause]:
    """Yield the problems of the pod template of a Job or Deployment."""
    metadata = template.get("metadata") or {}
    yield from names.check_labels(metadata.get("labels"), f"{path}.labels")
    for key in metadata.get("annotations") or {}:
        yield from names.causes(f"{path}.annotations", key, names.qualified_name_errors(key.lower()))
    yield from check_pod_spec(template.get("spec") or {}, f"{path}.spec")


def check_pod_spec(spec: Obj, path: str) -> Iterator[Cause]:
    """Yield the problems of a pod's spec."""
    yield from _check_volumes(spec.get("volumes") or (), f"{path}.volumes")
    yield from check_containers(spec, path)
    yield from one_of(f"{path}.restartPolicy", spec.get("restartPolicy"), RESTART_POLICIES, sort=False)
    yield from one_of(f"{path}.dnsPolicy", spec.get("dnsPolicy"), DNS_POLICIES)
    yield from names.check_labels(spec.get("nodeSelector"), f"{path}.nodeSelector")
    yield from _check_affinity(spec.get("affinity") or {}, f"{path}.affinity")
    for number, secret in enumerate(spec.get("imagePullSecrets") or ()):
        if not secret.get("name"):
            yield required(f"{path}.imagePullSecrets[{number}].name")
    for number, rule in enumerate(spec.get("topologySpreadConstraints") or ()):
        yield from _check_spread(rule, f"{path}.topologySpreadConstraints[{number}]")
    for field in ("serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"):
        if value := spec.get(field):
            yield from names.causes(f"{path}.{field}", value, names.subdomain_errors(value))
    seconds = spec.get("activeDeadlineSeconds")
    if seconds is not None and not 1 <= seconds <= LONGEST_DEADLINE:
        yield invalid(f"{path}.activeDeadlineSeconds", seconds, _between(1, LONGEST_DEADLINE))
    for field in ("hostname", "subdomain"):
        if value := spec.get(field):
            yield from names.causes(f"{path}.{field}", value, names.label_errors(value))
    yield from check_tolerations(spec.get("tolerations") or (), f"{path}.tolerations")
    policies = ("Never", "PreemptLowerPriority")
    yield from one_of(f"{path}.preemptionPolicy", spec.get("preemptionPolicy"), policies)


def _between(minimum: int, maximum: int) -> str:
    return f"must be between {minimum} and {maximum}, inclusive"


# Volumes


def _check_volumes(volumes: Iterable[Obj], path: str) -> Iterator[Cause]:
    volume_names: set[str] = set()
    for number, volume in enumerate(volumes):
        at, name = f"{path}[{number}]", volume.get("name") or ""
        sources = [source for source, value in volume.items() if source != "name" and value is not None]
        for source in sources[1:]:
            yield forbidden(f"{at}.{source}", "may not specify more than 1 volume type")
        if not sources:
            yield required(at, "must specify a volume type")
        yield from _check_volume_source(volume, at)
        yield from names.check_required(f"{at}.name", name, names.label_errors)
        if name and name in volume_names:
            yield duplicate(f"{at}.name", name)
        volume_names.add(name)


def _check_volume_source(volume: Obj, at: str) -> Iterator[Cause]:
    for source, field in (
        ("hostPath", "path"),
        ("persistentVolumeClaim", "claimName"),
        ("configMap", "name"),
        ("secret", "secretName"),
    ):
        if volume.get(source) is not None and not volume[source].get(field):
            yield required(f"{at}.{source}.{field}")
    if ".." in ((volume.get("hostPath") or {}).get("path") or "").split("/"):
        yield invalid(f"{at}.hostPath.path", volume["hostPath"]["path"], "must not contain '..'")
    limit = (volume.get("emptyDir") or {}).get("sizeLimit")
    if limit is not None and parse_quantity(limit) < 0:
        yield forbidden(f"{at}.emptyDir.sizeLimit", "SizeLimit field must be a valid resource quantity")


# Placement


def check_tolerations(tolerations: Iterable[Obj], path: str) -> Iterator[Cause]:
    """Yield the problems of tolerations."""
    for number, toleration in enumerate(tolerations):
        at = f"{path}[{number}]"
        key, operator = toleration.get("key") or "", toleration.get("operator") or ""
        value, effect = toleration.get("value") or "", toleration.get("effect") or ""
        if key:
            yield from names.causes(f"{at}.key", key, names.qualified_name_errors(key))
        elif operator != "Exists":
            rule = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            yield invalid(f"{at}.operator", operator, rule)
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            yield invalid(f"{at}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
        if operator in ("Equal", ""):
            yield from names.causes(
                f"{at}.operator", value, [";".join(reasons)] if (reasons := names.label_value_errors(value)) else ()
            )
        elif operator != "Exists":
            yield not_supported(f"{at}.operator", operator, ("Equal", "Exists"))
        elif value:
            yield invalid(f"{at}.operator", toleration, "value must be empty when `operator` is 'Exists'")
        if effect:
            yield from one_of(f"{at}.effect", effect, EFFECTS, sort=False)


def check_taints(taints: Iterable[Obj], path: str) -> Iterator[Cause]:
    """Yield the problems of a node's taints."""
    keys: set[tuple[str, str]] = set()
    for number, taint in enumerate(taints):
        at, key, effect = f"{path}[{number}]", taint.get("key") or "", taint.get("effect") or ""
        yield from names.causes(f"{at}.key", key, names.qualified_name_errors(key))
        if reasons := names.label_value_errors(taint.get("value") or ""):
            yield invalid(f"{at}.value", taint["value"], ";".join(reasons))
        if not effect:
            yield required(f"{at}.effect")
        else:
            yield from one_of(f"{at}.effect", effect, EFFECTS, sort=False)
        if (key, effect) in keys:
            yield duplicate(at, taint, "taints must be unique by key and effect pair")
        keys.add((key, effect))


def _check_affinity(affinity: Obj, path: str) -> Iterator[Cause]:
    node = affinity.get("nodeAffinity") or {}
    required_field = "requiredDuringSchedulingIgnoredDuringExecution"
    preferred_field = "preferredDuringSchedulingIgnoredDuringExecution"
    if (terms := node.get(required_field)) is not None:
        at = f"{path}.nodeAffinity.{required_field}.nodeSelectorTerms"
        if not terms.get("nodeSelectorTerms"):
            yield required(at, "must have at least one node selector term")
        for number, term in enumerate(terms.get("nodeSelectorTerms") or ()):
            yield from _check_node_term(term, f"{at}[{number}]")
    for number, choice in enumerate(node.get(preferred_field) or ()):
        at = f"{path}.nodeAffinity.{preferred_field}[{number}]"
        yield from _check_weight(choice, at)
        yield from _check_node_term(choice.get("preference") or {}, f"{at}.preference")
    for section in ("podAffinity", "podAntiAffinity"):
        for number, term in enumerate((affinity.get(section) or {}).get(required_field) or ()):
            yield from _check_pod_term(term, f"{path}.{section}.{required_field}[{number}]")
        for number, choice in enumerate((affinity.get(section) or {}).get(preferred_field) or ()):
            at = f"{path}.{section}.{preferred_field}[{number}]"
            yield from _check_weight(choice, at)
            yield from _check_pod_term(choice.get("podAffinityTerm") or {}, f"{at}.podAffinityTerm")


def _check_weight(choice: Obj, at: str) -> Iterator[Cause]:
    weight = choice.get("weight") or 0
    if not 1 <= weight <= 100:
        yield invalid(f"{at}.weight", weight, "must be in the range 1-100")


def _check_node_term(term: Obj, path: str) -> Iterator[Cause]:
    for number, expression in enumerate(term.get("matchExpressions") or ()):
        at = f"{path}.matchExpressions[{number}]"
        operator, values = expression.get("operator") or "", expression.get("values") or []
        if operator in ("In", "NotIn") and not values:
            yield required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ("Exists", "DoesNotExist") and values:
            yield forbidden(f"{at}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
        elif operator in ("Gt", "Lt") and len(values) != 1:
            yield required(f"{at}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
        elif operator not in NODE_OPERATORS:
            yield invalid(f"{at}.operator", operator, "not a valid selector operator")
        key = expression.get("key") or ""
        yield from names.causes(f"{at}.key", key, names.qualified_name_errors(key))


def _check_pod_term(term: Obj, at: str) -> Iterator[Cause]:
    yield from names.check_selector(term.get("labelSelector"), f"{at}.labelSelector")
    key = term.get("topologyKey") or ""
    if not key:
        yield required(f"{at}.topologyKey", "can not be empty")
    yield from names.causes(f"{at}.topologyKey", key, names.qualified_name_errors(key))


def _check_spread(rule: Obj, at: str) -> Iterator[Cause]:
    skew, key = rule.get("maxSkew") or 0, rule.get("topologyKey") or ""
    if skew <= 0:
        yield invalid(f"{at}.maxSkew", skew, "must be greater than zero")
    yield from names.check_required(f"{at}.topologyKey", key, names.qualified_name_errors, "can not be empty")
    unsatisfiable_action = rule.get("whenUnsatisfiable") or ""
    yield from one_of(f"{at}.whenUnsatisfiable", unsatisfiable_action, ("DoNotSchedule", "ScheduleAnyway"))
    yield from names.check_selector(rule.get("labelSelector"), f"{at}.labelSelector")


# Changes


def check_pod_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    """Yield the problems of a change of a pod. The server checks only what may change."""
    new_spec, old_spec = obj["spec"], old["spec"]
    for section in ("containers", "initContainers"):
        if len(new_spec.get(section) or ()) != len(old_spec.get(section) or ()):
            yield forbidden(f"spec.{section}", "pod updates may not add or remove containers")
            return
        for number, container in enumerate(new_spec.get(section) or ()):
            if not container.get("image"):
                yield required(f"spec.{section}[{number}].image")
    yield from check_tolerations(new_spec.get("tolerations") or (), "spec.tolerations")
    old_seconds, new_seconds = old_spec.get("activeDeadlineSeconds"), new_spec.get("activeDeadlineSeconds")
    if old_seconds is not None and new_seconds is None:
        message = "must not update from a positive integer to nil value"
        yield invalid("spec.activeDeadlineSeconds", None, message)
    elif old_seconds is not None and new_seconds > old_seconds:
        yield invalid("spec.activeDeadlineSeconds", new_seconds, "must be less than or equal to previous value")
    new_tolerations = [_without_seconds(item) for item in new_spec.get("tolerations") or ()]
    if any(_without_seconds(item) not in new_tolerations for item in old_spec.get("tolerations") or ()):
        message = "existing toleration can not be modified except its tolerationSeconds"
        yield forbidden("spec.tolerations", message)
    gates = {gate.get("name") for gate in old_spec.get("schedulingGates") or ()}
    added_gates = {gate.get("name") for gate in new_spec.get("schedulingGates") or ()} - gates
    if added_gates:
        message = (
            f"only deletion is allowed, but found new scheduling gates '{','.join(sorted(map(str, added_gates)))}'"
        )
        yield forbidden("spec.schedulingGates", message)
    if _fixed_part(new_spec, is_gated=bool(gates)) != _fixed_part(old_spec, is_gated=bool(gates)):
        yield forbidden("spec", CHANGEABLE)


def _without_seconds(toleration: Obj) -> str:
    return quoted({key: value for key, value in sorted(toleration.items()) if key != "tolerationSeconds"})


def _fixed_part(spec: Obj, *, is_gated: bool) -> Any:
    fixed_spec = clone(spec)
    for container in [*(fixed_spec.get("containers") or ()), *(fixed_spec.get("initContainers") or ())]:
        container.pop("image", None)
    for field in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
        fixed_spec.pop(field, None)
    if is_gated:  # a gated pod may still be sent to other nodes
        for field in ("nodeSelector", "affinity"):
            fixed_spec.pop(field, None)
    return fixed_spec
