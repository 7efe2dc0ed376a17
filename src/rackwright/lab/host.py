"""One lab host: systemd-nspawn over an overlay of the base tree, in network, cgroup and time namespaces of its own."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rackwright.errors import HostFailure, Problem
from rackwright.lab import system
from rackwright.lab.cgroup import Cgroup
from rackwright.lab.service import Service
from rackwright.lab.system import Process

# What is not obvious: nspawn wants a tmpfs of its own on /run/systemd/nspawn and leaves with 133 when the host reboots;
# a time namespace lets /proc/uptime begin anew, as pyinfra's reboot check expects. All mounts are in a namespace of the
# supervisor's own, and go with it.
_SUPERVISOR = """set -u
mount --make-rprivate /
mkdir -p /run/systemd/nspawn && mount -t tmpfs tmpfs /run/systemd/nspawn || exit 1
mount -t overlay overlay -o lowerdir={lower},upperdir={upper},workdir={work} {root} || exit 1
export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 SYSTEMD_NSPAWN_LOCK=0 SYSTEMD_NSPAWN_API_VFS_WRITABLE=network
while :; do
  up=$(cut -d. -f1 /proc/uptime)
  unshare -T --boottime=-$up --monotonic=-$up systemd-nspawn -q --register=no --keep-unit -M {name} --hostname={name} \\
    -D {root} --network-namespace-path=/run/netns/{namespace} --resolv-conf=off --link-journal=no --console=pipe \\
    --capability=all --drop-capability={forbidden} {devices} \\
    --system-call-filter="add_key keyctl bpf" -b
  rc=$?
  [ $rc = 133 ] || exit $rc
done
"""
# What these allow has no namespace: a host would set the clock, the modules or the log of the whole machine.
_FORBIDDEN = ("sys_time", "sys_module", "sys_rawio", "syslog")
_INSIDE = (
    "env", "-i", "HOME=/root", "LC_ALL=C", "TERM=dumb",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
)  # fmt: skip
HARDWARE = "var/lib/rackwright-lab/hardware.json"
"""Where a host keeps what hardware it declares, which its devices' stand-ins answer by."""
_DEPTH = 4
_POWER_OFF_S = 15
_USERS = ("root", "home/ubuntu", "home/rack")


