"""The vendor mirror, built once for all tests of the lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from rackwright.lab import mirror
from rackwright.lab.mirror import Mirror


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Mirror:
    return mirror.build(tmp_path_factory.mktemp("mirror"))


@pytest.fixture
def cache(built: Mirror, tmp_path: Path) -> Path:
    """Return a cache of its own that has the wheels' ptxas already."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for path in built.www.parent.glob("ptxas-*"):
        (folder / path.name).symlink_to(path)
    return folder
