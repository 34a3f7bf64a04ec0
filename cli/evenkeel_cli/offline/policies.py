"""Read a site's policy file, and check it as the service does."""

import importlib.resources
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from evenkeel.domain.economics import price_checks
from evenkeel.domain.policy import Policy, PolicyError, changed
from evenkeel_cli.yaml_files import load_all
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]


def load_policy(file: Path | None, base: str = "production") -> Policy:
    """Read the shipped policy, changed by a site's policy file.

    Raises:
        CommandFailed: the file cannot be read, or its content is not a policy.
    """
    shipped_file = importlib.resources.files("evenkeel").joinpath("policy", f"{base}.json")
    if not shipped_file.is_file():
        raise CommandFailed(Exit.USAGE, f"There is no policy {base!r}. Use production or local.", code="USAGE")
    policy = Policy.model_validate_json(shipped_file.read_bytes())
    if file is None:
        return policy
    try:
        return changed(policy, read_site_changes(file))
    except PolicyError as error:
        raise CommandFailed(Exit.USAGE, f"{file}: {error}", code="POLICY_REFUSED") from error


def read_site_changes(file: Path) -> Json:
    """Read a site's policy file.

    Raises:
        CommandFailed: it cannot be read, or is not one object in YAML or JSON.
    """
    documents = load_all(file)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise CommandFailed(Exit.USAGE, f"{file} must hold one object: the changes of the policy.", code="NOT_A_POLICY")
    return dict(documents[0])


def differences(policy: Policy, base: str = "production") -> list[tuple[str, str, str]]:
    """Return the differences between the shipped policy and this policy: field, shipped value, own value."""
    shipped_values, site_values = _leaves(load_policy(None, base).to_json()), _leaves(policy.to_json())
    names = sorted(shipped_values.keys() | site_values.keys())
    return [
        (name, shipped_values.get(name, "–"), site_values.get(name, "–"))
        for name in names
        if shipped_values.get(name) != site_values.get(name)
    ]


def value_warnings(policy: Policy, now: datetime) -> list[Json]:
    """Return warnings about prices and instance types that are valid but improbable."""
    pools = policy.burst.pools
    problems = (
        *price_checks.price_warnings(policy.economy, pools, now),
        *price_checks.type_warnings(policy.instance_types, policy.economy, pools, now),
    )
    return [warning.to_json() for warning in problems]


def _leaves(value: Any, path: str = "") -> dict[str, str]:
    if isinstance(value, dict):
        leaves: dict[str, str] = {}
        for name, member in value.items():
            if member is not None:
                leaves |= _leaves(member, f"{path}.{name}" if path else name)
        return leaves
    return {path: value if isinstance(value, str) else json.dumps(value)}
