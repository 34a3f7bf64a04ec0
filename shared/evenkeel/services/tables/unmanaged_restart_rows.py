"""Rows of restarts of unmanaged jobs, in the incidents table."""

from evenkeel.domain.recovery.unmanaged_restarts import RestartStage, UnmanagedRestart
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Key, Row, Table
from evenkeel.services.tables import rows

LIVE = "RESTART#LIVE"


def restart_key(cluster: str, namespace: str, kind: str, name: str) -> Key:
    """Return the key `RESTART#cluster/namespace/kind/name / META`: the latest restart of a job name."""
    return Key(Table.INCIDENTS, f"RESTART#{cluster}/{namespace}/{kind}/{name}", "META")


def key_of(restart: UnmanagedRestart) -> Key:
    """Return the key of a restart's row."""
    return restart_key(restart.cluster, restart.namespace, restart.kind, restart.name)


def restart_row(restart: UnmanagedRestart, version: int) -> Row:
    """Return the row; `byState` lists it under `RESTART#LIVE` until it ends."""
    has_ended = restart.stage is RestartStage.ENDED
    return Row(
        key_of(restart),
        restart.to_json(),
        version,
        None if has_ended else (LIVE, f"{rfc3339(restart.begun_at)}#{restart.cluster}/{restart.label}"),
        restart.begun_at + rows.KEPT if has_ended else None,
    )
