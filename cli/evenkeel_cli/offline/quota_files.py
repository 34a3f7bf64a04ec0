"""Quota, job and event files, read as YAML or JSON."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenkeel.domain.queue_simulation.documents import DocumentError
from evenkeel.domain.queue_simulation.profiles import RULES, Profile
from evenkeel.domain.queue_simulation.setup import QuotaDocuments, documents
from evenkeel_cli.yaml_files import load_all
from evenkeel_client.errors import CommandFailed, Exit

if TYPE_CHECKING:
    from evenkeel.domain.queue_simulation.quota_formats import ConvertedQuotas


def load_documents(file: Path) -> list[Any]:
    """Return a file's documents, with the documents of a list one by one; `-` is standard input.

    Raises:
        CommandFailed: it cannot be read, or is not valid YAML or JSON.
    """
    return documents(load_all(file))


def read_quotas(profile: Profile, quota: list[Path], config: Path | None = None) -> QuotaDocuments:
    """Read all quota files together.

    Raises:
        CommandFailed: one cannot be used; names the file, the object and the field.
    """
    quota_documents = QuotaDocuments(profile, RULES[profile])
    try:
        for document in load_documents(config) if config else ():
            quota_documents.configure(document, str(config))
        for file in quota:
            for file_content in load_documents(file):
                # A file that `quota export` wrote holds its documents in a list.
                for document in (
                    file_content["documents"]
                    if isinstance(file_content, dict) and "documents" in file_content
                    else [file_content]
                ):
                    quota_documents.add(document, str(file))
    except DocumentError as error:
        raise as_command_failed(error) from error
    if not quota_documents.queues:
        raise CommandFailed(Exit.USAGE, "No file declares a queue.", code="NO_QUEUE", hint="evenkeel plan --help")
    return quota_documents


def as_command_failed(error: DocumentError) -> CommandFailed:
    """Return the error of a command whose document cannot be used."""
    return CommandFailed(Exit.USAGE, str(error), code="DOCUMENT_REFUSED")


def convert_quotas(files: list[Path], into: str) -> "ConvertedQuotas":
    """Return quota files in another format, and the settings that were lost.

    Raises:
        CommandFailed: a file cannot be used, or there is no such format.
    """
    from evenkeel.domain.queue_simulation.quota_formats import Format, convert

    if into not in list(Format):
        formats = ", ".join(Format)
        raise CommandFailed(Exit.USAGE, f"There is no format {into!r}. Use one of: {formats}.", code="USAGE")
    # The rules come only from the files: fair sharing is on if a HyperPod policy enables it.
    return convert(read_quotas(Profile.KUEUE, files), Format(into))
