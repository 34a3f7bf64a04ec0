"""Files that set teams up: teams as the service shows them, or quota files in any format."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenkeel.domain.queue_simulation.documents import DocumentError
from evenkeel.domain.queue_simulation.documents import read as read_document
from evenkeel.domain.queue_simulation.profiles import RULES, Profile
from evenkeel.domain.queue_simulation.quota_formats import Format, convert
from evenkeel.domain.queue_simulation.setup import QuotaDocuments
from evenkeel.domain.queue_simulation.short_form import ShortQuotas
from evenkeel.domain.quotas.setup_checks import check_fleet, check_setup, check_team
from evenkeel.domain.quotas.teams import FleetQuotas, Team, TeamSetup, setup_of_quotas
from evenkeel_cli.offline import quota_files
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]
OF_QUOTA_FILES = ("cohorts", "flavors", "priorityClasses", "fairSharing")
"""Parts of the fleet's set-up that a quota file can declare. It cannot declare switches or members."""


@dataclass
class DesiredState:
    """The set-up that files declare."""

    teams: dict[str, Json] = field(default_factory=dict)
    """Whole teams, as the service shows them."""
    quotas: Json | None = None
    """The fleet's part of the set-up, complete."""
    queues: dict[str, Json] = field(default_factory=dict)
    """Teams for which the files declare only the queue, and perhaps a namespace."""
    fleet: Json = field(default_factory=dict)
    """Fields of the fleet's settings that the files state."""
    versions: dict[str, int] = field(default_factory=dict)
    """Version of each part, if the file states it: the version that was read. The fleet's part has the empty name."""
    losses: tuple[str, ...] = ()


def read_team_files(files: list[Path]) -> DesiredState:
    """Read all files together.

    Raises:
        CommandFailed: a file cannot be used; names the file and the error.
    """
    desired_state, quota_documents = DesiredState(), QuotaDocuments(Profile.KUEUE, RULES[Profile.KUEUE])
    for file in files:
        for file_content in quota_files.load_documents(file):
            for document in (
                file_content["documents"]
                if isinstance(file_content, dict) and "documents" in file_content
                else [file_content]
            ):
                _add_document(document, str(file), desired_state, quota_documents)
    names = ", ".join(map(str, files))
    if quota_documents.queues or quota_documents.cohorts or quota_documents.priorities:
        converted_quotas = convert(quota_documents, Format.EVENKEEL)
        desired_state.losses = converted_quotas.losses
        document = ShortQuotas.model_validate(converted_quotas.documents[0])
        setup = setup_of_quotas(document)
        desired_state.queues = {team.name: team.to_json() for team in setup.teams}
        fleet = setup.fleet.to_json()
        desired_state.fleet = {
            name: fleet[name] for name in OF_QUOTA_FILES if _declares(name, converted_quotas.documents[0])
        }
    if desired_state == DesiredState(losses=desired_state.losses):
        text = f"{names}: no document declares a team, a queue, a cohort or a priority class."
        raise CommandFailed(Exit.USAGE, text, code="NOTHING_DECLARED", hint=_FORMS)
    _check_desired_state(desired_state, names)
    return desired_state


_FORMS = "docs/operate/teams.md shows what a file may declare."


def _check_desired_state(desired_state: DesiredState, files: str) -> None:
    """Check the rules of the service that the files alone can break.

    Raises:
        CommandFailed: names the team and its first fault.
    """
    teams = [Team.model_validate(document) for document in {**desired_state.queues, **desired_state.teams}.values()]
    problems = [(f"team {team.name}", fault) for team in teams for fault in check_team(team)]
    if desired_state.quotas is not None:
        problems += [("quotas", fault) for fault in check_fleet(FleetQuotas.model_validate(desired_state.quotas))]
    if not problems:
        together = TeamSetup(teams=tuple(sorted(teams, key=lambda team: team.name)))
        problems = [("teams", fault) for fault in check_setup(together)]
    for where, fault in problems:
        raise quota_files.as_command_failed(DocumentError(f"{files}: {where}", fault.field, fault.message))


def _declares(name: str, document: Json) -> bool:
    return name in document


def _add_document(document: Any, file: str, desired_state: DesiredState, quota_documents: QuotaDocuments) -> None:
    try:
        if isinstance(document, dict) and "team" in document:
            team = read_document(Team, document["team"], f"{file}: team")
            _add_team(team, file, desired_state)
            _note_version(document, team.name, desired_state)
        elif isinstance(document, dict) and "quotas" in document:
            quotas = read_document(FleetQuotas, document["quotas"], f"{file}: quotas")
            _set_quotas(quotas, file, desired_state)
            _note_version(document, "", desired_state)
        elif isinstance(document, dict) and {"name", "queue"} <= document.keys() and "kind" not in document:
            _add_team(read_document(Team, document, file), file, desired_state)
        else:
            quota_documents.add(document, file)
    except DocumentError as error:
        failure = quota_files.as_command_failed(error)
        failure.hint = _FORMS
        raise failure from error


def _set_quotas(quotas: FleetQuotas, file: str, desired_state: DesiredState) -> None:
    if desired_state.quotas is not None:
        raise DocumentError(file, "quotas", "are declared twice")
    desired_state.quotas = quotas.to_json()


def _add_team(team: Team, file: str, desired_state: DesiredState) -> None:
    if team.name in desired_state.teams:
        raise DocumentError(file, f"team {team.name}", "is declared twice")
    desired_state.teams[team.name] = team.to_json()


def _note_version(document: Json, name: str, desired_state: DesiredState) -> None:
    if isinstance(document.get("version"), int):
        desired_state.versions[name] = document["version"]
