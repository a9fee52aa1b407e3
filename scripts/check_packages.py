"""Build the sdist and the wheel, check what is in them, and import the installed wheel.

1. Build the sdist from the tree and the wheel from that sdist, as an installer would.
2. Compare the wheel with the tree: every file of the package, and nothing beside it.
3. Install the wheel into an empty virtual environment and import it from outside the checkout.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "django_jobq"
NEEDED_IN_WHEEL = {f"{PACKAGE}/py.typed", f"{PACKAGE}/migrations/__init__.py"}
NEEDED_IN_SDIST = {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"}
IMPORT_CHECK = """
import pathlib, sys
import django_jobq
from django.conf import settings

where = pathlib.Path(django_jobq.__file__).resolve()
assert where.is_relative_to(pathlib.Path(sys.prefix).resolve()), f"imported from {where}"
assert not settings.configured, "importing django_jobq configured the settings"
print("import django_jobq works without settings:", django_jobq.__version__)
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="jobq-packaging-") as scratch:
        sdist, wheel = build(Path(scratch, "dist"))
        check_sdist(sdist)
        check_wheel(wheel)
        check_install(wheel, Path(scratch, "venv"))


def build(target: Path) -> tuple[Path, Path]:
    """Build both with the build backend already installed, and return their paths."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        fail(f"the build failed:\n{result.stdout}{result.stderr}")
    (sdist,), (wheel,) = target.glob("*.tar.gz"), target.glob("*.whl")
    print(f"built {sdist.name} and {wheel.name}", flush=True)
    return sdist, wheel


def check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = NEEDED_IN_SDIST | package_files()
    if missing := expected - names:
        fail(f"the sdist lacks {', '.join(sorted(missing))}")


def check_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packaged = {name for name in names if name.startswith(f"{PACKAGE}/")}
    expected = NEEDED_IN_WHEEL | package_files()
    if missing := expected - packaged:
        fail(f"the wheel lacks {', '.join(sorted(missing))}")
    if extra := packaged - expected:
        fail(f"the wheel has files that the tree has not: {', '.join(sorted(extra))}")
    metadata = wheel.name.split("-py3-")[0] + ".dist-info/"
    if stray := {name for name in names - packaged if not name.startswith(metadata)}:
        fail(f"the wheel installs files outside {PACKAGE}: {', '.join(sorted(stray))}")
    print(f"the wheel has the {len(packaged)} files of {PACKAGE} and nothing else", flush=True)


def package_files() -> set[str]:
    """Return every file of the package in the tree, as names in an archive."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def check_install(wheel: Path, environment: Path) -> None:
    # A bare environment and the pip of this one: installing a second pip would prove nothing.
    venv.create(environment, with_pip=False)
    python = str(environment / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-qq", str(wheel)]
    subprocess.run(pip, check=True, cwd=environment)
    subprocess.run([python, "-I", "-c", IMPORT_CHECK], check=True, cwd=environment)


def fail(message: str) -> None:
    sys.exit(f"packaging: {message}")


if __name__ == "__main__":
    main()
