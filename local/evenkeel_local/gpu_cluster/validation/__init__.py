"""The checks that lead to status 422: one module for each family of kinds.

There are only rules that matter to clients of a GPU cluster. Everything else is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.store import TypeKey
from evenkeel_local.gpu_cluster.validation import budgets, configs, jobs, other_kinds, pods, replicas
from evenkeel_local.gpu_cluster.validation.causes import Cause

Check = Callable[[Obj], Iterator[Cause]]
UpdateCheck = Callable[[Obj, Obj], Iterator[Cause]]

CHECKS: dict[TypeKey, Check] = {
    catalogue.PODS.key: pods.check_pod,
    catalogue.JOBS.key: jobs.check_job,
    catalogue.DEPLOYMENTS.key: replicas.check_deployment,
    catalogue.REPLICA_SETS.key: replicas.check_replicas,
    catalogue.CONFIG_MAPS.key: configs.check_config_map,
    catalogue.SECRETS.key: configs.check_secret,
    catalogue.NODES.key: other_kinds.check_node,
    catalogue.SERVICES.key: other_kinds.check_service,
    catalogue.PRIORITY_CLASSES.key: other_kinds.check_priority,
    catalogue.RESOURCE_QUOTAS.key: other_kinds.check_quota,
    catalogue.LIMIT_RANGES.key: other_kinds.check_limits,
    catalogue.BUDGETS.key: budgets.check_budget,
    catalogue.VOLUME_CLAIMS.key: other_kinds.check_claim,
    catalogue.ROLES.key: other_kinds.check_role,
    catalogue.CLUSTER_ROLES.key: other_kinds.check_role,
    catalogue.ROLE_BINDINGS.key: other_kinds.check_binding,
    catalogue.CLUSTER_ROLE_BINDINGS.key: other_kinds.check_binding,
    catalogue.DEFINITIONS.key: other_kinds.check_definition,
}
"""Checks of a whole object, at its creation and after each change."""
STATUS_CHECKS: dict[TypeKey, Check] = {
    catalogue.JOBS.key: jobs.check_job_status,
    catalogue.NODES.key: other_kinds.check_node,
    catalogue.BUDGETS.key: other_kinds.check_budget_status,
}
"""Checks after a change of the status."""
JUDGED_ONCE = frozenset({catalogue.PODS.key})
"""Kinds whose objects are checked as a whole only at their creation."""
UPDATE_CHECKS: dict[TypeKey, UpdateCheck] = {
    catalogue.PODS.key: pods.check_pod_update,
    catalogue.JOBS.key: jobs.check_job_update,
    catalogue.DEPLOYMENTS.key: replicas.check_selector_update,
    catalogue.REPLICA_SETS.key: replicas.check_selector_update,
    catalogue.CONFIG_MAPS.key: configs.check_config_map_update,
    catalogue.SECRETS.key: configs.check_secret_update,
    catalogue.NODES.key: other_kinds.check_node_update,
    catalogue.VOLUME_CLAIMS.key: other_kinds.check_claim_update,
    catalogue.PRIORITY_CLASSES.key: other_kinds.check_priority_update,
    catalogue.ROLE_BINDINGS.key: other_kinds.check_binding_update,
    catalogue.CLUSTER_ROLE_BINDINGS.key: other_kinds.check_binding_update,
}
"""Checks of a change from one version to the next."""
