"""What a function can reach and may do in Kubernetes, tried by the function itself. Reads only.

Only the function has its role, its subnets and its settings, so no other place can give a true answer.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from evenkeel import __version__
from evenkeel.domain.policy import resolve_policy
from evenkeel.ports import EvenkeelError, KubernetesPermission
from evenkeel.runtime.wiring import World

Json = dict[str, Any]
_Identifier = Annotated[str, Field(max_length=100, pattern=r"^[a-z0-9./-]*$")]
_READ_NODE = KubernetesPermission("get", "", "nodes")
_NO_NODE = "evenkeel-self-test"
"""A name that no node has: the server looks it up in its store all the same."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class _Right(_Model):
    verb: _Identifier
    group: _Identifier = ""
    resource: _Identifier
    namespace: _Identifier = ""


class Request(_Model):
    """What the caller wants to know. The function itself knows its clusters."""

    rights: tuple[_Right, ...] = Field((), max_length=500)
    """Rights that the function's role must have in every cluster."""
    reads_kueue: bool = False
    """Whether the role must also be able to learn which namespaces are Kueue's."""
    reads_policy: bool = False


def run(document: Any, world: World) -> Json:
    """Return the versions that run here, and for each cluster what was refused, or why it could not be asked.

    Idempotent: yes, it changes nothing.
    """
    try:
        request = Request.model_validate(document)
    except ValidationError as error:
        return {"error": f"not a self-test: {error.error_count()} fields cannot be used"}
    rights = [KubernetesPermission(one.verb, one.group, one.resource, one.namespace) for one in request.rights]
    return {
        "version": __version__,
        "mode": world.settings.mode.value,
        "admission": world.settings.admission.value,
        "policy": _policy(world) if request.reads_policy else None,
        "clusters": [_cluster(world, name, rights, request) for name in world.settings.kubernetes_clusters],
    }


def _cluster(world: World, name: str, rights: list[KubernetesPermission], request: Request) -> Json:
    found: Json = {"cluster": name, "serverVersion": "", "missing": [], "error": ""}
    found |= {"kueueNamespaces": None, "kueueError": ""}
    try:
        found["serverVersion"] = world.cluster.server_version(name)
        missing = world.cluster.missing_rights(name, rights)
        found["missing"] = [
            {"verb": one.verb, "group": one.group, "resource": one.resource, "namespace": one.namespace}
            for one in missing
        ]
        if _READ_NODE in rights and _READ_NODE not in missing:
            # Version and access reviews are answered from memory: only an object proves that the server can serve.
            world.cluster.node(name, _NO_NODE)
    except EvenkeelError as error:
        return found | {"error": _error_text(error)}
    if request.reads_kueue:
        try:
            found["kueueNamespaces"] = dict(world.cluster.kueue_namespaces(name))
        except EvenkeelError as error:
            found["kueueError"] = _error_text(error)
    return found


def _error_text(error: EvenkeelError) -> str:
    return f"{type(error).__name__}: {error}"


def _policy(world: World) -> Json:
    try:
        policy, change = world.policy, world.policies.change
        found = resolve_policy(world.policies.base, change)
    except EvenkeelError as error:
        return {"error": _error_text(error)}
    return {
        "name": world.settings.policy_name,
        "hash": policy.hash,
        "refused": found.refused or "",
        "inForce": found.number,
    }
