"""The site's hosts for pyinfra: `$RACKWRIGHT_CLUSTER`, else the cluster.yaml beside this file."""

import os as _os
import sys as _sys
from pathlib import Path as _Path

from rackwright.config import load as _load
from rackwright.errors import RackwrightError as _RackwrightError
from rackwright.inventory import pyinfra_groups as _pyinfra_groups

try:
    _path = _os.environ.get("RACKWRIGHT_CLUSTER") or _Path(__file__).with_name("cluster.yaml")
    globals().update(_pyinfra_groups(_load(_path)))
except _RackwrightError as _error:
    print(_error, file=_sys.stderr)
    _sys.exit(2)
