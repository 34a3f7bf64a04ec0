"""Write or compare every file that is generated from the code: `make generate` writes them, a test compares them."""

import subprocess
import sys
from pathlib import Path

from tools import (
    architecture,
    benchmark_tables,
    chart,
    cli_page,
    economics_page,
    fault_columns,
    fault_pages,
    job_fields,
    metric_tables,
    openapi,
    policy_files,
    policy_page,
    price_table,
    proofs,
    schemas,
    terraform,
    vpc_endpoints,
    workflow_wiring,
)


def files() -> dict[Path, str]:
    """Return each generated file with its content."""
    sources = (
        openapi,
        schemas,
        job_fields,
        policy_files,
        policy_page,
        price_table,
        architecture,
        benchmark_tables,
        chart,
        cli_page,
        economics_page,
        fault_columns,
        fault_pages,
        metric_tables,
        proofs,
        workflow_wiring,
        terraform,
        vpc_endpoints,
    )
    return {path: text for source in sources for path, text in source.files().items()}


def stale_files() -> list[Path]:
    """Return the files that differ from the generated content."""
    return [path for path, text in files().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def main() -> int:
    """Write the stale files; with `--check`, only print their names."""
    is_check = "--check" in sys.argv[1:]
    new_texts, stale_paths = files(), stale_files()
    for path in stale_paths:
        if not is_check:
            path.write_text(new_texts[path], encoding="utf-8")
        print(path, flush=True)
    if stale_paths and not is_check and _FINAL_RUN not in sys.argv[1:]:
        # The page of the commands shows options that the command has read from another generated file at its import.
        return subprocess.run([sys.executable, "-m", "tools.generate", _FINAL_RUN], check=False).returncode
    return int(is_check and bool(stale_paths))


_FINAL_RUN = "--final-run"


if __name__ == "__main__":
    sys.exit(main())
