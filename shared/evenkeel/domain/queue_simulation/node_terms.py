"""Terms of Kubernetes about nodes, as documents write them: expressions of selectors, taints and tolerations."""

from typing import ClassVar, Literal

from evenkeel.domain.kueue.objects import FlavorToleration, Requirement
from evenkeel.domain.queue_simulation.documents import Document


class Expression(Document):
    """An expression of a label selector or of a node selector term."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] | None = None

    def to_requirement(self) -> Requirement:
        return Requirement(self.key, self.operator, self.values or ())


class NodeTaint(Document):
    """`ResourceFlavor.spec.nodeTaints[]`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"timeAdded"})
    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class PodToleration(Document):
    """`ResourceFlavor.spec.tolerations[]` and `PodSpec.tolerations[]`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"tolerationSeconds"})
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def to_toleration(self) -> FlavorToleration:
        return FlavorToleration(self.key, self.operator or "Equal", self.value, self.effect)