@dataclass(frozen=True)
class HostFiles:
    """Where a host keeps what it is made of."""

    folder: Path
    name: str
    namespace: str
    base: Path
    cgroup: str

    @property
    def upper(self) -> Path:
        """Return the overlay's upper folder: all that differs from the base tree."""
        return self.folder / "upper"

    @property
    def service(self) -> Service:
        """Return the supervisor, which keeps the host running and boots it again when it reboots."""
        return Service(self.folder, "supervisor", Cgroup(self.cgroup))

    def prepare(self, layer: Path, hosts: str, authorized_key: str, hardware: Mapping[str, object]) -> None:
        """Write what makes this host itself, once and as a whole: names, keys, system (its layer), hardware."""
        if self.folder.exists():
            return
        unfinished = self.folder.with_name(f".new-{self.name}")  # no host's name begins with a dot
        shutil.rmtree(unfinished, ignore_errors=True)
        for part in ("work", "root", "upper/etc/ssh", "upper/home", "upper/root"):
            (unfinished / part).mkdir(parents=True)
        upper = unfinished / "upper"
        etc = upper / "etc"
        machine = upper / HARDWARE
        machine.parent.mkdir(parents=True)
        machine.write_text(json.dumps(hardware, indent=1))
        for folder in (upper, etc, etc / "ssh", upper / "home", *list(machine.parents)[:3]):
            folder.chmod(0o755)
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "hosts").write_text(hosts)
        for user in _USERS:
            self._let_in(upper, user, authorized_key)
        key = etc / "ssh/ssh_host_ed25519_key"
        system.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", str(key))
        (unfinished / "hosts").write_text(hosts)
        (unfinished / "layer").write_text(str(layer))
        unfinished.rename(self.folder)

    def _let_in(self, upper: Path, user: str, authorized_key: str) -> None:
        home = (self.base / user).stat()
        ssh = upper / user / ".ssh"
        ssh.mkdir(parents=True)
        (ssh / "authorized_keys").write_text(authorized_key)
        for path, mode in ((upper / user, home.st_mode & 0o7777), (ssh, 0o700), (ssh / "authorized_keys", 0o600)):
            path.chmod(mode)
            os.chown(path, home.st_uid, home.st_gid)

    def rename_neighbours(self, hosts: str) -> None:
        """Let the host know of hosts that came since; a file that did not change on our side is left as it is."""
        known = self.folder / "hosts"
        if known.read_text() == hosts:
            return
        leader = self.leader()
        # Below a mounted overlay its upper folder is not to be written to.
        root = self.upper if leader is None else Path(f"/proc/{leader.pid}/root")
        (root / "etc/hosts").write_text(hosts)
        known.write_text(hosts)

    def public_key(self) -> str:
        """Return the host's public ssh key, as known_hosts has it after the names."""
        text = (self.upper / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
        return " ".join(text.split()[:2])

    def leader(self) -> Process | None:
        """Return the host's init."""
        at = self.service.process()
        generation = [at] if at is not None else []
        for _ in range(_DEPTH):
            generation = [child for process in generation for child in process.children()]
            for process in generation:
                if process.command() == "systemd":
                    return process
        return None

    def boot(self) -> None:
        """Start the supervisor; the host is not ready yet when this returns."""
        text = _SUPERVISOR.format(
            lower=shlex.quote(f"{(self.folder / 'layer').read_text()}:{self.base}"), upper=shlex.quote(str(self.upper)),
            work=shlex.quote(str(self.folder / "work")), root=shlex.quote(str(self.folder / "root")),
            name=self.name, namespace=self.namespace,
            forbidden=",".join(f"CAP_{name.upper()}" for name in _FORBIDDEN),
            devices="--bind=/dev/fuse" if Path("/dev/fuse").exists() else "",
        )  # fmt: skip
        script = self.folder / "supervisor.sh"
        unfinished = script.with_suffix(".new")  # bash reads a script while it runs it
        unfinished.write_text(text)
        unfinished.replace(script)
        self.service.start(["unshare", "-m", "bash", str(script)])

    def crash(self) -> None:
        """Kill everything in the host at once, without warning: a power failure."""
        leader = self.leader()
        if leader is None:
            raise HostFailure(
                Problem(f"{self.name} is not up", "the lab", "rackwright lab start, or up, brings it back")
            )
        leader.kill(signal.SIGKILL)  # the kernel kills what is in its PID namespace
        system.wait(lambda: self.service.process() is None, _POWER_OFF_S)
        self.service.stop()

    def stop(self) -> None:
        """End the host: shut down in order if it can within seconds, else killed. Whatever it had is removed."""
        leader = self.leader()
        if leader is not None:
            leader.kill(signal.SIGRTMIN + 4)  # systemd(1): power off
            system.wait(lambda: self.service.process() is None, _POWER_OFF_S)
        self.service.stop()

    def run(self, argv: Sequence[str], *, stdin: str | None, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a command in the host without ssh, as root."""
        leader = self.leader()
        if leader is None:
            raise HostFailure(Problem(f"{self.name} is not up", "the lab", "rackwright lab up"))
        # nsenter(1) takes over a process's namespaces and not its capabilities: these have to be given up apart.
        without = ",".join(f"-{name}" for name in _FORBIDDEN)
        lesser = ["setpriv", f"--bounding-set={without}", f"--inh-caps={without}", "--"]
        inside = [*lesser, "nsenter", "-t", str(leader.pid), "-a", "-r", "-w", "--", *_INSIDE, *argv]
        with subprocess.Popen(
            inside, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
        ) as child:  # fmt: skip
            try:
                out, err = child.communicate(stdin, timeout)
            except BaseException as error:
                os.killpg(child.pid, signal.SIGKILL)  # nsenter forks, and its child holds the pipes
                if isinstance(error, subprocess.TimeoutExpired):
                    where = f"{self.name}: {shlex.join(argv)}"
                    fix = "see what it waits for, or allow it more time"
                    raise HostFailure(Problem(f"no end after {timeout:.0f} s", where, fix)) from None
                raise
        return subprocess.CompletedProcess(list(argv), child.returncode, out, err)

    def purge(self) -> None:
        """Forget the host's disk."""
        gone = self.folder.with_name(f".gone-{self.name}")
        shutil.rmtree(gone, ignore_errors=True)
        if self.folder.exists():
            self.folder.rename(gone)
            shutil.rmtree(gone)
