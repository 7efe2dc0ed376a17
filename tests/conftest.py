"""Which tests share a worker: those that share a lab, else those of one file."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group for `--dist loadgroup`: hosts are many, and a machine has room for few labs (fs.inotify)."""
    for item in items:
        shares = "rig" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("cuda" if shares else item.path.name))
