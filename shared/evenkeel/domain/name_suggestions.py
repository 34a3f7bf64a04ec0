"""Suggestions for unknown names in error messages."""

import difflib
from collections.abc import Iterable

_MOST = 5


def unknown_name(kind: str, name: str, known_names: Iterable[str]) -> str:
    """Return an error message for an unknown name. It suggests similar names, or lists the existing names."""
    names = sorted({known_name for known_name in known_names if known_name and known_name != name})
    text = f"There is no {kind} {name}."
    if nearest_name := similar_names(name, names):
        return f"{text} Did you mean {nearest_name}?"
    if not names:
        return text
    more_text = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"{text} Known: {', '.join(names[:_MOST])}{more_text}."


def similar_names(name: str, known_names: Iterable[str]) -> str:
    """Return the known names that are similar to a name: `a, b or c`; empty if there are none."""
    names = sorted(set(known_names))
    nearest_names = difflib.get_close_matches(name, names, n=_MOST, cutoff=0.5)
    nearest_names += [
        candidate
        for candidate in names
        if name and candidate not in nearest_names and (name in candidate or candidate in name)
    ]
    return _listed(nearest_names[:_MOST]) if nearest_names else ""


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
