"""The EKS operations on access entries. The entries decide which Kubernetes user a principal is."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from evenkeel_local.gpu_cluster import aws_model
from evenkeel_local.gpu_cluster.aws_model import AwsError, Json
from evenkeel_local.gpu_cluster.config import AccessEntry, ClusterConfig

_PAGE = 100
OPERATIONS: Mapping[tuple[str, bool], str] = {
    ("GET", False): "ListAccessEntries",
    ("POST", False): "CreateAccessEntry",
    ("GET", True): "DescribeAccessEntry",
    ("POST", True): "UpdateAccessEntry",
    ("DELETE", True): "DeleteAccessEntry",
}
"""Operation by method, and by whether the path names a principal."""


class AccessEntriesApi:
    """Answers the operations on one cluster's access entries."""

    def __init__(self, config: ClusterConfig, entries: list[AccessEntry]) -> None:
        self._config = config
        self._entries = entries
        self._created_at: dict[str, float] = {}

    def answer(self, operation: str, principal: str, query: Mapping[str, str], body: Json) -> Json:
        """Return the answer of an operation, checked against botocore's model.

        Raises:
            AwsError: the request is refused.
        """
        model = aws_model.operation_model(aws_model.service_model("eks"), operation)
        principal_field = {"principalArn": principal} if principal else {}
        aws_model.check_input(model, {"clusterName": self._config.eks_cluster_name, **principal_field, **body})
        match operation:
            case "ListAccessEntries":
                entry_list = self._list(int(query.get("maxResults", _PAGE)), query.get("nextToken", ""))
            case "CreateAccessEntry":
                entry_list = {"accessEntry": self._create(body)}
            case "DescribeAccessEntry":
                entry_list = {"accessEntry": self._entry_json(self._find_entry(principal))}
            case "UpdateAccessEntry":
                entry_list = {"accessEntry": self._update(self._find_entry(principal), body)}
            case _:
                self._entries.remove(self._find_entry(principal))
                entry_list = {}
        problems = aws_model.output_problems(model, entry_list)
        if problems:
            raise AwsError("ServerException", f"the answer breaks the service model: {problems}", 500)
        return entry_list

    def _list(self, limit: int, token: str) -> Json:
        names = sorted(entry.principal_arn for entry in self._entries)
        start = int(token or 0)
        next_token_field = {"nextToken": str(start + limit)} if start + limit < len(names) else {}
        return {"accessEntries": names[start : start + limit], **next_token_field}

    def _create(self, body: Json) -> Json:
        principal = str(body["principalArn"])
        if any(entry.principal_arn == principal for entry in self._entries):
            message = f"The specified access entry resource is already in use on this cluster: {principal}"
            raise AwsError("ResourceInUseException", message, 409)
        entry = AccessEntry(
            principal_arn=principal,
            username=body.get("username"),
            kubernetes_groups=tuple(self._checked_groups(body)),
            tags=body.get("tags") or {},
        )
        self._entries.append(entry)
        self._created_at[principal] = time.time()
        return self._entry_json(entry)

    def _update(self, entry: AccessEntry, body: Json) -> Json:
        changed_entry = entry
        if "kubernetesGroups" in body:
            changed_entry = entry.model_copy(update={"kubernetes_groups": tuple(self._checked_groups(body))})
        self._entries[self._entries.index(entry)] = changed_entry
        return self._entry_json(changed_entry)

    def _checked_groups(self, body: Json) -> list[str]:
        groups: list[str] = body.get("kubernetesGroups") or []
        reserved_group = next((name for name in groups if name.startswith("system:")), None)
        if reserved_group:
            raise AwsError("InvalidParameterException", f"The kubernetes group name {reserved_group} is invalid", 400)
        return groups

    def _find_entry(self, principal: str) -> AccessEntry:
        for entry in self._entries:
            if entry.principal_arn == principal:
                return entry
        message = f"The specified principalArn could not be found: {principal}"
        raise AwsError("ResourceNotFoundException", message, 404)

    def _entry_json(self, entry: AccessEntry) -> Json:
        principal = entry.principal_arn
        at = self._created_at.get(principal, 0.0)
        kind, _, name = principal.rpartition(":")[2].partition("/")
        path = f"access-entry/{self._config.eks_cluster_name}/{kind}/{self._config.account}/{name}"
        document: dict[str, Any] = {
            "clusterName": self._config.eks_cluster_name,
            "principalArn": principal,
            "kubernetesGroups": list(entry.kubernetes_groups),
            "accessEntryArn": self._config.arn(f"{path}/{uuid.uuid5(uuid.NAMESPACE_URL, principal)}", "eks"),
            "createdAt": at,
            "modifiedAt": at,
            "tags": entry.tags,
            "type": "STANDARD",
        }
        return document | ({"username": entry.username} if entry.username else {})
