"""A rehearsal lab: real hosts in namespaces over one base tree, two networks, the vendors' mirror.

All state is on disk below `$RACKWRIGHT_LAB_DIR` (/var/lib/rackwright/lab), so that whatever was killed half-way can be
finished by `up` or removed by `down`. The bridges live in a namespace without any route to the machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rackwright.errors import HostFailure, Problem, UsageMistake
from rackwright.lab import base, layer, mirror, papers, system
from rackwright.lab.authority import server_certificate
from rackwright.lab.cgroup import Cgroup
from rackwright.lab.debian import apt_proxies, debian_mirror
from rackwright.lab.host import HostFiles
from rackwright.lab.network import CONTROLLER, Switch, fabric, management
from rackwright.lab.papers import HostSpec, State
from rackwright.lab.recipes_driver import DEVICES
from rackwright.lab.relay import PORTS
from rackwright.lab.service import Service
from rackwright.lab.system import Process
from rackwright.settings.hosts import check

MAX_HOSTS = 200
_READY_S = 90
_DISK_MIB = 1000
_HOME = Path("/var/lib/rackwright/lab")


@dataclass(frozen=True)
class LabHost:
    """A host of a lab as it is."""

    name: str
    os: str
    address: str
    fabric_address: str
    up: bool
    gpus: str = "none"


def cache_folder() -> Path:
    """Return where base tree, mirror and packages are kept for all labs."""
    return Path(os.environ.get("RACKWRIGHT_CACHE_DIR") or "/var/cache/rackwright").absolute()


def labs_folder() -> Path:
    """Return where labs keep their state and their hosts' disks."""
    return Path(os.environ.get("RACKWRIGHT_LAB_DIR") or _HOME).absolute()


