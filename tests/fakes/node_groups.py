"""The port NodeGroups in memory."""

from evenkeel.domain.nodes import INSTANCE_ID
from evenkeel.domain.recovery.node_groups import IN_SERVICE, GroupMember, NodeGroup
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.ports import Refused


class InMemoryNodeGroups:
    """Groups and their members, by name and instance id. A group replaces a terminated instance at once. If `is_slow`,
    it waits for `finish`.
    """

    def __init__(self, *, is_slow: bool = False) -> None:
        self.is_slow = is_slow
        self._groups: dict[str, NodeGroup] = {}
        self._members: dict[str, GroupMember] = {}
        self._launched = 0
        self.terminated: list[str] = []

    def add(self, group: NodeGroup) -> list[str]:
        """Add a group and launch its desired instances. Return their ids."""
        self._groups[group.name] = group
        return [self._launch(group.name) for _ in range(group.desired)]

    def put(self, member: GroupMember) -> None:
        """Set the membership of an instance. Add its group if that is new."""
        self._groups.setdefault(member.group.name, member.group)
        self._members[member.instance_id] = member

    def set_group(self, group: NodeGroup) -> None:
        """Change a group as its owner would."""
        self._groups[group.name] = group

    def finish(self) -> list[tuple[str, str]]:
        """End the terminations that are under way. Return each terminated instance with its replacement."""
        ending = [member for member in self._members.values() if member.lifecycle == "Terminating"]
        for member in ending:
            del self._members[member.instance_id]
        return [(member.instance_id, self._launch(member.group.name)) for member in ending]

    def member(self, instance_id: str) -> GroupMember | None:
        _check(instance_id)
        group_member = self._members.get(instance_id)
        group = self.group(group_member.group.name) if group_member else None
        return group_member.replace(group=group) if group_member and group else None

    def group(self, name: str) -> NodeGroup | None:
        node_group = self._groups.get(name)
        members = [member for member in self._members.values() if member.group.name == name]
        return (
            node_group.replace(in_service=sum(member.lifecycle == IN_SERVICE for member in members))
            if node_group
            else None
        )

    def terminate(self, instance_id: str) -> RepairAnswer:
        _check(instance_id)
        group_member = self._members.get(instance_id)
        if group_member is None:
            return RepairAnswer.NO_SUCH_NODE
        self.terminated.append(instance_id)
        self._members[instance_id] = group_member.replace(lifecycle="Terminating")
        if not self.is_slow:
            self.finish()
        return RepairAnswer.ACCEPTED

    def _launch(self, name: str) -> str:
        self._launched += 1
        instance_id = f"i-{0xA00000 + self._launched:017x}"
        self._members[instance_id] = GroupMember(
            instance_id=instance_id, group=self._groups[name], lifecycle=IN_SERVICE
        )
        return instance_id


def _check(instance_id: str) -> None:
    if INSTANCE_ID.fullmatch(instance_id) is None:
        raise Refused(f"{instance_id!r} is not an instance id")
