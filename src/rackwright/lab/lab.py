"""A rehearsal lab: real hosts in namespaces over one base tree, two networks, the vendors' mirror.

All state is on disk below `$RACKWRIGHT_LAB_DIR` (/var/lib/rackwright/lab), so that whatever was killed half-way can be
finished by `up` or removed by `down`. The bridges live in a namespace without any route to the machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rackwright.errors import HostFailure, Problem, UsageMistake
from rackwright.lab import base, mirror, system
from rackwright.lab.host import HostFiles
from rackwright.lab.system import Process, run

MANAGEMENT, FABRIC = "10.77.0", "10.78.0"
"""Networks of every lab, 24 bits each: no lab is reachable from outside, so all may use the same."""
MAX_HOSTS = 200
_READY_S = 90
_DISK_MIB = 1000


@dataclass(frozen=True)
class HostSpec:
    """A host as it is wanted."""

    name: str
    os: str = "ubuntu-22.04"


@dataclass(frozen=True)
class LabHost:
    """A host of a lab as it is."""

    name: str
    os: str
    address: str
    fabric_address: str
    up: bool


def cache_folder() -> Path:
    """Return where base tree, mirror and packages are kept for all labs."""
    return Path(os.environ.get("RACKWRIGHT_CACHE_DIR", "/var/cache/rackwright"))


class Lab:
    """The lab of one name; constructing it starts nothing."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name or os.environ.get("RACKWRIGHT_LAB") or "lab"
        if not self.name.replace("-", "").isalnum() or len(self.name) > 24 or not self.name.isascii():
            raise UsageMistake(
                Problem(f"{self.name!r} is no lab name", "--name", "letters, digits and hyphens, 24 at most")
            )
        self.folder = Path(os.environ.get("RACKWRIGHT_LAB_DIR", "/var/lib/rackwright/lab")) / self.name
        self.switch = f"rw-{self.name}"

    @property
    def settings_path(self) -> Path:
        """Return the cluster.yaml of exactly this lab."""
        return self.folder / "cluster.yaml"

    @property
    def key_path(self) -> Path:
        """Return the private ssh key of the lab's controller."""
        return self.folder / "id_ed25519"

    @property
    def access_log(self) -> Path:
        """Return the log of what the hosts asked the relay for."""
        return self.folder / "relay-access.log"

    def _state(self) -> list[tuple[int, HostSpec]]:
        try:
            state = json.loads((self.folder / "hosts.json").read_text())
        except FileNotFoundError:
            return []
        return [(index, HostSpec(**spec)) for index, spec in state]

    def _files(self, name: str) -> HostFiles:
        if all(spec.name != name for _, spec in self._state()):
            known = ", ".join(spec.name for _, spec in self._state()) or "none: it is not up"
            raise UsageMistake(
                Problem(f"there is no host {name!r} in the lab {self.name}", "HOST", f"its hosts: {known}")
            )
        tree = Path((self.folder / "base").read_text())
        return HostFiles(self.folder / "hosts" / name, name, f"{self.switch}-{name}", tree, f"{self.switch}-{name}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def up(self, wanted: Sequence[HostSpec], *, owner: Process | None = None) -> list[str]:
        """Bring up the lab with these hosts and return the names of those that were started.

        What is up stays as it is. With `owner` the lab is taken down and purged once that process is gone.
        """
        system.require(free_mib=_DISK_MIB, folder=self.folder)
        for spec in wanted:
            base.os_release(spec.os)
        if len({spec.name for spec in wanted}) != len(wanted) or len(wanted) > MAX_HOSTS:
            raise UsageMistake(Problem("a host is named twice, or there are too many", "hosts", f"{MAX_HOSTS} at most"))
        cache = cache_folder()
        tree, vendors = base.base_tree(cache), mirror.build(cache)
        with self._locked():
            state = self._state()
            known = {spec.name for _, spec in state}
            used = {index for index, _ in state}
            free = iter(index for index in range(1, MAX_HOSTS + 1) if index not in used)
            state += [(next(free), spec) for spec in wanted if spec.name not in known]
            (self.folder / "base").write_text(str(tree))
            temporary = self.folder / "hosts.json.new"
            temporary.write_text(json.dumps([(index, asdict(spec)) for index, spec in state]))
            temporary.rename(self.folder / "hosts.json")
            self._network()
            self._relay(cache, vendors, owner)
            return self._boot(state, {spec.name for spec in wanted}, cache, vendors)

    def _boot(
        self, state: list[tuple[int, HostSpec]], names: set[str], cache: Path, vendors: mirror.Mirror
    ) -> list[str]:
        if not self.key_path.exists():
            run(
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-C",
                "rackwright-lab",
                "-f",
                str(self.key_path),
            )
        public = self.key_path.with_suffix(".pub").read_text()
        hosts = self._hosts_file(state, vendors.hosts)
        started = []
        for index, spec in state:
            if spec.name not in names:
                continue
            files = self._files(spec.name)
            files.prepare(spec.os, hosts, public, cache / "ca" / "ca.crt")
            if files.leader() is None:
                files.stop()
                self._plug(index, spec.name)
                files.boot()
                started.append(spec.name)
        self._write_settings(state, vendors)
        with ThreadPoolExecutor(16) as pool:
            ready = list(pool.map(self.wait_ready, started))
        late = [name for name, is_ready in zip(started, ready, strict=True) if not is_ready]
        if late:
            log = self.folder / "hosts" / late[0] / "console.log"
            raise HostFailure(Problem(f"not up after {_READY_S} s: {', '.join(late)}", str(log), "see its last lines"))
        return started

    def _network(self) -> None:
        if Path(f"/run/netns/{self.switch}").exists():
            return
        run("ip", "netns", "add", self.switch)
        commands = ["link set lo up"]
        for bridge, net, mac in (("mgmt", MANAGEMENT, "4d"), ("fabric", FABRIC, "4e")):
            # The address is pinned: a bridge otherwise takes that of its lowest port, and neighbours' caches go stale.
            commands += [
                f"link add {bridge} address 02:00:0a:{mac}:00:01 type bridge",
                f"addr add {net}.1/24 dev {bridge}",
                f"link set {bridge} up",
            ]
        run("ip", "-n", self.switch, "-batch", "-", stdin="\n".join(commands))

    def _plug(self, index: int, name: str) -> None:
        namespace = f"{self.switch}-{name}"
        self._unplug(name)
        run("ip", "netns", "add", namespace)
        inside = ["link set lo up"]
        outside = []
        for bridge, net in (("mgmt", MANAGEMENT), ("fabric", FABRIC)):
            port = f"{bridge[0]}{index}"
            run("ip", "link", "add", "name", port, "netns", self.switch, "type", "veth",
                "peer", "name", f"{bridge}0", "netns", namespace)  # fmt: skip
            outside.append(f"link set {port} master {bridge} up")
            inside += [f"addr add {net}.{index + 10}/24 dev {bridge}0", f"link set {bridge}0 up"]
        run("ip", "-n", self.switch, "-batch", "-", stdin="\n".join(outside))
        run("ip", "-n", namespace, "-batch", "-", stdin="\n".join(inside))

    def _unplug(self, name: str) -> None:
        namespace = f"{self.switch}-{name}"
        if Path(f"/run/netns/{namespace}").exists():
            run("ip", "netns", "del", namespace, check=False)

    def _relay(self, cache: Path, vendors: mirror.Mirror, owner: Process | None) -> None:
        certificate = _certificate(cache, vendors.hosts)
        pid_file = self.folder / "relay.pid"
        if Process.read(pid_file) is not None:
            return
        settings = {
            "lab": self.name, "namespace": self.switch, "address": base.CONTROLLER, "www": str(vendors.www),
            "cache": str(cache / "debian"), "mirror": base.debian_mirror(), "log": str(self.access_log),
            "certificate": str(certificate), "owner": [owner.pid, owner.started] if owner else None,
        }  # fmt: skip
        argv = [sys.executable, "-m", "rackwright.lab.relay", json.dumps(settings)]
        process = system.start(argv, self.folder / "relay.log")
        process.write(pid_file)
        if not system.wait(lambda: self._serves() or not process.alive(), 20) or not process.alive():
            raise HostFailure(Problem("the relay did not start", str(self.folder / "relay.log"), "see its last lines"))

    def _serves(self) -> bool:
        with system.network(self.switch):
            import socket

            probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with probe:
            probe.settimeout(1)
            return probe.connect_ex((base.CONTROLLER, 3129)) == 0

    def _hosts_file(self, state: list[tuple[int, HostSpec]], vendors: Sequence[str]) -> str:
        lines = ["127.0.0.1 localhost", f"{base.CONTROLLER} controller {' '.join(vendors)}"]
        lines += [f"{MANAGEMENT}.{index + 10} {spec.name}" for index, spec in state]
        lines += [f"{FABRIC}.{index + 10} {spec.name}-fabric" for index, spec in state]
        return "\n".join(lines) + "\n"

    def _write_settings(self, state: list[tuple[int, HostSpec]], vendors: mirror.Mirror) -> None:
        known_hosts = [
            f"{MANAGEMENT}.{index + 10} {self._files(spec.name).public_key()}"
            for index, spec in state
            if (self.folder / "hosts" / spec.name / "upper/etc/ssh/ssh_host_ed25519_key.pub").exists()
        ]
        (self.folder / "known_hosts").write_text("\n".join(known_hosts) + "\n")
        nodes = "".join(
            f"  {spec.name}: {{profile: rehearsal, address: {MANAGEMENT}.{index + 10}}}\n" for index, spec in state
        )
        self.settings_path.write_text(
            f"# The rehearsal lab {self.name!r}: written by `rackwright lab up`.\n"
            f"cluster: {self.name}\n"
            f"ssh: {{user: root, key: {self.key_path}, known_hosts: {self.folder / 'known_hosts'}}}\n"
            "sources:                               # the vendor's own address, which the lab serves; the lab's own key\n"
            f"  cuda: {{url: 'https://{mirror.NVIDIA_HOST}/compute/cuda/repos', key: {vendors.key},\n"
            f"         fingerprint: {vendors.fingerprint}}}\n"
            "profiles:\n"
            '  rehearsal: {cuda: {versions: ["12.2"], default: "12.2"}}\n'
            f"nodes:\n{nodes}"
        )

    def hosts(self) -> tuple[LabHost, ...]:
        """Return the hosts as they are."""
        return tuple(
            LabHost(
                spec.name, spec.os, f"{MANAGEMENT}.{index + 10}", f"{FABRIC}.{index + 10}",
                self._files(spec.name).leader() is not None,
            )
            for index, spec in self._state()
        )  # fmt: skip

    def host(self, name: str) -> LabHost:
        """Return one host; one that is not there is a `UsageMistake`."""
        self._files(name)
        return next(host for host in self.hosts() if host.name == name)

    def wait_ready(self, name: str) -> bool:
        """Wait until the host's sshd greets and its systemd has come far enough for systemctl and apt."""
        index = next(index for index, spec in self._state() if spec.name == name)
        files = self._files(name)
        return system.wait(
            lambda: system.answers(self.switch, f"{MANAGEMENT}.{index + 10}") and self._settled(files),
            _READY_S,
        )

    @staticmethod
    def _settled(files: HostFiles) -> bool:
        try:
            done = files.run(["systemctl", "is-system-running"], stdin=None, timeout=10)
        except (HostFailure, subprocess.TimeoutExpired):
            return False
        return done.stdout.strip() in ("running", "degraded")

    def run(
        self, name: str, command: str | Sequence[str], *, stdin: str | None = None, timeout: float = 120,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a command (a text: by bash) in a host as root, without ssh: it works when ssh does not."""
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        done = self._files(name).run(argv, stdin=stdin, timeout=timeout)
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip()[-500:]
            raise HostFailure(Problem(f"exit status {done.returncode}: {said}", f"{name}: {shlex.join(argv)}"))
        return done

    def root(self, name: str) -> Path:
        """Return the host's root folder as this machine sees it."""
        leader = self._files(name).leader()
        if leader is None:
            raise HostFailure(Problem(f"{name} is not up", f"lab {self.name}", f"rackwright lab up --name {self.name}"))
        return Path(f"/proc/{leader.pid}/root")

    def cut(self, name: str) -> None:
        """Pull the host's cables."""
        self._links(name, "down")

    def mend(self, name: str) -> None:
        """Plug the host's cables in again."""
        self._links(name, "up")

    def _links(self, name: str, state: str) -> None:
        self._files(name)
        index = next(index for index, spec in self._state() if spec.name == name)
        commands = "\n".join(f"link set {port}{index} {state}" for port in "mf")
        run("ip", "-n", self.switch, "-batch", "-", stdin=commands)

    def crash(self, name: str) -> None:
        """Cut the host's power; `start` brings it back."""
        self._files(name).crash()

    def stop(self, name: str) -> None:
        """Shut the host down; `start` brings it back."""
        self._files(name).stop()

    def start(self, name: str) -> None:
        """Start a host that was stopped or crashed, and wait until it is ready."""
        files = self._files(name)
        if files.leader() is None:
            index = next(index for index, spec in self._state() if spec.name == name)
            files.stop()
            self._plug(index, name)
            files.boot()
        if not self.wait_ready(name):
            raise HostFailure(Problem(f"{name} is not up after {_READY_S} s", str(files.folder / "console.log")))

    def reboot(self, name: str) -> None:
        """Reboot the host in order, and wait until it is ready."""
        before = self.run(name, "cat /proc/sys/kernel/random/boot_id; cat /proc/1/stat | cut -d' ' -f22").stdout
        leader = self._files(name).leader()
        self.run(name, ["systemctl", "reboot"], check=False)
        if leader is not None:
            system.wait(lambda: not leader.alive(), 60)
        if not self.wait_ready(name):
            raise HostFailure(
                Problem(f"{name} did not come back", f"before: {before.strip()}", "rackwright lab status")
            )

    def enter(self) -> None:
        """Put the calling thread, and what it starts, into the lab's management network."""
        if not Path(f"/run/netns/{self.switch}").exists():
            raise UsageMistake(
                Problem(
                    f"the lab {self.name!r} is not up",
                    str(self.folder),
                    f"rackwright lab up 3 --name {self.name}",
                )
            )
        if os.geteuid() != 0:
            raise UsageMistake(Problem("entering the lab's network needs root", "this user", "run it with sudo"))
        system.enter_network(self.switch)

    def ssh_argv(self, name: str, *command: str, user: str = "root") -> list[str]:
        """Return the ssh command for a host; to be run inside the lab's network."""
        return ["ssh", "-q", "-i", str(self.key_path), "-o", f"UserKnownHostsFile={self.folder / 'known_hosts'}",
                "-o", "IdentitiesOnly=yes", "-o", "ConnectTimeout=10", f"{user}@{self.host(name).address}", *command]  # fmt: skip

    def down(self, *, purge: bool = False) -> None:
        """Stop all hosts and remove every process, namespace and cgroup of this lab; with `purge` its disks too."""
        if not self.folder.exists():
            return
        with self._locked():
            names = [spec.name for _, spec in self._state()]
            with ThreadPoolExecutor(16) as pool:
                list(pool.map(lambda name: self._files(name).stop(), names))
            relay = Process.read(self.folder / "relay.pid")
            if relay is not None and relay.pid != os.getpid():
                relay.kill()
            (self.folder / "relay.pid").unlink(missing_ok=True)
            for path in sorted(Path("/run/netns").glob(f"{self.switch}-*")) if Path("/run/netns").exists() else []:
                if path.name.removeprefix(f"{self.switch}-") in names:
                    run("ip", "netns", "del", path.name, check=False)
            if Path(f"/run/netns/{self.switch}").exists():
                run("ip", "netns", "del", self.switch, check=False)
            if purge:
                for name in names:
                    self._files(name).purge()
                shutil.rmtree(self.folder, ignore_errors=True)


def _certificate(cache: Path, hosts: Sequence[str]) -> Path:
    """Return the certificate and key of the vendors' names, signed by the lab's own authority, made once."""
    folder = cache / "ca"
    done = folder / f"server-{len(hosts)}.pem"
    if done.exists():
        return done
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ca.crt").exists():
            run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=rackwright lab",
                "-addext", "keyUsage=critical,keyCertSign", "-keyout", str(folder / "ca.key"),
                "-out", str(folder / "ca.new"))  # fmt: skip
            (folder / "ca.new").rename(folder / "ca.crt")
        names = ",".join(f"DNS:{host}" for host in hosts)
        (folder / "extensions").write_text(
            f"subjectAltName={names},IP:{base.CONTROLLER}\nextendedKeyUsage=serverAuth\n"
        )
        run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=vendors", "-keyout", str(folder / "server.key"),
            "-out", str(folder / "server.csr"))  # fmt: skip
        run("openssl", "x509", "-req", "-in", str(folder / "server.csr"), "-CA", str(folder / "ca.crt"), "-CAkey",
            str(folder / "ca.key"), "-CAcreateserial", "-days", "3650", "-extfile", str(folder / "extensions"),
            "-out", str(folder / "server.crt"))  # fmt: skip
        temporary = done.with_suffix(".new")
        temporary.write_bytes((folder / "server.key").read_bytes() + (folder / "server.crt").read_bytes())
        temporary.rename(done)
    return done
