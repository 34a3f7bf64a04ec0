"""Quota, job and event files, read as YAML or JSON."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from evenkeel.domain.kueue.documents import DocumentError
from evenkeel.domain.kueue.setup import RULES, Profile, QuotaDocuments, documents
from evenkeel_client.errors import CommandFailed, Exit

if TYPE_CHECKING:
    from evenkeel.domain.kueue.exchange import Converted


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml parses seven times as fast
    """YAML as Kubernetes reads it: instants stay text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(file: Path) -> list[Any]:
    """Return a file's documents, those of a list one by one; `-` is standard input.

    Raises:
        CommandFailed: it cannot be read, or is neither YAML nor JSON.
    """
    return documents(load_unchanged(file))


def load_unchanged(file: Path) -> list[Any]:
    """Return a file's documents as they are, nulls and lists included; `-` is standard input.

    Raises:
        CommandFailed: it cannot be read, or is neither YAML nor JSON.
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        return list(yaml.load_all(text, Loader=_Loader))
    except OSError as error:
        raise CommandFailed(Exit.USAGE, f"{file}: {error.strerror}", code="USAGE") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        message = " ".join(str(error).split())
        raise CommandFailed(Exit.USAGE, f"{file} is neither YAML nor JSON: {message}", code="NOT_YAML") from error


def declared(profile: Profile, quota: list[Path], config: Path | None = None) -> QuotaDocuments:
    """Read all quota files together.

    Raises:
        CommandFailed: one cannot be used; names the file, the object and the field.
    """
    found = QuotaDocuments(profile, RULES[profile])
    try:
        for each in load(config) if config else ():
            found.configure(each, str(config))
        for file in quota:
            for each in load(file):
                # A file that `quota export` wrote holds its documents in a list.
                for document in each["documents"] if isinstance(each, dict) and "documents" in each else [each]:
                    found.add(document, str(file))
    except DocumentError as error:
        raise refused(error) from error
    if not found.queues:
        raise CommandFailed(Exit.USAGE, "No file declares a queue.", code="NO_QUEUE", hint="evenkeel plan --help")
    return found


def refused(error: DocumentError) -> CommandFailed:
    """Return how a command ends over a document that cannot be used."""
    return CommandFailed(Exit.USAGE, str(error), code="DOCUMENT_REFUSED")


def exchange(files: list[Path], into: str) -> "Converted":
    """Return quota files in another spelling, and what was lost.

    Raises:
        CommandFailed: a file cannot be used, or there is no such spelling.
    """
    from evenkeel.domain.kueue.exchange import Format, convert

    if into not in list(Format):
        known = ", ".join(Format)
        raise CommandFailed(Exit.USAGE, f"There is no format {into!r}. Use one of: {known}.", code="USAGE")
    # Rules come from the files alone: fair sharing is on where a HyperPod policy says so.
    return convert(declared(Profile.KUEUE, files), Format(into))
