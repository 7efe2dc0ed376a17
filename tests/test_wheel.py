"""What is shipped: both packages, their types, the site; and that it works from there alone."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build sdist and wheel, in the environment that is there: hatchling is among the development dependencies."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(_ROOT)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return folder


def test_the_wheel_holds_all_that_the_repository_does(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, inside in (("src/rackwright", "rackwright"), ("facts/rackwright_facts", "rackwright_facts")):
        ours = {f"{inside}/{path.relative_to(_ROOT / folder)}" for path in (_ROOT / folder).rglob("*.py")}
        assert ours <= names
        assert f"{inside}/py.typed" in names
    for folder in ("deploys", "inventories"):
        assert {f"rackwright/_site/{folder}/{path.name}" for path in (_ROOT / folder).glob("*.py")} <= names
    assert "rackwright/_site/inventories/cluster.yaml" in names
    assert not [name for name in names if "test" in Path(name).parts[0] or "__pycache__" in name]


def test_the_source_archive_holds_what_builds_and_tests_it(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "Makefile",
        "deploys/cuda.py",
        "facts/rackwright_facts/look.py",
    } <= names


def test_it_works_out_of_the_wheel_alone(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel],
        check=True, capture_output=True,
    )  # fmt: skip
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import rackwright, rackwright_facts.look, rackwright.lab, rackwright.site\n"
        "assert rackwright.__file__.startswith(sys.argv[1]), rackwright.__file__\n"
        "from pathlib import Path; rackwright.site.write(Path('made'))\n"
        "from rackwright.config import load; print(len(load('made/inventories/cluster.yaml').nodes))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(site)], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "8\n", done.stderr
