"""Lint values files of a Helm chart, and convert them to Evenkeel's documents."""

import json
from pathlib import Path
from typing import Any

from evenkeel.domain.jobs.imported_types import import_values
from evenkeel.domain.jobs.read_helm_values import read_helm_values
from evenkeel.domain.jobs.templates import FindingSeverity, JobTemplates, ValuesError
from evenkeel.domain.policy import PolicyError, changed
from evenkeel_cli.offline import policies, quota_files
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]


def lint_values_file(file: Path) -> Json:
    """Return the findings about a values file, and the number of values that Evenkeel refuses.

    Raises:
        CommandFailed: the command cannot read the file; names the field.
    """
    job_templates = _read(file)
    refused_count = sum(finding.weight is FindingSeverity.REFUSED for finding in job_templates.findings)
    return {"refused": refused_count, "findings": [finding.to_json() for finding in job_templates.findings]}


def import_values_file(file: Path, onto: Path | None) -> Json:
    """Convert a values file into Evenkeel's documents, with the service's own checks.

    Args:
        file: The values.
        onto: The site's policy file. The import keeps its other fields.

    Raises:
        CommandFailed: the file cannot be read, or the service would refuse the result; names the field.
    """
    job_templates = _read(file)
    try:
        imported_types = import_values(job_templates)
        policy = _merge_job_types(policies.read_site_changes(onto) if onto else {}, imported_types.policy)
        changed(policies.load_policy(None), policy)
    except (ValuesError, PolicyError) as error:
        raise CommandFailed(Exit.FAILED, f"{file}: {error}", code="VALUES_REFUSED") from error
    return imported_types.to_json() | {
        "policy": policy,
        "findings": [finding.to_json() for finding in job_templates.findings],
    }


def _merge_job_types(site: Json, imported_document: Json) -> Json:
    """Return the site's policy with the imported job types. Lists in `jobs.allowed` keep the site's entries."""
    merged_document = site | imported_document
    jobs = site.get("jobs") or {}
    pod_rules = dict(jobs.get("allowed") or {})
    for name, entries in imported_document.get("jobs", {}).get("allowed", {}).items():
        present = pod_rules.get(name) or []
        present_names = [entry.get("name") if isinstance(entry, dict) else entry for entry in present]
        added_names = [
            entry for entry in entries if (entry["name"] if isinstance(entry, dict) else entry) not in present_names
        ]
        pod_rules[name] = [*present, *added_names]
    if jobs or pod_rules:
        merged_document["jobs"] = jobs | ({"allowed": pod_rules} if pod_rules else {})
    return merged_document


def write_documents(imported_document: Json, into: Path, *, force: bool) -> list[str]:
    """Write the documents and return the names of their files. Only `force` replaces existing files.

    Raises:
        CommandFailed: a file exists, or cannot be written.
    """
    files = [
        (into / "policy.json", imported_document["policy"]),
        (into / "quotas.json", imported_document["quotas"]),
        (into / "priority-classes.json", imported_document["priorityClasses"]),
    ]
    present = [str(path) for path, _ in files if path.exists()]
    if present and not force:
        raise CommandFailed(
            Exit.USAGE, f"{present[0]} already exists.", code="USAGE", hint="Use --into DIR, or --force to overwrite."
        )
    try:
        into.mkdir(parents=True, exist_ok=True)
        for path, document in files:
            path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandFailed(Exit.USAGE, f"{into}: {error.strerror}", code="USAGE") from error
    return [str(path) for path, _ in files]


def _read(file: Path) -> JobTemplates:
    documents = quota_files.load_documents(file)
    try:
        return read_helm_values(documents[0] if len(documents) == 1 else documents)
    except ValuesError as error:
        raise CommandFailed(Exit.FAILED, f"{file}: {error}", code="VALUES_REFUSED") from error
