"""One lab host: systemd-nspawn over an overlay of the base tree, in network, cgroup and time namespaces of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rackwright.errors import HostFailure, Problem
from rackwright.lab.base import os_release
from rackwright.lab.system import Process, run, start, wait

# Started under `unshare -m`. What is not obvious: nspawn wants a tmpfs of its own on /run/systemd/nspawn and leaves
# with 133 when the host reboots; a time namespace lets /proc/uptime begin anew, as pyinfra's reboot check expects;
# each host has its own cgroup, in every hierarchy of a machine that still has version 1.
_SUPERVISOR = """set -u
for c in {cgroups}; do
  mkdir -p "$c" || continue
  [ -e "$c/cpuset.cpus" ] && cat "$c/../cpuset.cpus" >"$c/cpuset.cpus" && cat "$c/../cpuset.mems" >"$c/cpuset.mems"
  echo $$ >"$c/cgroup.procs"
done 2>/dev/null
mount --make-rprivate /
mkdir -p /run/systemd/nspawn && mount -t tmpfs tmpfs /run/systemd/nspawn
mount -t overlay overlay -o lowerdir={base},upperdir={upper},workdir={work} {root} || exit 1
export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 SYSTEMD_NSPAWN_LOCK=0 SYSTEMD_NSPAWN_API_VFS_WRITABLE=network
while :; do
  up=$(cut -d. -f1 /proc/uptime)
  unshare -T --boottime=-$up --monotonic=-$up systemd-nspawn -q --register=no --keep-unit -M {name} --hostname={name} \\
    -D {root} --network-namespace-path=/run/netns/{namespace} --resolv-conf=off --link-journal=no --console=pipe \\
    --capability=all --bind=/dev/fuse --system-call-filter="add_key keyctl bpf" -b
  rc=$?
  [ $rc = 133 ] || exit $rc
done
"""


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
    def pid_file(self) -> Path:
        """Return the file that names the supervisor."""
        return self.folder / "supervisor.pid"

    def prepare(self, system: str, hosts: str, authorized_key: str, certificate: Path) -> None:
        """Write what makes this host itself, once: names, keys, system."""
        etc = self.upper / "etc"
        if etc.exists():
            (etc / "hosts").write_text(hosts)
            return
        for folder in (self.folder / "work", self.folder / "root", etc / "ssh", self.upper / "root/.ssh"):
            folder.mkdir(parents=True)
        for folder in (self.upper, etc, etc / "ssh"):
            folder.chmod(0o755)
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "hosts").write_text(hosts)
        (etc / "os-release").write_text(os_release(system))
        (self.upper / "root").chmod(0o700)
        for user in ("root", "home/ubuntu", "home/rack"):
            ssh = self.upper / user / ".ssh"
            ssh.mkdir(parents=True, exist_ok=True, mode=0o700)
            (ssh / "authorized_keys").write_text(authorized_key)
            if user != "root":
                owner = (self.base / user).stat()
                for path in (self.upper / user, ssh, ssh / "authorized_keys"):
                    os.chown(path, owner.st_uid, owner.st_gid)
                (self.upper / user).chmod(0o755)
        run(
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            self.name,
            "-f",
            str(etc / "ssh/ssh_host_ed25519_key"),
        )
        bundle = self.base / "etc/ssl/certs/ca-certificates.crt"
        ours = etc / "ssl/certs/ca-certificates.crt"
        ours.parent.mkdir(parents=True)
        ours.write_bytes(bundle.read_bytes() + certificate.read_bytes())
        local = self.upper / "usr/local/share/ca-certificates/rackwright-lab.crt"
        local.parent.mkdir(parents=True)
        local.write_bytes(certificate.read_bytes())

    def public_key(self) -> str:
        """Return the host's public ssh key, as known_hosts has it after the names."""
        text = (self.upper / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
        return " ".join(text.split()[:2])

    def cgroups(self) -> list[str]:
        """Return this host's cgroup in each hierarchy of the machine."""
        root = Path("/sys/fs/cgroup")
        tops = [root] if (root / "cgroup.procs").exists() else [path for path in root.iterdir() if path.is_dir()]
        return [str(top / self.cgroup) for top in tops if (top / "cgroup.procs").exists()]

    def supervisor(self) -> Process | None:
        """Return the process that keeps the host running."""
        return Process.read(self.pid_file)

    def leader(self) -> Process | None:
        """Return the host's init."""
        at = self.supervisor()
        for _ in range(4):
            if at is None:
                return None
            children = at.children()
            if not children:
                return None
            at = Process.of(children[0])
            if at is not None and Path(f"/proc/{at.pid}/comm").read_text().strip() == "systemd":
                return at
        return None

    def boot(self) -> None:
        """Start the supervisor; the host is not ready yet when this returns."""
        if self.supervisor() is not None:
            return
        text = _SUPERVISOR.format(
            cgroups=" ".join(self.cgroups()), base=self.base, upper=self.upper, work=self.folder / "work",
            root=self.folder / "root", name=self.name, namespace=self.namespace,
        )  # fmt: skip
        script = self.folder / "supervisor.sh"
        script.write_text(text)
        start(["unshare", "-m", "bash", str(script)], self.folder / "console.log").write(self.pid_file)

    def crash(self) -> None:
        """Kill the host's init without warning: a power failure."""
        leader, supervisor = self.leader(), self.supervisor()
        if leader is None:
            raise HostFailure(Problem(f"{self.name} is not up", "the lab", f"rackwright lab up, or start {self.name}"))
        leader.kill(signal.SIGKILL)
        if supervisor is not None and not wait(lambda: not supervisor.alive(), 20):
            self.stop()
        self._clean()

    def stop(self) -> None:
        """End the host: shut down in order if it can within seconds, else killed. Whatever it had is removed."""
        supervisor = self.supervisor()
        leader = self.leader()
        if supervisor is not None and leader is not None:
            leader.kill(signal.SIGRTMIN + 4)  # systemd(1): power off
            wait(lambda: not supervisor.alive(), 8)
        for process in (self.leader(), supervisor):
            if process is not None:
                process.kill()
        if supervisor is not None:
            wait(lambda: not supervisor.alive(), 5)
        self._clean()

    def _clean(self) -> None:
        for path in map(Path, self.cgroups()):
            if not path.exists():
                continue
            for procs in path.rglob("cgroup.procs"):
                for pid in procs.read_text().split():
                    process = Process.of(int(pid))
                    if process is not None:
                        process.kill()
            wait(lambda path=path: _remove_cgroup(path), 3)  # type: ignore[misc]
        self.pid_file.unlink(missing_ok=True)

    def run(self, argv: Sequence[str], *, stdin: str | None, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a command in the host without ssh, as root."""
        leader = self.leader()
        if leader is None:
            raise HostFailure(Problem(f"{self.name} is not up", "the lab", "rackwright lab up"))
        inside = ["nsenter", "-t", str(leader.pid), "-a", "--", "env", "-i", "HOME=/root", "LC_ALL=C", "TERM=dumb",
                  "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *argv]  # fmt: skip
        return subprocess.run(inside, capture_output=True, text=True, input=stdin, timeout=timeout)

    def purge(self) -> None:
        """Forget the host's disk."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _remove_cgroup(path: Path) -> bool:
    for folder in sorted(path.rglob("*"), key=lambda one: len(one.parts), reverse=True):
        if folder.is_dir():
            try:
                folder.rmdir()
            except OSError:
                return False
    try:
        path.rmdir()
    except OSError:
        return not path.exists()
    return True
