"""Write or compare every file that is generated from the code: `make generate` writes them, a test compares them."""

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
    wanted = files()
    for path in stale_files():
        if "--check" not in sys.argv[1:]:
            path.write_text(wanted[path], encoding="utf-8")
        print(path)
    return int("--check" in sys.argv[1:] and bool(stale_files()))


if __name__ == "__main__":
    sys.exit(main())
