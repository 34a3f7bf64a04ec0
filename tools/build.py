"""Build the functions and their layer for an environment of samconfig.toml, and check the result.

The parameters `PythonRuntime` and `Architecture` of the environment decide which wheels the layer has.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from evenkeel_cli.offline.planned_stack import read_planned_stack
from evenkeel_client.errors import CommandFailed

ROOT = Path(__file__).resolve().parents[1]
SAM = ROOT / ".tools" / "sam" / "bin" / "sam"
UV = ROOT / ".tools" / "uv" / "bin" / "uv"
MACHINES = {"arm64": "aarch64", "x86_64": "x86_64"}
OLD_LINUX = ("python3.11",)
"""Runtimes on Amazon Linux 2 with glibc 2.26; later runtimes have glibc 2.34.

Source: https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtimes.html
"""
_ANYWHERE = "any"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("environment", help="an environment of samconfig.toml")
    parser.add_argument("--build-dir", type=Path, default=ROOT / ".aws-sam" / "build")
    args = parser.parse_args()
    try:
        planned = read_planned_stack(ROOT, args.environment)
    except CommandFailed as failed:
        sys.exit(f"build: {failed.text} {failed.hint}")
    runtime, architecture = planned.parameters["PythonRuntime"], planned.parameters["Architecture"]
    print(f"build: {runtime} on {architecture}, for the environment {args.environment}", flush=True)
    return build(runtime, architecture, args.build_dir)


def build(runtime: str, architecture: str, folder: Path) -> int:
    """Build into a folder, and return 0 if the layer fits the runtime and the architecture."""
    python = find_interpreter(runtime)
    command = [SAM, "build", "--build-dir", folder, "--parameter-overrides"]
    overrides = [f"PythonRuntime={runtime}", f"Architecture={architecture}"]
    done = subprocess.run(
        [*map(str, command), *overrides],
        cwd=ROOT,
        env=os.environ | layer_environment(runtime, architecture, python),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"build: sam build failed:\n{done.stdout}{done.stderr}")
    layer = folder / "EvenkeelLayer" / "python"
    if problems := wrong_libraries(layer, runtime, architecture):
        print(f"build: the layer does not fit {runtime} on {architecture}:", *problems, sep="\n  ")
        return 1
    print(f"build: {folder} is ready. {describe_byte_code(layer, runtime)}")
    return 0


def layer_environment(runtime: str, architecture: str, python: str) -> dict[str, str]:
    """Return the variables with which shared/Makefile builds the layer."""
    glibc = "2_17" if runtime in OLD_LINUX else "2_28"
    return {
        "EVENKEEL_LAYER_PYTHON": runtime.removeprefix("python"),
        "EVENKEEL_LAYER_PLATFORM": f"{MACHINES[architecture]}-manylinux_{glibc}",
        "EVENKEEL_UV": str(UV),
        "EVENKEEL_PYTHON": python or sys.executable,
        "SAM_CLI_TELEMETRY": "0",
    }


def find_interpreter(runtime: str) -> str:
    """Return an interpreter of the runtime's version; empty if this machine has none."""
    version = runtime.removeprefix("python")
    of_uv = answer_of(UV, "python", "find", "--no-config", "--no-python-downloads", version)
    for candidate in filter(None, (sys.executable, shutil.which(runtime), of_uv)):
        # A name on the PATH may be a shim without that version behind it.
        if answer_of(candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])") == version:
            return candidate
    return ""


def answer_of(*command: str | Path) -> str:
    """Return the output of a command; empty if it failed."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def wrong_libraries(layer: Path, runtime: str, architecture: str) -> list[str]:
    """Return each wheel of the layer that the runtime cannot load, and each extension module for another processor."""
    wheels = sorted(layer.glob("*.dist-info/WHEEL"))
    if not wheels:
        return [f"{layer} has no packages"]
    texts = []
    for wheel in wheels:
        tags = re.findall(r"^Tag: (\S+)$", wheel.read_text(encoding="utf-8"), re.MULTILINE)
        if not any(fits_runtime(tag, runtime, architecture) for tag in tags):
            texts.append(f"{wheel.parent.name.removesuffix('.dist-info')} was built for {', '.join(tags) or 'nothing'}")
    return texts


def fits_runtime(tag: str, runtime: str, architecture: str) -> bool:
    """Whether a runtime can load a wheel with this tag.

    Source: https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
    """
    interpreters, abis, platforms = tag.split("-")
    version = "cp" + runtime.removeprefix("python").replace(".", "")
    is_loadable = version in interpreters.split(".") or "abi3" in abis.split(".") or "py3" in interpreters.split(".")
    return is_loadable and any(
        platform == _ANYWHERE or platform.endswith(f"_{MACHINES[architecture]}") for platform in platforms.split(".")
    )


def compiled_libraries(layer: Path) -> Iterator[tuple[str, bool]]:
    """Yield the interpreter tag of each compiled module, and whether Python loads it without reading its source."""
    for path in layer.rglob("__pycache__/*.pyc"):
        tag = path.stem.rpartition(".")[2]
        flags = int.from_bytes(path.read_bytes()[4:8], "little")  # PEP 552: bit 0 is a hash, bit 1 checks the source
        yield tag, flags == 1


def describe_byte_code(layer: Path, runtime: str) -> str:
    """Print whether the layer has byte code, and the cost without it."""
    expected = "cpython-" + runtime.removeprefix("python").replace(".", "")
    modules = list(compiled_libraries(layer))
    if modules and all(module == (expected, True) for module in modules):
        return f"The layer has byte code for {len(modules)} modules."
    return (
        f"The layer has no byte code, because this machine has no {runtime}: each cold start compiles its imports. "
        f"Install {runtime} and build again (docs/deploy.md)."
    )


if __name__ == "__main__":
    sys.exit(main())
