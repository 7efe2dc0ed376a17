"""`make bench`: how long deploys/cuda.py takes on 1, 4, 8 and 16 lab hosts, and what it costs, beside ansible-core.

Writes bench/latest.json. All figures are of one run on one machine, which the hosts share with the control process:
only their ratios carry over. ansible-core gets an environment of its own, forks = hosts, and pipelining.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rackwright.config import load
from rackwright.lab import HostSpec, Lab
from rackwright.lab.system import Process
from rackwright.operations import cuda_packages

_ROOT = Path(__file__).parents[1]
_LAB = "bench"
_COUNTS = (1, 4, 8, 16)


# A process's peak memory counts what it was forked from (getrusage(2)): so it is started by a small one.
_MEASURED = """
import os, sys
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 1, 2)])
_, status, usage = os.wait4(pid, 0)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@dataclass(frozen=True)
class Cost:
    """One command: wall seconds, CPU seconds of the control process, execs on all hosts, and peak memory."""

    wall_s: float
    cpu_s: float
    ssh_execs: int
    peak_mib: float


class Bench:
    """A lab of some hosts, and what commands cost on it."""

    def __init__(self, lab: Lab, names: Sequence[str]) -> None:
        self.lab, self.names = lab, names

    def fresh(self) -> float:
        """Put new hosts in place of the old; return the seconds that it took to start them."""
        self.lab.down(purge=True)
        start = time.monotonic()
        self.lab.up([HostSpec(name) for name in self.names], owner=Process.of(os.getpid()))
        took = time.monotonic() - start
        for name in self.names:  # sshd says at this level when it starts a command
            self.lab.run(name, "echo LogLevel VERBOSE >/etc/ssh/sshd_config.d/bench.conf; systemctl reload ssh")
        return took

    def _execs(self) -> int:
        count = "journalctl -q -t sshd -g 'Starting session' --no-pager | wc -l"
        return sum(int(self.lab.run(name, count).stdout) for name in self.names)

    def cost(self, argv: Sequence[str], *, expect: int = 0, more: Mapping[str, str] | None = None) -> Cost:
        """Run a command inside the lab's network and return what it cost."""
        before = self._execs()
        start = time.monotonic()
        with tempfile.TemporaryFile("w+") as out:
            child = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _MEASURED, *argv], cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.PIPE, preexec_fn=self.lab.enter, text=True,
                env={**os.environ, "RACKWRIGHT_LAB": self.lab.name, **(more or {})},
            )  # fmt: skip
            wall = time.monotonic() - start
            if child.returncode != expect:
                out.seek(0)
                raise SystemExit(f"{argv[0]} ended with {child.returncode}:\n{out.read()[-3000:]}")
        cpu, peak = map(float, child.stderr.split())
        return Cost(round(wall, 2), round(cpu, 2), self._execs() - before, round(peak / 1024, 1))


