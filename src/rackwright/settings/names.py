"""Where a command finds the settings when none are named."""

from __future__ import annotations

import os
from pathlib import Path


def settings_file(named: Path | None = None) -> Path:
    """Return the file that was named, else `$RACKWRIGHT_CLUSTER`, else the site's in the working directory."""
    if named is not None:
        return named
    return Path(os.environ.get("RACKWRIGHT_CLUSTER") or "inventories/cluster.yaml")
