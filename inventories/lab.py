"""The rehearsal lab's hosts: enters the lab's network, which has no route to this machine, and returns them.

`$RACKWRIGHT_LAB` names the lab, `$RACKWRIGHT_CLUSTER` other settings for it than its own.
"""

import os as _os
import sys as _sys

from rackwright.config import load as _load
from rackwright.errors import RackwrightError as _RackwrightError
from rackwright.inventory import pyinfra_groups as _pyinfra_groups
from rackwright.lab import Lab as _Lab

try:
    _lab = _Lab()
    _lab.enter()
    globals().update(_pyinfra_groups(_load(_os.environ.get("RACKWRIGHT_CLUSTER") or _lab.settings_path)))
except _RackwrightError as _error:
    print(_error, file=_sys.stderr)
    _sys.exit(2)
