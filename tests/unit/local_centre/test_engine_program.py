"""Another interpreter runs `engine_program.py`, so no type checker checks the names that it loads from the project."""

import re

from evenkeel_local import PROJECT, worker_template


def test_names_that_the_aws_emulator_loads_exist() -> None:
    program = (PROJECT / "local" / "evenkeel_local" / "engine_program.py").read_text(encoding="utf-8")
    used_names = set(re.findall(r"\bworker_template\.(\w+)", program)) - {"py"}

    assert used_names
    assert {name for name in used_names if not hasattr(worker_template, name)} == set()
