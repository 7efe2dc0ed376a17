"""`Run` and `Write` as shell text: with time-outs, waiting for package locks, whole files by rename.

The text of a package command survives a lost connection: apt writes to a file, not into the ssh channel, so that a
cut cable or a killed control process does not stop it between two packages.
"""

from __future__ import annotations

import base64
import posixpath
import shlex

from rackwright.change import Run, Write

LOCK_WAIT_S = 600
"""How long a package command waits for another one to finish."""

KEPT_CONFFILE = "rackwright: kept the changed "
"""What a package command prints for each configuration file that it left as the administrator had it."""

# Set after sudo, which would strip them. needrestart only lists (mode l): it restarts nothing behind one's back.
_QUIET = (
    "export DEBIAN_FRONTEND=noninteractive DEBIAN_PRIORITY=critical NEEDRESTART_MODE=l UCF_FORCE_CONFFOLD=1"
    " APT_LISTCHANGES_FRONTEND=none LC_ALL=C LANGUAGE=C"
)

# The messages of apt and dpkg when a lock is taken (apt-pkg/deb/debsystem.cc, dpkg's lib/dpkg/dbmodify.c).
_LOCKED = "Could not get lock|Unable to (acquire|lock)|lock was locked by another process|is locked by another process"

# apt gives dpkg a terminal of its own: the lines of its log end with CR LF.
_PACKAGE_COMMAND = """{quiet}
log=$(mktemp /run/rackwright-log.XXXXXXXX) || exit 97
waited=0
while :; do
  timeout -k 30 {timeout} {command} </dev/null >"$log" 2>&1; rc=$?
  [ $rc -ne 0 ] && [ $waited -lt {wait} ] && grep -qE {locked} "$log" || break
  sleep 2; waited=$((waited + 2))
done
grep -qE {locked} "$log" && [ $rc -ne 0 ] && echo "waited $waited s for the package manager; never remove its lock" >&2
if [ $rc -eq 0 ]; then cat "$log"; else tail -n 40 "$log" >&2; fi
tr -d '\\r' <"$log" | sed -n "s/^Configuration file '\\(.*\\)'$/\\1/p" | while read -r f; do
  [ -e "$f.dpkg-dist" ] && echo "{kept}$f (the package's own is $f.dpkg-dist)"
done
rm -f "$log"
exit $rc"""


def run_text(command: Run) -> str:
    """Return the shell text of a command."""
    argv = shlex.join(command.argv)
    if not command.packages:
        return f"export LC_ALL=C; timeout -k 10 {command.timeout_s} {argv}"
    return _PACKAGE_COMMAND.format(
        quiet=_QUIET,
        timeout=command.timeout_s,
        command=argv,
        wait=LOCK_WAIT_S,
        locked=shlex.quote(_LOCKED),
        kept=KEPT_CONFFILE,
    )


def write_text(command: Write) -> tuple[str, str, str]:
    """Return the shell text that puts a file in place, in three parts: before its content, content, and after.

    The middle part is base64 and holds any secret; the caller hides it.
    """
    path, folder = shlex.quote(command.path), shlex.quote(posixpath.dirname(command.path))
    new = shlex.quote(f"{command.path}.rackwright-new")
    before = f"umask 022; mkdir -p {folder} && : >{new} && chmod 0600 {new} && printf %s "
    after = (
        f" | base64 -d >{new} && chown root:root {new} && chmod {command.mode:04o} {new}"
        f" && sync {new} && mv -f {new} {path}"
    )
    return before, base64.b64encode(command.content).decode() or "''", after
