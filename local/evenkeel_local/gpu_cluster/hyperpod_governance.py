"""Task governance: compute quotas and scheduler configurations, with versions as optimistic locks."""

from __future__ import annotations

import secrets
import string
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from evenkeel_local.gpu_cluster.aws_model import AwsError, Json, paged_answer
from evenkeel_local.gpu_cluster.config import ClusterConfig

SETTLE_SECONDS = 0.2
"""Duration of Creating, Updating and Deleting."""
_ALPHABET = string.ascii_lowercase + string.digits


@dataclass
class GovernanceItem:
    """One quota or configuration."""

    name: str
    parts: Json
    id: str = field(default_factory=lambda: "".join(secrets.choice(_ALPHABET) for _ in range(12)))
    version: int = 1
    status: str = "Creating"
    created_at: float = field(default_factory=time.time)
    modified_at: float = field(default_factory=time.time)
    failure: str = ""


class Governance:
    """The operations on compute quotas or on scheduler configurations; they differ only in names."""

    def __init__(
        self,
        config: ClusterConfig,
        stem: str,
        arn_part: str,
        parts: tuple[str, ...],
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._config = config
        self._stem = stem
        self._arn_part = arn_part
        self._parts = parts
        self._later = later
        self.items: dict[str, GovernanceItem] = {}

    def _arn(self, item: GovernanceItem) -> str:
        return self._config.arn(f"{self._arn_part}/{item.id}")

    def _find(self, body: Json) -> GovernanceItem:
        identifier = body[f"{self._stem}Id"]
        item = self.items.get(identifier)
        if item is None:
            raise AwsError("ResourceNotFound", f"{self._stem} with ID {identifier} does not exist.")
        return item

    def _finish_later(self, item: GovernanceItem, status: str) -> None:
        def end() -> None:
            if item.status in ("Creating", "Updating", "Deleting"):
                item.status = status
            if item.status == "Deleted":
                self.items.pop(item.id, None)

        self._later(SETTLE_SECONDS, end)

    def create(self, body: Json) -> Json:
        """Create an item."""
        if body["ClusterArn"] != self._config.cluster_arn:
            raise AwsError("ValidationException", f"Cluster {body['ClusterArn']} does not exist.")
        if any(item.name == body["Name"] for item in self.items.values()):
            raise AwsError("ConflictException", f"{self._stem} with name {body['Name']} already exists.")
        if self._stem == "ClusterSchedulerConfig" and self.items:
            raise AwsError("ConflictException", "The cluster already has a scheduler configuration.")
        if self._stem == "ComputeQuota":
            team = body["ComputeQuotaTarget"]["TeamName"]
            if any(item.parts["ComputeQuotaTarget"]["TeamName"] == team for item in self.items.values()):
                raise AwsError("ConflictException", f"Team {team} already has a compute quota on this cluster.")
        item = GovernanceItem(body["Name"], {key: body[key] for key in (*self._parts, "Description") if key in body})
        self.items[item.id] = item
        self._finish_later(item, "Created")
        return {f"{self._stem}Arn": self._arn(item), f"{self._stem}Id": item.id}

    def describe(self, body: Json) -> Json:
        """Describe the current version; older versions are not kept."""
        item = self._find(body)
        version = body.get(f"{self._stem}Version")
        if version is not None and version != item.version:
            raise AwsError("ResourceNotFound", f"Version {version} of {self._stem} {item.id} does not exist.")
        answer = {**self._summary(item), **item.parts}
        if item.failure:
            answer["FailureReason"] = item.failure
        return answer

    def _summary(self, item: GovernanceItem) -> Json:
        return {
            f"{self._stem}Arn": self._arn(item),
            f"{self._stem}Id": item.id,
            "Name": item.name,
            f"{self._stem}Version": item.version,
            "Status": item.status,
            "ClusterArn": self._config.cluster_arn,
            "CreationTime": item.created_at,
            "LastModifiedTime": item.modified_at,
        }

    def list(self, body: Json) -> Json:
        """List the items."""
        governance_items = list(self.items.values())
        if name_part := body.get("NameContains"):
            governance_items = [item for item in governance_items if name_part in item.name]
        if status := body.get("Status"):
            governance_items = [item for item in governance_items if item.status == status]
        if (arn := body.get("ClusterArn")) and arn != self._config.cluster_arn:
            governance_items = []
        keys: dict[str, Callable[[GovernanceItem], Any]] = {"Name": lambda t: t.name, "Status": lambda t: t.status}
        governance_items.sort(
            key=keys.get(body.get("SortBy", ""), lambda t: t.created_at),
            reverse=body.get("SortOrder") == "Descending",
        )
        return paged_answer(f"{self._stem}Summaries", governance_items, body, self._stem, self._list_entry)

    def _list_entry(self, item: GovernanceItem) -> Json:
        parts = {} if self._stem == "ClusterSchedulerConfig" else item.parts
        return self._summary(item) | {key: value for key, value in parts.items() if key != "Description"}

    def update(self, body: Json) -> Json:
        """Change an item; `TargetVersion` must be its current version."""
        item = self._find(body)
        if body["TargetVersion"] != item.version:
            raise AwsError(
                "ConflictException",
                f"TargetVersion {body['TargetVersion']} is not the latest version {item.version} of {item.id}.",
            )
        if item.status in ("Creating", "Updating", "Deleting"):
            raise AwsError("ConflictException", f"{self._stem} {item.id} is in status {item.status}.")
        item.parts.update({key: body[key] for key in (*self._parts, "Description") if key in body})
        item.version += 1
        item.status, item.modified_at = "Updating", time.time()
        self._finish_later(item, "Updated")
        return {f"{self._stem}Arn": self._arn(item), f"{self._stem}Version": item.version}

    def delete(self, body: Json) -> Json:
        """Delete an item."""
        item = self._find(body)
        item.status = "Deleting"
        self._finish_later(item, "Deleted")
        return {}
