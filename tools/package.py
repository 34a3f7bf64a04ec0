"""Package a release: everything that an installation needs, in one folder of `dist/`.

    template.yaml       the template; its code is in a bucket that two parameters name
    artifacts/          the code of the functions, the layer and the workflows; each name contains the content's hash
    charts/, wheels/    the Helm chart, and the wheels of both distributions
    terraform/          the Terraform module
    deploy/, forwarding/  the templates of VPC endpoints, and of events from other accounts and regions
    sbom/               a CycloneDX document for each lock
    SHA256SUMS          the checksum of every file

The same commit and the same tools give the same bytes: archives have sorted names, fixed times and fixed modes.
"""

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from evenkeel_cli.offline.planned_stack import read_planned_stack
from tools import build, chart, environments, terraform

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
SBOM = ROOT / ".tools" / "sbom" / "bin" / "cyclonedx-py"
CHECKSUMS = "SHA256SUMS"
OTHER_TEMPLATES = ("deploy", "forwarding")
"""Folders with templates of stacks beside the main one."""
BUCKET, PREFIX = "ArtifactBucket", "ArtifactPrefix"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip file can store."""
_URIS = {
    "AWS::Serverless::Function": ("CodeUri", "functions"),
    "AWS::Serverless::LayerVersion": ("ContentUri", "layers"),
    "AWS::Serverless::StateMachine": ("DefinitionUri", "workflows"),
}
"""Property that names the code of each type of resource, and the folder of its artifacts."""

Json = dict[str, Any]
Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml is many times faster, if the wheel contains it. Both write the same text."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("environment", help="an environment of samconfig.toml: it decides runtime and architecture")
    parser.add_argument("--dist", type=Path, default=DIST)
    args = parser.parse_args()
    planned = read_planned_stack(ROOT, args.environment)
    runtime, architecture = planned.parameters["PythonRuntime"], planned.parameters["Architecture"]
    folder = args.dist / f"evenkeel-{version()}"
    shutil.rmtree(args.dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch, "build")
        if build.build(runtime, architecture, built):
            return 1
        package_template(built, folder, {"PythonRuntime": runtime, "Architecture": architecture})
    write_tar(chart.CHART, folder / "charts" / f"evenkeel-{version()}.tgz", under="evenkeel")
    shutil.copy(chart.MANIFEST, folder / "charts")
    write_tar(terraform.VARIABLES.parent, folder / "terraform" / f"evenkeel-{version()}.tar.gz", under="evenkeel")
    copy_other_templates(folder)
    build_wheels(folder / "wheels")
    write_sboms(folder / "sbom")
    shutil.copy(ROOT / "LICENSE", folder)
    write_checksums(folder)
    archive = args.dist / f"{folder.name}.tar.gz"
    write_tar(folder, archive, under=folder.name)
    print(f"package: {folder} and {archive.name}, sha256 {digest_of(archive)}")
    return 0


def version() -> str:
    """Return the version of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


# ---------------------------------------------------------------- the template and its code


def package_template(built: Path, folder: Path, pinned: dict[str, str]) -> None:
    """Write the template and the artifacts of a build of sam.

    Args:
        built: The folder of the build.
        folder: The release.
        pinned: Parameters to which the build is bound, such as the architecture of the layer.
    """
    template: Json = yaml.load((built / "template.yaml").read_text(encoding="utf-8"), Loader=Loader)  # noqa: S506 (it is a safe loader)
    for name, resource in template["Resources"].items():
        if resource["Type"] in _URIS:
            key, kind = _URIS[resource["Type"]]
            resource.pop("Metadata", None)
            stored = store_artifact(built / resource["Properties"][key], folder / "artifacts" / kind, name)
            # An update replaces code only if its key changes. So the key contains the hash.
            location = {"Fn::Sub": f"${{{PREFIX}}}{kind}/{stored}"}
            resource["Properties"][key] = {"Bucket": {"Ref": BUCKET}, "Key": location}
    for name, value in pinned.items():
        template["Parameters"][name] |= {"Default": value, "AllowedValues": [value]}
        template["Parameters"][name].pop("AllowedPattern", None)
    template["Parameters"] |= {
        BUCKET: {"Type": "String", "Description": "Bucket in this region with the folder artifacts of the release."},
        PREFIX: {
            "Type": "String",
            "Default": f"evenkeel/{version()}/",
            "AllowedPattern": "([^/]+/)*",
            "Description": "Prefix of the artifacts in the bucket; ends in a slash.",
        },
    }
    text = yaml.dump(template, Dumper=Dumper, sort_keys=False, width=10_000, allow_unicode=True)
    (folder / "template.yaml").write_text(text, encoding="utf-8")


def store_artifact(source: Path, folder: Path, name: str) -> str:
    """Store a file, or a folder as a zip file, under a name with the hash of its content. Return the name."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / name
    if source.is_dir():
        write_zip(source, beside)
        suffix = ".zip"
    else:
        shutil.copyfile(source, beside)
        suffix = source.suffix
    stored = f"{name}-{digest_of(beside)[:16]}{suffix}"
    beside.rename(folder / stored)
    return stored


def write_zip(source: Path, target: Path) -> None:
    """Write a zip file that depends only on names, contents and executable bits."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in _files(source):
            member = zipfile.ZipInfo(path.relative_to(source).as_posix(), _EPOCH)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = (0o100000 | _file_mode(path)) << 16
            archive.writestr(member, path.read_bytes())


def write_tar(source: Path, target: Path, under: str) -> None:
    """Write a compressed tar file of a folder, with the same rules."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=9, fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for path in _files(source):
            member = tarfile.TarInfo(f"{under}/{path.relative_to(source).as_posix()}")
            member.size, member.mode = path.stat().st_size, _file_mode(path)
            with path.open("rb") as content:
                archive.addfile(member, content)


def _files(folder: Path) -> Iterable[Path]:
    return sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.as_posix())


def _file_mode(path: Path) -> int:
    return 0o755 if path.stat().st_mode & 0o100 else 0o644


# ---------------------------------------------------------------- wheels, bills of materials, checksums


def copy_other_templates(folder: Path) -> None:
    """Copy the templates of other stacks, under the paths that the pages name."""
    for name in OTHER_TEMPLATES:
        shutil.copytree(ROOT / name, folder / name, copy_function=shutil.copy)


def build_wheels(folder: Path) -> None:
    """Build the wheel of each distribution. hatchling gives every file the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in environments.DISTRIBUTIONS:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder.resolve())]
        _run(command, cwd=path)


def write_sboms(folder: Path) -> None:
    """Write a CycloneDX document for each lock. `layer` is the part that runs in AWS; the rest builds and tests it."""
    folder.mkdir(parents=True, exist_ok=True)
    for lock in environments.LOCKS:
        target = folder / f"{lock.name}.cdx.json"
        options = ["--pyproject", "pyproject.toml", "--output-reproducible", "--spec-version", "1.6"]
        _run([str(SBOM), "requirements", f"requirements/{lock.name}.txt", *options, "--output-file", str(target)])


def write_checksums(folder: Path) -> None:
    """Write the checksum of every file in the format of sha256sum."""
    lines = [f"{digest_of(path)}  {path.relative_to(folder).as_posix()}\n" for path in _files(folder)]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _run(command: list[str], cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, env=dict(os.environ), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"package: {' '.join(command[:4])} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
