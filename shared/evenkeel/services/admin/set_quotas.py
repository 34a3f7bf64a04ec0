"""An administrator sets up a team, or the quotas that all teams share."""

from collections.abc import Collection
from typing import Any

from evenkeel.domain.quotas.setup_checks import SetupError, check_change, check_fleet, check_team
from evenkeel.domain.quotas.setup_history import SetupChange
from evenkeel.domain.quotas.teams import FleetQuotas, Team, TeamSetup
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import Add, Invalid, Key, Ledger, Put, Row, StaleVersion
from evenkeel.services.admin import remove_team
from evenkeel.services.context import Context
from evenkeel.services.storage import team_setup
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import quota_rows

WRITER = "set_quotas"


SetupPart = Team | FleetQuotas


class SetQuotasRequest(Value):
    """A part of the setup to store: the person and the reason."""

    part: SetupPart
    expected: int
    """Version of the part that the request was written for; 0 = the part does not exist yet."""
    by: str
    reason: str


class SetQuotasResult(Value):
    """The stored part."""

    part: SetupPart
    version: int


def run(request: SetQuotasRequest, context: Context, *, own_namespaces: Collection[str] = ()) -> SetQuotasResult:
    """Store a part of the setup, and request a scheduling cycle.

        this part at `expected` ── checked with all other parts ── commit: the part, VERSION as read, TREE raised

    The commit depends on the version of the whole setup. So if two teams claim one namespace at once, one is refused.
    The transaction also raises the tree's version, so a cycle with the older setup fails as a whole and decides again.

    Idempotent: yes, a repeated request finds its part at `expected` + 1.

    Args:
        request: The part.
        own_namespaces: Namespaces of the stack, which no team may have.

    Raises:
        TeamInUse: jobs of the team wait or run in the namespace that it would leave.
        Invalid: the setup is not valid; names each field.
        StaleVersion: the part is at another version.
    """
    name = request.part.name if isinstance(request.part, Team) else team_setup.FLEET
    field = "team" if isinstance(request.part, Team) else "quotas"
    _refuse(check_team(request.part) if isinstance(request.part, Team) else check_fleet(request.part), field)
    if isinstance(request.part, Team) and request.part.namespace in own_namespaces:
        _refuse((SetupError("namespace", f"{request.part.namespace} is reserved for Evenkeel."),), field)
    until_committed(lambda: _store_part(request, context), "The setup changed on every try. Try again.")
    context.cycle_requests.request(f"{_part_text(name)} set")
    return SetQuotasResult(part=request.part, version=request.expected + 1)


def _store_part(request: SetQuotasRequest, context: Context) -> None:
    """Store the part in one commit, unless it is stored already."""
    part = request.part
    name = part.name if isinstance(part, Team) else team_setup.FLEET
    field = "team" if isinstance(part, Team) else "quotas"
    stored_setup = team_setup.load_setup(context.ledger)
    version = stored_setup.version_of(name)
    if version == request.expected + 1 and _stored_document(stored_setup.setup, name) == part.to_json():
        return
    if version != request.expected:
        raise StaleVersion(f"{_part_text(name)} is at version {version}, not {request.expected}.")
    _refuse(check_change(stored_setup.setup, _with_part(stored_setup.setup, part), name), field)
    _refuse_while_in_use(part, stored_setup.setup, context.ledger)
    text = f"{_part_text(name)} set by {request.by}: {request.reason}"
    entry = TimelineEntry(at=context.now, kind="setup", text=text, writer=request.by)
    context.ledger.commit(
        Put(quota_rows.setup_row(_part_key(name), part, version)),
        Put(Row(quota_rows.setup_key(), {}, stored_setup.version)),
        Add(quota_rows.tree_key(), {"setUps": 1}),
        Put(quota_rows.setup_event_row(SetupChange.of(entry, name, stored_setup.setup), stored_setup.version + 1)),
    )


def _refuse_while_in_use(part: SetupPart, setup: TeamSetup, ledger: Ledger) -> None:
    """Keep a team in its namespace as long as it has jobs there. Otherwise another team could get the namespace."""
    stored_team = setup.by_name.get(part.name) if isinstance(part, Team) else None
    if stored_team is None or not isinstance(part, Team) or stored_team.namespace in ("", part.namespace):
        return
    why = remove_team.jobs_of(part.name, ledger)
    if why:
        raise remove_team.TeamInUse(f"Team {part.name} cannot leave namespace {stored_team.namespace}: {why}.")


def _refuse(faults: tuple[SetupError, ...], field: str) -> None:
    if faults:
        named_faults = tuple((f"{field}.{fault.field}".rstrip("."), fault.message) for fault in faults)
        raise Invalid("The setup is not valid.", named_faults)


def _part_key(name: str) -> Key:
    return quota_rows.team_key(name) if name else quota_rows.fleet_quotas_key()


def _part_text(name: str) -> str:
    return f"Team {name}" if name else "The fleet's quotas"


def _stored_document(setup: TeamSetup, name: str) -> dict[str, Any]:
    return (setup.by_name[name] if name else setup.fleet).to_json()


def _with_part(setup: TeamSetup, part: SetupPart) -> TeamSetup:
    return setup.with_team(part) if isinstance(part, Team) else setup.replace(fleet=part)
