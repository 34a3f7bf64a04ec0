"""Candidates for the word that a person is typing: commands, options, their values, and live ids.

A shell waits for the answer at each press of Tab. So a background process writes the ids to a file. If the API
is too slow for the first answer, there are no candidates.
"""

import contextlib
import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from evenkeel_cli.aliases import expand_aliases
from evenkeel_cli.main import NOUNS

COMPLETE, REFRESH = "__complete", "__refresh-completion"
"""First words of the hidden commands."""
_FRESH_SECONDS, _MAX_AGE_SECONDS = 10.0, 600.0
_WAIT_SECONDS = 0.1
"""Seconds to wait for the first answer of the API. The command has 300 ms, and its start takes most of them."""
_MAX_CANDIDATES = 500
_SAFE = re.compile(r"[\w.:@/=+-]+", re.ASCII)
"""Names that a shell does not interpret. Names with other characters never reach the shell."""
_LISTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "job": ("/jobs", ("jobId", "name")),
    "incident": ("/incidents", ("incidentId",)),
    "node": ("/nodes", ("instanceId", "name")),
    "team": ("/teams", ("team",)),
}
"""Kind → path of the list, and the fields that a command accepts."""
_KINDS_OF = {
    "JOB": ("job",),
    "INCIDENT": ("incident",),
    "NODE": ("node",),
    "TEAM": ("team",),
    "JOB|INCIDENT|NODE|DECISION": ("job", "incident", "node"),
}
"""Name of an argument or option in the help → kinds of ids."""
_KINDS_OF_OPTION = {"--team": ("team",), "--node": ("node",), "--job": ("job",)}
Live = Callable[[str], Iterable[str]]


def complete(words: Sequence[str], live: Live) -> list[str]:
    """Return the candidates for the last word.

    Args:
        words: The words after the name of the command; the last is incomplete, and may be empty.
        live: Returns the known ids and names of a kind.
    """
    *earlier_words, typed_value = words or [""]
    if not earlier_words:
        return _starting_with(typed_value, [*NOUNS, "get", "describe", "logs", "cordon", "uncordon"])
    noun, *arguments = expand_aliases(earlier_words)
    if noun in ("get", "describe", "delete") and not arguments:
        return _starting_with(typed_value, ["jobs", "nodes", "incidents", "teams"])
    if noun not in NOUNS:
        return []
    command: Any = typer.main.get_command(importlib.import_module(f"evenkeel_cli.commands.{NOUNS[noun].module}").app)
    verbs: Mapping[str, Any] = getattr(command, "commands", {})
    if verbs:
        if not arguments:
            return _starting_with(typed_value, verbs)
        if arguments[0] not in verbs:
            return []
        command, arguments = verbs[arguments[0]], arguments[1:]
    return _starting_with(typed_value, _parameter_candidates(command.params, arguments, typed_value, live))


def _parameter_candidates(
    parameters: Sequence[Any], earlier_words: Sequence[str], typed_value: str, live: Live
) -> Iterable[str]:
    """Return candidates for an option, the value of the option before it, or a positional argument."""
    options = {name: parameter for parameter in parameters for name in parameter.opts if name.startswith("-")}
    if typed_value.startswith("-"):
        return (name for name in [*options, "--help"] if name.startswith("--"))
    option = options.get(earlier_words[-1]) if earlier_words else None
    if option is not None and not option.is_flag:
        return _value_candidates(option, _KINDS_OF_OPTION.get(option.opts[0]), live)
    position = _count_positional(earlier_words, options)
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    if position < len(arguments):
        return _value_candidates(arguments[position], None, live)
    return ()


def _count_positional(words: Sequence[str], options: Mapping[str, Any]) -> int:
    """Return how many positional arguments were given."""
    count, is_value = 0, False
    for word in words:
        if is_value:
            is_value = False
        elif word.startswith("-"):
            option = options.get(word)
            is_value = option is not None and not option.is_flag
        else:
            count += 1
    return count


def _value_candidates(parameter: Any, kinds: Sequence[str] | None, live: Live) -> Iterable[str]:
    annotation = parameter.type_descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return (str(choice.value) for choice in annotation)
    kinds = kinds or _KINDS_OF.get(parameter.metavar or "", ())
    latest_alias = ["@latest"] if {"job", "incident"} & set(kinds) else []
    return [*latest_alias, *(name for kind in kinds for name in live(kind))]


def _starting_with(typed_value: str, candidates: Iterable[str]) -> list[str]:
    safe = (word for word in candidates if word.startswith(typed_value) and _SAFE.fullmatch(word))
    return list(dict.fromkeys(safe))[:_MAX_CANDIDATES]


# ---------------------------------------------------------------- live ids


def cached_names(kind: str) -> list[str]:
    """Return the stored ids and names of a kind. If the file is old, a background process refreshes it."""
    file = _cache_file(kind)
    age = _file_age(file)
    if age > _FRESH_SECONDS:
        subprocess.Popen(  # no word comes from outside
            [sys.executable, "-m", "evenkeel_cli.main", REFRESH, kind],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    deadline = time.monotonic() + _WAIT_SECONDS
    while age > _MAX_AGE_SECONDS and time.monotonic() < deadline:
        time.sleep(0.01)
        age = _file_age(file)
    if age > _MAX_AGE_SECONDS:
        return []
    try:
        names = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def refresh(kind: str) -> None:
    """Read the ids and names of a kind, and store them. Two refreshes at the same time write the same content."""
    from evenkeel_cli.commands import lookup
    from evenkeel_client.client import ApiClient

    path, fields = _LISTS[kind]
    items = lookup.list_items(ApiClient(lookup.current_context(), warn=None), path, _MAX_CANDIDATES)
    names = [str(item[field]) for item in items for field in fields if item.get(field)]
    file = _cache_file(kind)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = file.with_suffix(f".{os.getpid()}")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as target:
        json.dump(names, target)
    beside.replace(file)


def _cache_file(kind: str) -> Path:
    """Return the cache file of a kind. Each context has a file of its own, because the ids differ."""
    from evenkeel_cli.commands import lookup

    context = lookup.current_context()
    digest = hashlib.sha256(f"{context.url} {context.profile}".encode()).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or str(Path(os.environ.get("HOME", "/"), ".cache"))
    return Path(home, "evenkeel", "completion", f"{digest}-{kind}.json")


def _file_age(file: Path) -> float:
    try:
        return time.time() - file.stat().st_mtime
    except OSError:
        return float("inf")


def run(words: Sequence[str]) -> None:
    """Run a hidden command. It never fails, because an error would appear in the line that the person types."""
    from evenkeel_cli.render import stdout_printer

    with contextlib.suppress(Exception):
        if words[0] == REFRESH:
            refresh(words[1])
            return
        printer = stdout_printer()
        for word in complete(words[1:], cached_names):
            printer.line(word)


SCRIPTS = {
    "bash": f"""\
_evenkeel() {{
    local IFS=$'\\n'
    COMPREPLY=($("${{COMP_WORDS[0]}}" {COMPLETE} "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null))
}}
complete -o default -F _evenkeel evenkeel
""",
    "zsh": f"""\
#compdef evenkeel
_evenkeel() {{
    local -a found
    found=(${{(f)"$("${{words[1]}}" {COMPLETE} "${{(@)words[2,CURRENT]}}" 2>/dev/null)"}})
    (( $#found )) && compadd -- $found || _files
}}
compdef _evenkeel evenkeel
""",
    "fish": f"""\
complete -c evenkeel -a '(evenkeel {COMPLETE} (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}
"""Shell → the script that a person loads."""
