"""What a user installs: source archive -> wheel -> an environment that has never seen this tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from fp8debug import __version__

LINKS = {name: Path("fp8debug") / name for name in ("hooks", "analysis", "cli")}


@dataclass(frozen=True)
class Installed:
    """Both archives, and the interpreter of the environment the wheel was installed in."""

    sdist: Path
    wheel: Path
    python: Path

    def run(self, *arguments: str) -> str:
        """Run the interpreter away from the source tree; its standard output."""
        command = [str(self.python), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.wheel.parent, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    # A copy: a build leaves its manifest behind, and an old manifest brings back files that are gone.
    source, dist = tmp_path_factory.mktemp("source") / "fp8debug", tmp_path_factory.mktemp("dist")
    shutil.copytree(
        repository,
        source,
        symlinks=True,
        ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "tests", "sample_dumps", "fp8debug-runs"),
    )
    _run("-m", "build", "--no-isolation", "--outdir", str(dist), str(source))
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")

    environment = tmp_path_factory.mktemp("environment")
    _run("-m", "venv", "--without-pip", str(environment))
    python = environment / "bin" / "python"
    _run("-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps", str(wheel))
    # The dependencies come from here. Only after the install, so that pip does not find an fp8debug already; and a
    # path in a .pth does not run the .pth files at that path, so the editable install stays out of sight.
    site_packages = sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)})
    (Path(site_packages) / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return Installed(sdist, wheel, python)


def _run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}\n{done.stderr}"


def _in_tree(repository: Path) -> set[str]:
    """Every file of the package folder that is not compiled from another."""
    files = (path for path in (repository / "fp8debug").rglob("*") if path.is_file())
    return {str(p.relative_to(repository)) for p in files if "__pycache__" not in p.parts}


def test_wheel_holds_the_whole_package_and_nothing_else(installed: Installed, repository: Path) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    packaged = {name for name in names if not name.startswith(f"fp8debug-{__version__}.dist-info/")}
    assert packaged == _in_tree(repository)
    assert {name for name in packaged if name.endswith(".sql")}, "no view was found: the comparison proves nothing"
    assert f"fp8debug-{__version__}.dist-info/licenses/LICENSE" in names


def test_source_archive_holds_the_whole_package(installed: Installed, repository: Path) -> None:
    with tarfile.open(installed.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert _in_tree(repository) <= names
    assert {"LICENSE", "pyproject.toml"} <= names
    assert not {name for name in names if name.split("/")[0] in LINKS}


def test_installed_command_runs(installed: Installed) -> None:
    command = installed.python.parent / "fp8debug"
    done = subprocess.run([str(command), "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "attach" in done.stdout and "report" in done.stdout
    assert installed.run("-m", "fp8debug", "--version") == f"fp8debug {__version__}\n"


def test_installed_subpackages_import(installed: Installed) -> None:
    code = (
        "import fp8debug.hooks, fp8debug.analysis, fp8debug.cli, fp8debug\n"
        "from pathlib import Path\n"
        "n_views = len([*Path(fp8debug.__file__).parent.rglob('*.sql')])\n"
        "print(fp8debug.__file__); print(n_views); print(fp8debug.attach.__name__, fp8debug.open_run.__name__)"
    )
    where, n_views, names = installed.run("-c", code).splitlines()
    assert Path(where).is_relative_to(installed.python.parent.parent)
    assert int(n_views) == len([n for n in zipfile.ZipFile(installed.wheel).namelist() if n.endswith(".sql")])
    assert names == "attach open_run"


def test_links_at_the_root_are_links(repository: Path) -> None:
    for name, target in LINKS.items():
        assert os.readlink(repository / name) == str(target)
        assert (repository / target).is_dir()
