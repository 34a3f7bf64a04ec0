"""Verbs and nouns of kubectl that people type by habit, and the command for each."""

from collections.abc import Sequence

_GROUPS = {"job": "jobs", "node": "nodes", "incident": "incidents", "team": "teams", "fault": "faults"}
_GROUPS |= {plural: plural for plural in _GROUPS.values()}
_VERBS = {"get": "ls", "list": "ls", "describe": "show", "delete": "cancel", "rm": "cancel", "log": "logs"}
"""The second word of a command, by its alias."""
_ROOT_VERBS = {"cordon": "nodes", "uncordon": "nodes"} | dict.fromkeys(("logs", "submit", "wait", "cancel"), "jobs")
"""Verbs that need no noun: the noun follows from the verb."""


def expand_aliases(words: Sequence[str]) -> list[str]:
    """Translate kubectl's words to ours: `get nodes` is `nodes ls`, `describe job x` is `jobs show x`.

    Words that are already a command of Evenkeel do not change.
    """
    first_word, *remaining_words = words or [""]
    if first_word in ("get", "describe", "delete", "rm") and remaining_words:
        kind, slash, name = remaining_words[0].partition("/")
        group = _GROUPS.get(kind)
        if group is None or (first_word in ("delete", "rm") and group != "jobs"):
            return list(words)
        arguments = [*([name] if slash else []), *remaining_words[1:]]
        is_named = bool(arguments) and not arguments[0].startswith("-")
        verb = "show" if first_word == "get" and is_named else _VERBS[first_word]
        return [group, verb, *arguments]
    if first_word in _ROOT_VERBS:
        return [_ROOT_VERBS[first_word], first_word, *remaining_words]
    if first_word in _GROUPS and remaining_words:
        return [_GROUPS[first_word], _expand_second_word(_GROUPS[first_word], remaining_words), *remaining_words[1:]]
    return [_GROUPS.get(first_word, first_word), *remaining_words] if words else []


def _expand_second_word(group: str, words: Sequence[str]) -> str:
    is_named = len(words) > 1 and not words[1].startswith("-")
    if words[0] == "get" and is_named:
        return "show"
    # `delete` cancels a job. For other nouns it is passed on unchanged.
    return words[0] if words[0] in ("delete", "rm") and group != "jobs" else _VERBS.get(words[0], words[0])
