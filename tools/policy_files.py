"""The shipped policies: production.json holds the defaults; local.json holds the same fields with values of its own."""

import json
from pathlib import Path
from typing import Any

from evenkeel.domain.policy import Policy

FOLDER = Path(__file__).resolve().parents[1] / "shared" / "evenkeel" / "policy"


def files() -> dict[Path, str]:
    """Return each file with its content: a new field appears with its default, a removed field disappears."""
    defaults = Policy().to_json()
    local = FOLDER / "local.json"
    own = json.loads(local.read_text(encoding="utf-8"))
    documents = {FOLDER / "production.json": defaults, local: _with_defaults(own, defaults)}
    return {path: json.dumps(document, indent=2) + "\n" for path, document in documents.items()}


def _with_defaults(own: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _with_defaults(own[name], default)
        if isinstance(default, dict) and default and name in own
        else own.get(name, default)
        for name, default in defaults.items()
    }
