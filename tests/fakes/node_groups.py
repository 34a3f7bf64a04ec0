"""The port NodeGroups in memory: a group launches another instance as soon as one is terminated."""

from evenkeel.domain.nodes import INSTANCE_ID
from evenkeel.domain.recovery.node_groups import IN_SERVICE, GroupMember, NodeGroup
from evenkeel.ports import Refused, RepairAnswer


class InMemoryNodeGroups:
    """Groups and their members, by name and instance id."""

    def __init__(self) -> None:
        self._groups: dict[str, NodeGroup] = {}
        self._members: dict[str, GroupMember] = {}
        self._launched = 0
        self.terminated: list[str] = []

    def add(self, group: NodeGroup) -> list[str]:
        """Add a group and launch its desired instances. Return their ids."""
        self._groups[group.name] = group
        return [self._launch(group.name) for _ in range(group.desired)]

    def member(self, instance_id: str) -> GroupMember | None:
        _check(instance_id)
        found = self._members.get(instance_id)
        group = self.group(found.group.name) if found else None
        return found.but(group=group) if found and group else None

    def group(self, name: str) -> NodeGroup | None:
        found = self._groups.get(name)
        members = [each for each in self._members.values() if each.group.name == name]
        return found.but(in_service=sum(each.lifecycle == IN_SERVICE for each in members)) if found else None

    def terminate(self, instance_id: str) -> RepairAnswer:
        _check(instance_id)
        found = self._members.pop(instance_id, None)
        if found is None:
            return RepairAnswer.NO_SUCH_NODE
        self.terminated.append(instance_id)
        self._launch(found.group.name)
        return RepairAnswer.ACCEPTED

    def _launch(self, name: str) -> str:
        self._launched += 1
        instance_id = f"i-{self._launched:017x}"
        self._members[instance_id] = GroupMember(
            instance_id=instance_id, group=self._groups[name], lifecycle=IN_SERVICE
        )
        return instance_id


def _check(instance_id: str) -> None:
    if INSTANCE_ID.fullmatch(instance_id) is None:
        raise Refused(f"{instance_id!r} is not an instance id")
