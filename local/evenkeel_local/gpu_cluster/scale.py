"""The subresource `scale`: reads and writes the number of replicas of an object."""

from __future__ import annotations

from evenkeel_local.gpu_cluster import errors
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.printers import at_path
from evenkeel_local.gpu_cluster.store import ScalePaths, clone, name_of

IDENTITY = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(paths: ScalePaths, obj: Obj) -> Obj:
    """Return the `Scale` of an object."""
    selector = at_path(obj, paths.selector) if paths.selector else None
    status: Obj = {"replicas": int(at_path(obj, paths.status_replicas) or 0)}
    if selector:
        status["selector"] = selector if isinstance(selector, str) else _selector_text(selector)
    replicas = int(at_path(obj, paths.spec_replicas) or 0)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {field: obj["metadata"][field] for field in IDENTITY if field in obj["metadata"]},
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def with_replicas(paths: ScalePaths, obj: Obj, scale: Obj) -> Obj:
    """Return an object with the number of replicas of a `Scale`, and its version as the precondition.

    Raises:
        ApiError: 422 for an invalid number.
    """
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        message = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise errors.invalid("autoscaling", "Scale", name_of(obj), [("FieldValueInvalid", "spec.replicas", message)])
    new: Obj = clone(obj)
    if version := (scale.get("metadata") or {}).get("resourceVersion"):
        new["metadata"]["resourceVersion"] = version
    *parents, last = paths.spec_replicas.strip(".").split(".")
    node = new
    for name in parents:
        node = node.setdefault(name, {})
    node[last] = replicas
    return new


def _selector_text(selector: Obj) -> str:
    terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or ():
        key, operator = term["key"], term["operator"]
        if operator in ("In", "NotIn"):
            terms.append(f"{key} {operator.lower()} ({','.join(sorted(term['values']))})")
        else:
            terms.append(key if operator == "Exists" else f"!{key}")
    return ",".join(terms)