def _ansible(bench: Bench, plan: Mapping[str, Any], folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return environment and command of the playbook for the lab's hosts and the plan's exact packages."""
    venv = _ROOT / ".cache" / "ansible"
    if not (venv / "bin/ansible-playbook").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(venv / "bin/pip"), "install", "-q", "ansible-core"], check=True)
    settings = load(bench.lab.settings_path)
    source = settings.sources.cuda
    assert source is not None
    changes = [c for c in next(iter(plan["hosts"].values()))["changes"] if c["operation"] == "cuda.toolkit"]
    versions = {c["what"].removeprefix("package "): c["to"] for c in changes if c["what"].startswith("package ")}
    ours = {name: version for name, version in versions.items() if name != "libtinfo5"}
    inventory = folder / "hosts"
    inventory.write_text(
        "".join(f"{host.name} ansible_host={host.address}\n" for host in bench.lab.hosts())
        + "[all:vars]\nansible_user=root\nansible_python_interpreter=/usr/bin/python3\n"
        f"ansible_ssh_private_key_file={bench.lab.key_path}\n"
        f"ansible_ssh_common_args=-o UserKnownHostsFile={bench.lab.folder}/known_hosts\n"
    )
    values = {
        "url": f"{source.url}/ubuntu2204/x86_64/", "key": source.key, "names": sorted(ours),
        "exact": [f"{name}={version}" for name, version in sorted(ours.items())],
        "pins": cuda_packages.PINS.content(ours).decode(),
    }  # fmt: skip
    (folder / "values.json").write_text(json.dumps(values))
    environment = {
        "ANSIBLE_FORKS": str(len(bench.names)), "ANSIBLE_PIPELINING": "1", "ANSIBLE_HOME": str(folder),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_SSH_ARGS": f"-o ControlMaster=auto -o ControlPersist=60s -o ControlPath={folder}/%h",
    }  # fmt: skip
    argv = [
        str(venv / "bin/ansible-playbook"),
        "-i",
        str(inventory),
        "-e",
        f"@{folder}/values.json",
        "bench/ansible/cuda.yml",
    ]
    return environment, argv


def measure(count: int) -> dict[str, Any]:
    """Return all figures for one number of hosts."""
    bench = Bench(Lab(_LAB), [f"gpu{index:02}" for index in range(1, count + 1)])
    up = bench.fresh()
    pyinfra = [sys.executable, "-m", "pyinfra", "inventories/lab.py", "deploys/cuda.py", "-y"]
    planner = [sys.executable, "-m", "rackwright", "plan", "inventories/lab.py", "--deploy", "deploys/cuda.py"]
    with tempfile.TemporaryDirectory(prefix="rw-") as name:
        folder = Path(name)
        figures = {"rackwright plan, fresh hosts": bench.cost(planner, expect=3)}
        with (folder / "plan.json").open("w") as out:
            subprocess.run([*planner, "--json"], cwd=_ROOT, stdout=out, env={**os.environ, "RACKWRIGHT_LAB": _LAB})
        plan = json.loads((folder / "plan.json").read_text())
        figures["pyinfra, first run"] = bench.cost(pyinfra)
        figures["pyinfra, nothing to change"] = bench.cost(pyinfra)
        figures["rackwright plan, nothing to change"] = bench.cost(planner)
        bench.fresh()
        environment, playbook = _ansible(bench, plan, folder)
        figures["ansible-core, first run"] = bench.cost(playbook, more=environment)
        figures["ansible-core, nothing to change"] = bench.cost(playbook, more=environment)
        for socket in folder.glob("10.*"):  # end the masters that this run left
            subprocess.run(["ssh", "-O", "exit", "-o", f"ControlPath={socket}", "x"], capture_output=True)
    return {"lab_up_s": round(up, 2), "commands": {what: asdict(cost) for what, cost in figures.items()}}


def _settings() -> float:
    """Return the seconds that 5,000 nodes take to load, validation included."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cluster.yaml")
        nodes = "".join(f"  n{i}.example.net: {{profile: p, bmc: {{address: '{{short}}-bmc'}}}}\n" for i in range(5000))
        path.write_text(f"cluster: a\nprofiles: {{p: {{cuda: {{versions: ['12.2']}}}}}}\nnodes:\n{nodes}")
        start = time.monotonic()
        assert len(load(path).nodes) == 5000
        return round(time.monotonic() - start, 2)


def main() -> None:
    """Measure, print a table, and write bench/latest.json."""
    counts = [int(argument) for argument in sys.argv[1:]] or _COUNTS
    result: dict[str, Any] = {
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "settings_5000_nodes_s": _settings(),
        "hosts": {},
    }  # fmt: skip
    print(f"settings of 5,000 nodes: {result['settings_5000_nodes_s']} s (limit: 2 s)")
    try:
        for count in counts:
            result["hosts"][str(count)] = figures = measure(count)
            print(f"\n{count} hosts (lab up in {figures['lab_up_s']} s)")
            print(f"  {'':36}{'wall s':>8}{'CPU s':>8}{'execs/host':>12}{'peak MiB':>10}")
            for what, cost in figures["commands"].items():
                execs = cost["ssh_execs"] / count
                print(f"  {what:36}{cost['wall_s']:8.2f}{cost['cpu_s']:8.2f}{execs:12.1f}{cost['peak_mib']:10.1f}")
            commands = figures["commands"]
            for run in ("first run", "nothing to change"):
                ratio = commands[f"ansible-core, {run}"]["wall_s"] / commands[f"pyinfra, {run}"]["wall_s"]
                print(f"  ansible-core / pyinfra, {run}: {ratio:.1f}")
    finally:
        Lab(_LAB).down(purge=True)
    (_ROOT / "bench").mkdir(exist_ok=True)
    (_ROOT / "bench/latest.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
