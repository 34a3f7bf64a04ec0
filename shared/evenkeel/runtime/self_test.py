"""Self-test of a function: the clusters that it reaches and its rights in Kubernetes. It changes nothing.

Only the function itself has its role, its subnets and its settings, so only it can test them.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from evenkeel import __version__
from evenkeel.domain.plurals import count_of
from evenkeel.ports import EvenkeelError, KubernetesPermission
from evenkeel.runtime.wiring import Ports

Json = dict[str, Any]
_Identifier = Annotated[str, Field(max_length=100, pattern=r"^[a-z0-9./-]*$")]
_READ_NODE = KubernetesPermission("get", "", "nodes")
_ABSENT_NODE = "evenkeel-self-test"
"""Name of a node that does not exist. The API server must still read its store to answer."""


class _Model(BaseModel):
    """A part of the request; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class _Right(_Model):
    """A verb on a Kubernetes resource that the function needs."""

    verb: _Identifier
    group: _Identifier = ""
    resource: _Identifier
    namespace: _Identifier = ""


class SelfTestRequest(_Model):
    """The questions of a self-test. The function itself knows its clusters."""

    rights: tuple[_Right, ...] = Field((), max_length=500)
    """Rights that the function's role must have in every cluster."""
    reads_kueue: bool = False
    """Whether the role must also be able to find the namespaces in which Kueue admits jobs."""
    reads_policy: bool = False


def run(document: Any, ports: Ports) -> Json:
    """Return the running version, and for each cluster the missing rights, or why the cluster could not be tested.

    Idempotent: yes, because it changes nothing.
    """
    try:
        request = SelfTestRequest.model_validate(document)
    except ValidationError as error:
        return {"error": f"not a self-test: {count_of(error.error_count(), 'field is', 'fields are')} not valid"}
    rights = [
        KubernetesPermission(permission.verb, permission.group, permission.resource, permission.namespace)
        for permission in request.rights
    ]
    return {
        "version": __version__,
        "mode": ports.settings.mode.value,
        "admission": ports.settings.admission.value,
        "policy": _policy_document(ports) if request.reads_policy else None,
        "clusters": [_test_cluster(ports, name, rights, request) for name in ports.settings.kubernetes_clusters],
    }


def _test_cluster(ports: Ports, name: str, rights: list[KubernetesPermission], request: SelfTestRequest) -> Json:
    answer: Json = {"cluster": name, "serverVersion": "", "missing": [], "error": ""}
    answer |= {"kueueNamespaces": None, "kueueError": ""}
    try:
        answer["serverVersion"] = ports.cluster.server_version(name)
        missing_permissions = ports.cluster.missing_rights(name, rights)
        answer["missing"] = [
            {
                "verb": permission.verb,
                "group": permission.group,
                "resource": permission.resource,
                "namespace": permission.namespace,
            }
            for permission in missing_permissions
        ]
        if _READ_NODE in rights and _READ_NODE not in missing_permissions:
            # The server answers version and access reviews from memory. Only reading an object proves that it works.
            ports.cluster.node(name, _ABSENT_NODE)
    except EvenkeelError as error:
        return answer | {"error": _error_text(error)}
    if request.reads_kueue:
        try:
            answer["kueueNamespaces"] = dict(ports.cluster.kueue_namespaces(name))
        except EvenkeelError as error:
            answer["kueueError"] = _error_text(error)
    return answer


def _error_text(error: EvenkeelError) -> str:
    return f"{type(error).__name__}: {error}"


def _policy_document(ports: Ports) -> Json:
    try:
        policy_in_force = ports.policies.in_force()
    except EvenkeelError as error:
        return {"error": _error_text(error)}
    return {
        "name": ports.settings.policy_name,
        "hash": policy_in_force.policy.hash if policy_in_force.policy else None,
        "refused": policy_in_force.refused,
        "inForce": policy_in_force.number,
    }
