"""A module docstring names only files that exist.

A name is relative to the folder of the module, to its distribution's package (`domain/kueue/topology.py`), or to the
project (`tools/protobuf_fields.py`).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = ("shared", "cli", "local")
_FILE = re.compile(r"[\w./-]*\w\.py\b")

OTHER_PROJECTS = frozenset({"src/sagemaker/hyperpod/training/config/hyperpod_pytorch_job_unified_config.py"})
"""Sources of facts in the repositories of other projects."""


def missing_files(module: Path, source: str, project: Path) -> Iterator[str]:
    """Yield each `*.py` file that the docstring of a module names and that does not exist.

    Args:
        module: Path of the module, relative to `project`.
        source: Its Python source.
        project: Root of the project.
    """
    package = Path(*module.parts[:2])
    for name in _FILE.findall(ast.get_docstring(ast.parse(source)) or ""):
        folders = (module.parent, package, Path())
        if name not in OTHER_PROJECTS and not any((project / folder / name).is_file() for folder in folders):
            yield name


def test_every_file_named_in_a_module_docstring_exists() -> None:
    problems = [
        f"{path.relative_to(PROJECT)} names {name}, which does not exist"
        for folder in FOLDERS
        for path in sorted((PROJECT / folder).rglob("*.py"))
        for name in missing_files(path.relative_to(PROJECT), path.read_text(encoding="utf-8"), PROJECT)
    ]

    assert problems == []


def test_docstring_that_names_a_missing_file_is_reported(tmp_path: Path) -> None:
    for name in ("cli/package/pages/beside.py", "cli/package/other/below.py", "tools/tool.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    docstring = '"""Use `beside.py`, `other/below.py`, `tools/tool.py`, `below.py` and `gone.py`."""'

    assert list(missing_files(Path("cli/package/pages/page.py"), docstring, tmp_path)) == ["below.py", "gone.py"]
