"""A release: the same bytes for the same inputs, and a template whose code is in a bucket."""

import copy
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.template.documents import template, translate
from tools import chart, environments, package

Json = dict[str, Any]
ROOT = package.ROOT


def a_build(folder: Path) -> Path:
    """Return a folder like the output of `sam build`, with a small file as the code of each function."""
    document = json.loads(json.dumps(template()))
    for name, resource in document["Resources"].items():
        if resource["Type"] not in package._URIS:
            continue
        key, kind = package._URIS[resource["Type"]]
        path = folder / name
        if kind == "workflows":
            path = folder / f"{name}.asl.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"Comment": name}))
        else:
            path.mkdir(parents=True)
            (path / "handler.py").write_text(f"NAME = {name!r}\n")
        resource["Properties"][key] = path.name
    (folder / "template.yaml").write_text(json.dumps(document))
    return folder


def a_release(tmp_path: Path, name: str) -> Path:
    build = a_build(tmp_path / f"{name}-build")
    for number, path in enumerate(build.rglob("*")):
        os.utime(path, (1_700_000_000 + number * hash(name) % 1000, 1_700_000_000))
    release = tmp_path / name
    package.package_template(build, release, {"PythonRuntime": "python3.13", "Architecture": "arm64"})
    package.write_checksums(release)
    return release


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_release(tmp_path_factory.mktemp("release"), "release")


@pytest.fixture(scope="module")
def packaged(release: Path) -> Json:
    document: Json = yaml.load((release / "template.yaml").read_text(), Loader=package.Loader)
    return document


def test_two_releases_of_one_build_are_equal(release: Path, tmp_path: Path) -> None:
    first, second = release, a_release(tmp_path, "second")

    assert (first / package.CHECKSUMS).read_text() == (second / package.CHECKSUMS).read_text()
    archives = [tmp_path / f"{path.name}.tar.gz" for path in (first, second)]
    for folder, archive in zip((first, second), archives, strict=True):
        package.write_tar(folder, archive, under="evenkeel")
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_changed_code_is_stored_under_another_key(tmp_path: Path) -> None:
    build = a_build(tmp_path / "build")
    before = package.store_artifact(build / "CordonNode", tmp_path / "a", "CordonNode")
    (build / "CordonNode" / "handler.py").write_text("changed = True\n")

    after = package.store_artifact(build / "CordonNode", tmp_path / "a", "CordonNode")

    assert before != after


def test_every_artifact_of_the_template_is_in_the_release(release: Path, packaged: Json) -> None:
    keys = set(re.findall(r"\$\{ArtifactPrefix\}([^'\"}]+)", json.dumps(packaged)))

    stored = {path.relative_to(release / "artifacts").as_posix() for path in (release / "artifacts").rglob("*.*")}
    assert keys == stored
    assert len(keys) == sum(resource["Type"] in package._URIS for resource in packaged["Resources"].values())
    assert "&id" not in (release / "template.yaml").read_text()  # CloudFormation accepts no anchors


def test_packaged_template_allows_only_the_architecture_of_its_build(packaged: Json) -> None:
    parameters = packaged["Parameters"]

    assert parameters["Architecture"]["AllowedValues"] == ["arm64"]
    assert parameters["PythonRuntime"]["AllowedValues"] == ["python3.13"]
    assert set(parameters) == set(template()["Parameters"]) | {package.BUCKET, package.PREFIX}


def test_sam_translates_the_packaged_template(packaged: Json) -> None:
    document = copy.deepcopy(packaged)
    document["Parameters"][package.BUCKET]["Default"] = "releases"
    document["Parameters"][package.PREFIX]["Default"] = "v1/"
    resources = translate(document)["Resources"]

    # SAM writes the parameters into the code of a function with versions, since another path means another version.
    code = resources["CordonNode"]["Properties"]["Code"]
    assert code["S3Bucket"] == "releases"
    assert code["S3Key"]["Fn::Sub"].startswith("v1/functions/CordonNode-")
    machine = resources["RecoverNodeMachine"]["Properties"]["DefinitionS3Location"]
    assert machine["Bucket"] == {"Ref": package.BUCKET}


def test_release_has_every_template_that_a_page_deploys(tmp_path: Path) -> None:
    package.copy_other_templates(tmp_path)

    pages = "\n".join(path.read_text(encoding="utf-8") for path in (package.ROOT / "docs").rglob("*.md"))
    named = set(re.findall(r"(?:--template-file |file://)((?:deploy|forwarding)/\S+)", pages))
    assert named
    assert [name for name in named if not (tmp_path / name).is_file()] == []


