"""Callers of both API servers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AccessScope:
    """A cluster role that an EKS access policy gives, in some namespaces or in all."""

    role: str
    namespaces: tuple[str, ...] | None = None


@dataclass(frozen=True)
class User:
    """A Kubernetes user as the authenticator names it."""

    name: str
    groups: tuple[str, ...] = ()
    arn: str | None = None
    access: tuple[AccessScope, ...] = ()

    @property
    def is_master(self) -> bool:
        """Whether the user is a member of `system:masters`, which may do everything."""
        return "system:masters" in self.groups


ADMIN = User("kubernetes-admin", ("system:masters", "system:authenticated"))