class Lab:
    """The lab of one name; constructing it starts nothing."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name or os.environ.get("RACKWRIGHT_LAB") or "lab"
        plain = self.name.replace("-", "")
        if not (plain.isalnum() and self.name.isascii() and len(self.name) <= 24) or self.name.startswith("-"):
            fix = "letters, digits and hyphens, 24 at most"
            raise UsageMistake(Problem(f"{self.name!r} is no lab name", "--name or $RACKWRIGHT_LAB", fix))
        self.folder = labs_folder() / self.name
        # Labs of one name in two places are two labs.
        place = hashlib.sha256(str(self.folder.parent).encode()).hexdigest()[:6]
        self.switch = f"rw-{self.name}" if self.folder.parent == _HOME else f"rw-{self.name}-{place}"
        self._network = Switch(self.switch)
        self._cgroup = Cgroup(self.switch)
        self._relay = Service(self.folder, "relay", Cgroup(f"{self.switch}/relay"))
        self._reaper = Service(self.folder, "reaper", Cgroup(f"{self.switch}/reaper"))

    @property
    def settings_path(self) -> Path:
        """Return the cluster.yaml of exactly this lab."""
        return self.folder / "cluster.yaml"

    @property
    def key_path(self) -> Path:
        """Return the private ssh key of the lab's controller."""
        return self.folder / "id_ed25519"

    @property
    def known_hosts_path(self) -> Path:
        """Return the file of the hosts' own ssh keys."""
        return self.folder / "known_hosts"

    @property
    def access_log(self) -> Path:
        """Return the log of what the hosts asked the relay for."""
        return self.folder / "relay-access.log"

    def _state(self) -> State:
        try:
            state = json.loads((self.folder / "hosts.json").read_text())
        except FileNotFoundError:
            return {}
        return {spec["name"]: (index, HostSpec(**spec)) for index, spec in state}

    def _host(self, name: str) -> tuple[int, HostFiles]:
        state = self._state()
        if name not in state:
            fix = f"its hosts: {', '.join(state)}" if state else f"rackwright lab up 3 --name {self.name}"
            raise UsageMistake(Problem(f"there is no host {name!r} in the lab {self.name}", "HOST", fix))
        return state[name][0], self._files(name)

    def _files(self, name: str) -> HostFiles:
        tree = Path((self.folder / "base").read_text())
        group = f"{self.switch}/host-{name}"
        return HostFiles(self.folder / "hosts" / name, name, self._network.host(name), tree, group)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        path = self.folder.with_name(f".{self.name}.lock")
        while True:
            with path.open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # `down --purge` removes the file: then this is the lock of a file that is no more.
                if path.exists() and path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
                    yield
                    return

    def up(
        self,
        wanted: Sequence[HostSpec],
        *,
        owner: Process | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> list[str]:
        """Bring up the lab with these hosts and return the names of those that were started.

        What is up stays as it is. With `owner` the lab is taken down and purged once that process is gone.
        """
        _validate(wanted)
        system.require(free_mib=_DISK_MIB, folder=self.folder)
        _sweep()
        cache = cache_folder()
        tree, vendors = base.base_tree(cache, say), mirror.build(cache)
        certificate = server_certificate(cache, vendors.hosts, CONTROLLER)
        with self._locked():
            state = self._record(wanted, tree, owner)
            if owner is not None and self._reaper.process() is None:
                self._reaper.start_module("rackwright.lab.reaper", self.name, str(owner.pid), str(owner.started))
            self._network.build()
            self._serve(cache, vendors, certificate)
            return self._boot(state, [spec.name for spec in wanted], vendors, cache)

    def _record(self, wanted: Sequence[HostSpec], tree: Path, owner: Process | None) -> State:
        state = self._state()
        if owner is not None and state and Process.recorded(self.folder / "owner") != owner:
            fix = "take another name, or `rackwright lab down --purge` first"
            raise UsageMistake(Problem(f"the lab {self.name!r} is there already", str(self.folder), fix))
        for spec in wanted:
            there = state[spec.name][1] if spec.name in state else spec
            if there != spec:
                fix = f"rackwright lab down --purge --name {self.name}"
                what = f"{spec.name} is there already, with {there.os} and --gpus {there.gpus}"
                raise UsageMistake(Problem(what, "--os, --gpus or --file", fix))
        free = iter(sorted(set(range(1, MAX_HOSTS + 1)) - {index for index, _ in state.values()}))
        for spec in wanted:
            if spec.name not in state:
                index = next(free, None)
                if index is None:
                    raise UsageMistake(Problem(f"a lab has {MAX_HOSTS} hosts at most", "hosts", "take fewer"))
                state[spec.name] = (index, spec)
        (self.folder / "hosts").mkdir(parents=True, exist_ok=True)
        if owner is not None:
            owner.write(self.folder / "owner")
        # Hosts that have a disk stay on the tree that it was made over.
        if not (self.folder / "base").exists() or not Path((self.folder / "base").read_text()).exists():
            _write(self.folder / "base", str(tree))
        base.keep_for(Path((self.folder / "base").read_text()), self.folder)
        _write(self.folder / "hosts.json", json.dumps([(index, asdict(spec)) for index, spec in state.values()]))
        return state

    def _boot(self, state: State, names: Sequence[str], vendors: mirror.Mirror, cache: Path) -> list[str]:
        if not self.key_path.exists():
            unfinished = self.key_path.with_suffix(".new")
            unfinished.unlink(missing_ok=True)
            system.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rackwright-lab", "-f", str(unfinished))
            unfinished.with_suffix(".new.pub").rename(self.key_path.with_suffix(".pub"))
            unfinished.rename(self.key_path)
        public = self.key_path.with_suffix(".pub").read_text()
        hosts = papers.hosts_file(state, vendors.hosts)
        tree = Path((self.folder / "base").read_text())
        for name, (_, spec) in state.items():
            files = self._files(name)
            if not files.folder.exists():
                over = layer.layer(cache, spec.os, tree, vendors)
                base.keep_for(over, self.folder)
                files.prepare(over, hosts, public, spec.hardware())
            files.rename_neighbours(hosts)
        self._write_settings(state, vendors)
        started = []
        for name in names:
            files = self._files(name)
            if files.service.process() is None:
                files.service.stop()
                self._network.plug(state[name][0], name)
                files.boot()
                started.append(name)
        self._wait_all(names)
        return started

    def _wait_all(self, names: Sequence[str]) -> None:
        with ThreadPoolExecutor(16) as pool:
            ready = list(pool.map(self.wait_ready, names))
        late = [name for name, is_ready in zip(names, ready, strict=True) if not is_ready]
        if late:
            service = self._files(late[0]).service
            why = "did not come up" if service.process() is None else f"not ready after {_READY_S} s"
            said = service.last_words() or "it said nothing"
            # Each systemd takes about six of root's inotify instances, of which many machines allow 128.
            limit = Path("/proc/sys/fs/inotify/max_user_instances").read_text().strip()
            fix = f"see its last lines; for many hosts raise fs.inotify.max_user_instances, which is {limit} (sysctl)"
            raise HostFailure(Problem(f"{', '.join(late)}: {why}: {said}", str(service.log), fix))

    def _serve(self, cache: Path, vendors: mirror.Mirror, certificate: Path) -> None:
        """Start the relay, or start it anew where it would serve something else."""
        settings = json.dumps({
            "lab": self.name, "namespace": self.switch, "address": CONTROLLER, "www": str(vendors.www),
            "cache": str(cache / "debian"), "mirror": debian_mirror(), "proxies": apt_proxies(),
            "certificate": str(certificate), "log": str(self.access_log),
        })  # fmt: skip
        record = self.folder / "relay.json"
        if self._relay.process() is not None and record.exists() and record.read_text() == settings:
            return
        self._relay.start_module("rackwright.lab.relay", settings)
        if not system.wait(lambda: self._serves() or self._relay.process() is None, 20) or not self._serves():
            said = self._relay.last_words() or "it said nothing"
            raise HostFailure(Problem(f"the relay did not start: {said}", str(self._relay.log), "see its last lines"))
        _write(record, settings)

    def _serves(self) -> bool:
        for port in PORTS:
            connection = system.connect(self.switch, CONTROLLER, port)
            if connection is None:
                return False
            connection.close()
        return True

    def _write_settings(self, state: State, vendors: mirror.Mirror) -> None:
        keys = {name: self._files(name).public_key() for name in state}
        _write(self.known_hosts_path, papers.known_hosts(state, keys))
        settings = papers.cluster_yaml(self.name, state, self.key_path, self.known_hosts_path, vendors)
        _write(self.settings_path, settings)

    def hosts(self) -> tuple[LabHost, ...]:
        """Return the hosts as they are."""
        return tuple(
            LabHost(name, spec.os, management(index), fabric(index), self._files(name).leader() is not None, spec.gpus)
            for name, (index, spec) in self._state().items()
        )

    def host(self, name: str) -> LabHost:
        """Return one host; one that is not there is a `UsageMistake`."""
        self._host(name)
        return next(host for host in self.hosts() if host.name == name)

    def wait_ready(self, name: str) -> bool:
        """Wait until the host's sshd greets and its systemd has come far enough for systemctl and apt."""
        index, files = self._host(name)

        def ready() -> bool:
            # Seen from the host's own network: a host whose cables are cut is as ready as another.
            return system.greets(files.namespace, management(index)) and _settled(files)

        system.wait(lambda: files.service.process() is None or ready(), _READY_S, 0.1)
        return files.service.process() is not None and ready()

    def run(
        self, name: str, command: str | Sequence[str], *, stdin: str | None = None, timeout: float = 120,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a command (a text: by bash) in a host as root, without ssh: it works when ssh does not."""
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        done = self._host(name)[1].run(argv, stdin=stdin, timeout=timeout)
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip()[-500:]
            where = f"{name}: {shlex.join(argv)}"
            raise HostFailure(Problem(f"exit status {done.returncode}: {said}", where, "run it there to see more"))
        return done

    def root(self, name: str) -> Path:
        """Return the host's root folder as this machine sees it."""
        leader = self._host(name)[1].leader()
        if leader is None:
            raise HostFailure(Problem(f"{name} is not up", f"lab {self.name}", f"rackwright lab up --name {self.name}"))
        return Path(f"/proc/{leader.pid}/root")

    def cut(self, name: str) -> None:
        """Pull the host's cables."""
        self._network.cable(self._host(name)[0], whole=False)

    def mend(self, name: str) -> None:
        """Plug the host's cables in again."""
        self._network.cable(self._host(name)[0], whole=True)

    def crash(self, name: str) -> None:
        """Cut the host's power; `start` brings it back."""
        index, files = self._host(name)
        if files.leader() is not None:
            self._network.cable(index, whole=False)  # who loses power says no goodbye: no FIN, no RST
        files.crash()

    def fault(self, name: str, *words: str) -> str:
        """Let a device of the host fail: `KIND [NAME=VALUE ...]`, or `clear [KIND]`; without words list the kinds.

        Raises `UsageMistake` for a fault that there is not.
        """
        done = self.run(name, [f"{DEVICES}/fault", *words], check=False)
        if done.returncode:
            fix = f"rackwright lab fault {name} lists them"
            raise UsageMistake(Problem(done.stderr.strip(), f"lab fault {name}", fix))
        return done.stdout

    def stop(self, name: str) -> None:
        """Shut the host down; `start` brings it back."""
        self._host(name)[1].stop()

    def start(self, name: str) -> None:
        """Start a host that was stopped or crashed, and wait until it is ready."""
        with self._locked():
            index, files = self._host(name)
            if files.service.process() is None:
                files.service.stop()
                self._network.plug(index, name)
                files.boot()
        self._wait_all([name])

    def reboot(self, name: str) -> None:
        """Reboot the host in order, and wait until it is ready."""
        files = self._host(name)[1]
        leader = files.leader()
        self.run(name, ["systemctl", "reboot"], check=False)
        if leader is None or not system.wait(lambda: not leader.alive(), _READY_S):
            raise HostFailure(Problem(f"{name} does not reboot", str(files.service.log), f"crash and start {name}"))
        self._wait_all([name])

    def enter(self) -> None:
        """Put the calling thread, and what it starts, into the lab's management network."""
        if not self._network.exists():
            fix = f"rackwright lab up 3 --name {self.name}"
            raise UsageMistake(Problem(f"the lab {self.name!r} is not up", str(self.folder), fix))
        if os.geteuid() != 0:
            raise UsageMistake(Problem("entering the lab's network needs root", "this user", "run it with sudo"))
        system.enter_network(self.switch)

    def ssh_argv(self, name: str, *command: str, user: str = "root") -> list[str]:
        """Return the ssh command for a host; to be run inside the lab's network."""
        return ["ssh", "-F", "none", "-i", str(self.key_path), "-o", f"UserKnownHostsFile={self.known_hosts_path}",
                "-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes", "-o", "ConnectTimeout=10",
                f"{user}@{self.host(name).address}", *command]  # fmt: skip

    def down(self, *, purge: bool = False) -> None:
        """Stop all hosts and remove every process, namespace and cgroup of this lab; with `purge` its disks too."""
        system.require_root()
        base.clear_unfinished(cache_folder())
        if self.folder.parent.exists():
            with self._locked():
                self._down(purge=purge)

    def reap(self, owner: Process) -> None:
        """Take down and purge the lab of an owner that is gone; a lab of another's stays."""
        with self._locked():
            if Process.recorded(self.folder / "owner") == owner:
                self._down(purge=True)

    def _down(self, *, purge: bool) -> None:
        names = list(self._state()) if (self.folder / "base").exists() else []
        if not purge:  # what is to be forgotten need not be shut down in order
            with ThreadPoolExecutor(16) as pool:
                list(pool.map(lambda name: self._files(name).stop(), names))
        self._cgroup.remove()
        self._network.remove()
        if purge:
            for name in names:
                self._files(name).purge()
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.with_name(f".{self.name}.lock").unlink(missing_ok=True)
        elif self.folder.exists():
            (self.folder / "owner").unlink(missing_ok=True)


def _validate(wanted: Sequence[HostSpec]) -> None:
    for spec in wanted:
        base.os_release(spec.os)
        try:
            check(spec.name)
        except ValueError as error:
            raise UsageMistake(Problem(f"{spec.name!r} is no host name: {error}", "hosts", "gpu01")) from None
    names = [spec.name for spec in wanted]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or not names:
        what = f"{twice} is named twice" if twice else "no host is named"
        raise UsageMistake(Problem(what, "hosts", "name each host once"))


def _sweep() -> None:
    """Take down ephemeral labs whose owner is gone, and whose reaper too."""
    for path in labs_folder().glob("*/owner"):
        owner = Process.recorded(path)
        if owner is not None and not owner.alive():
            Lab(path.parent.name).reap(owner)


def _write(path: Path, text: str) -> None:
    """Write a file as a whole, unless it is the same already."""
    if path.exists() and path.read_text() == text:
        return
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_text(text)
    unfinished.replace(path)


def _settled(files: HostFiles) -> bool:
    try:
        done = files.run(["systemctl", "is-system-running", "--wait"], stdin=None, timeout=30)
    except HostFailure:
        return False
    return done.stdout.strip() in ("running", "degraded")