def test_release_zip_keeps_executable_bits_and_no_file_times(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    for name, mode in (("run", 0o755), ("data", 0o600)):
        (tmp_path / "code" / name).write_text(name)
        (tmp_path / "code" / name).chmod(mode)

    package.write_zip(tmp_path / "code", tmp_path / "code.zip")

    with zipfile.ZipFile(tmp_path / "code.zip") as archive:
        members = {member.filename: member for member in archive.infolist()}
    assert {name: member.external_attr >> 16 & 0o777 for name, member in members.items()} == {
        "data": 0o644,
        "run": 0o755,
    }
    assert {member.date_time for member in members.values()} == {(1980, 1, 1, 0, 0, 0)}


def test_chart_archive_has_one_folder_of_its_name(tmp_path: Path) -> None:
    package.write_tar(chart.CHART, tmp_path / "chart.tgz", under="evenkeel")

    with tarfile.open(tmp_path / "chart.tgz") as archive:
        names = archive.getnames()
    assert "evenkeel/Chart.yaml" in names
    assert {name.partition("/")[0] for name in names} == {"evenkeel"}


def test_bill_of_materials_lists_every_pin_with_its_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (layer,) = (requirements_lock for requirements_lock in environments.LOCKS if requirements_lock.name == "layer")
    monkeypatch.setattr(environments, "LOCKS", (layer,))

    package.write_sboms(tmp_path)

    document = json.loads((tmp_path / "layer.cdx.json").read_text())
    assert document["bomFormat"] == "CycloneDX"
    assert {component["name"]: component["version"] for component in document["components"]} == layer.pins()
    assert all(component["externalReferences"][0]["hashes"] for component in document["components"])
    assert document["metadata"]["component"]["version"] == package.version()


def test_release_checksums_have_the_format_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")

    package.write_checksums(tmp_path)

    assert (tmp_path / package.CHECKSUMS).read_text() == f"{hashlib.sha256(b'content').hexdigest()}  a\n"


WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))


def test_release_workflow_pins_every_action_by_commit() -> None:
    used_actions = [step["uses"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "uses" in step]

    assert used_actions
    assert [action for action in used_actions if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)] == []


def test_release_workflow_has_the_commit_of_the_upgrade_test() -> None:
    checkout = WORKFLOW["jobs"]["build"]["steps"][0]

    assert checkout["uses"].startswith("actions/checkout@")
    assert checkout["with"]["fetch-depth"] == 0, "tests/local/test_upgrade.py skips a case in a shallow clone"


def test_release_workflow_writes_only_where_it_publishes() -> None:
    assert WORKFLOW["permissions"] == {}
    assert WORKFLOW["jobs"]["build"]["permissions"] == {"contents": "read"}
    commands = [step.get("run", "") for step in WORKFLOW["jobs"]["publish"]["steps"]]
    assert not any("make" in command for command in commands), "run no code of the project in the job that may write"


def commands_of(job: str) -> list[str]:
    """Return the commands of a job of the release workflow."""
    return [step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step]


def run_command(command: str, folder: Path, **variables: str) -> int:
    """Run a command as a runner of GitHub does, and return its exit code."""
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command]
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, check=False).returncode


def published_patterns() -> list[str]:
    """Return the patterns of the files that the workflow signs or publishes."""
    signed = [
        step["with"]["subject-path"]
        for step in WORKFLOW["jobs"]["publish"]["steps"]
        if "subject-path" in step.get("with", {})
    ]
    (publish,) = commands_of("publish")
    return re.findall(r"dist/\S+", " ".join([*signed, publish]))


def test_release_workflow_makes_only_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    made_targets = re.findall(r"^make (\S+)$", "\n".join(commands_of("build")), re.MULTILINE)

    assert made_targets == ["test-all", "package"]
    assert set(made_targets) <= targets


@pytest.mark.parametrize(("tag", "exit_code"), [(f"v{package.version()}", 0), ("v99.0.0", 1)])
def test_release_workflow_compares_tag_with_version(tag: str, exit_code: int) -> None:
    (command,) = (command for command in commands_of("build") if "GITHUB_REF_NAME" in command)
    folder = str(Path(sys.executable).parent)

    assert run_command(command, ROOT, GITHUB_REF_NAME=tag, PATH=f"{folder}:{os.environ['PATH']}") == exit_code


def test_release_workflow_checks_the_checksums(tmp_path: Path, release: Path) -> None:
    (command,) = (command for command in commands_of("build") if "sha256sum" in command)
    shutil.copytree(release, tmp_path / "dist" / f"evenkeel-{package.version()}")

    assert run_command(command, tmp_path) == 0
    (tmp_path / "dist" / f"evenkeel-{package.version()}" / "template.yaml").write_text("changed")
    assert run_command(command, tmp_path) == 1


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_package_has_every_file_that_the_workflow_publishes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.package", "prod", "--dist", str(tmp_path / "dist")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    (command,) = (command for command in commands_of("build") if "sha256sum" in command)
    assert run_command(command, tmp_path) == 0
    assert published_patterns()
    assert [pattern for pattern in published_patterns() if not [*tmp_path.glob(pattern)]] == []
    # actions/upload-artifact leaves hidden files off.
    assert [*tmp_path.rglob(".*")] == []
    folder = tmp_path / "dist" / f"evenkeel-{package.version()}"
    folders = {"artifacts", "charts", "deploy", "forwarding", "sbom", "terraform", "wheels"}
    assert {path.name for path in folder.iterdir()} == {"LICENSE", package.CHECKSUMS, "template.yaml", *folders}


def test_chart_and_local_distribution_have_the_projects_version() -> None:
    described = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())

    assert (described["version"], described["appVersion"]) == (package.version(), package.version())
    assert f'version = "{package.version()}"' in (ROOT / "local" / "pyproject.toml").read_text()
