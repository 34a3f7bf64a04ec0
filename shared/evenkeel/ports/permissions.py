"""Rights in a Kubernetes cluster."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KubernetesPermission:
    """A verb on one kind of Kubernetes object."""

    verb: str
    group: str
    """API group; empty for the core group."""
    resource: str
    """Plural name, with its subresource: `pods/eviction`."""
    namespace: str = ""
    """Empty for the whole cluster."""

    @property
    def refusal(self) -> str:
        """The words with which an API server refuses it, with Evenkeel as the user."""
        scope = f' in the namespace "{self.namespace}"' if self.namespace else " at the cluster scope"
        return f'Evenkeel cannot {self.verb} resource "{self.resource}" in API group "{self.group}"{scope}'
