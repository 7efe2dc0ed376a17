"""Decisions about the driver: a look in; changes, refusals and what waits out. Real hosts show what apt does."""

from __future__ import annotations

from typing import Any

import pytest

from rackwright.change import Decision, Reboot, Refusal, Run
from rackwright.operations import exact_set, nvidia, nvidia_packages, nvidia_services
from rackwright.operations.nvidia import Driver, Rollout
from rackwright_facts._parse import kernel_packages
from rackwright_facts._parse.apt_simulate import Step
from rackwright_facts._parse.dpkg import Package
from rackwright_facts._parse.model import Reading
from rackwright_facts._parse.nvidia_driver import DriverState, GpuProcess, Initramfs, Kernel, Loaded, Module
from rackwright_facts._parse.pci import PciDevice
from rackwright_facts.look import Look, Section
from rackwright_facts.nvidia import BLACKLIST, DRIVER, INITRAMFS, PROCESSES
from rackwright_facts.pci import PCI
from rackwright_facts.system import FileState, files
from rackwright_facts.systemd import Unit

H100, SWITCH = 0x2330, 0x22A3
UNITS = nvidia.UNITS
NEW = Module(version="580.126.16", license="Dual MIT/GPL")
DECLARED: Driver = {
    "branch": 580, "version": "latest-in-branch", "kernel_module": "auto", "source": "nvidia", "gpu": None,
}  # fmt: skip
CAREFUL: Rollout = {
    "allow_reboot": False, "allow_disruption": False, "max_unavailable": 1, "reboot_timeout_s": 1800,
}  # fmt: skip
FREE: Rollout = {**CAREFUL, "allow_reboot": True, "allow_disruption": True, "max_unavailable": 2}


def _gpus(*ids: int, display: bool = False) -> tuple[PciDevice, ...]:
    kind = 0x0300 if display else 0x0302
    return tuple(
        PciDevice(address=f"0000:{index:02x}:00.0", device_id=one, pci_class=0x0680 if one == SWITCH else kind)
        for index, one in enumerate(ids)
    )


def _state(**more: Any) -> DriverState:
    kernel = Kernel(release="5.15.0-119-generic", headers=True, compiler="gcc-11", compiler_installed=True, module=NEW)
    return DriverState(running=kernel.release, boot_id="one", **{"kernels": (kernel,), **more})


def _look(state: DriverState, devices: tuple[PciDevice, ...] = _gpus(H100), **more: Any) -> Look:
    look = Look()
    readings: dict[Section[Any], Any] = {DRIVER: state, PCI: devices, PROCESSES: (), INITRAMFS: ()}
    for section, value in readings.items():
        look = look.having(section, Reading.ok(value))
    for section, reading in more.get("also", {}).items():
        look = look.having(section, reading)
    return look


def _decide(operation: Any, look: Look, **kwargs: Any) -> Decision:
    decision = operation.__wrapped__(look, **kwargs)
    assert isinstance(decision, Decision)
    return decision


@pytest.mark.parametrize(
    ("devices", "branch", "declared", "expected"),
    [
        (_gpus(H100), 580, "auto", "open"),
        (_gpus(H100), 535, "auto", "open"),
        (_gpus(H100), 470, "auto", "proprietary"),
        (_gpus(H100), 580, "proprietary", "proprietary"),
        (_gpus(0x2684, display=True), 535, "auto", "proprietary"),  # GeForce below 545
        (_gpus(0x2684, display=True), 580, "auto", "open"),
        (_gpus(0x1DB5), 580, "auto", "proprietary"),  # Volta
        (_gpus(0x2901), 580, "auto", "open"),  # Blackwell
        ((), 580, "auto", "open"),
    ],
)
def test_the_kernel_module_by_product_generation_and_branch(
    devices: tuple[PciDevice, ...], branch: int, declared: str, expected: str
) -> None:
    assert nvidia_packages.flavour(devices, branch, declared) == expected


@pytest.mark.parametrize(
    ("devices", "branch", "declared", "said"),
    [
        (_gpus(0x1DB5), 595, "auto", "Volta and older end with 580"),
        (_gpus(0x1DB5), 580, "open", "the open module does not drive"),
        (_gpus(0x2901), 580, "proprietary", "the proprietary module does not drive"),
        (_gpus(0x2901), 535, "auto", "branch 535 does not drive"),
        (_gpus(0x2684, display=True), 535, "open", "the open module does not drive"),
        (_gpus(0x1DB5, 0x2901), 580, "auto", "need the proprietary module"),
    ],
)
def test_a_module_that_drives_not_all_is_refused_with_the_rule(
    devices: tuple[PciDevice, ...], branch: int, declared: str, said: str
) -> None:
    refusal = nvidia_packages.flavour(devices, branch, declared)
    assert isinstance(refusal, Refusal)
    assert said in refusal.what


def test_a_module_that_is_not_loaded_is_loaded_without_a_reboot() -> None:
    decision = _decide(nvidia.running, _look(_state()), driver=DECLARED, rollout=CAREFUL)
    assert [(change.what, change.after) for change in decision.changes] == [("module nvidia", "580.126.16")]
    assert not _decide(nvidia.running, decision.after, driver=DECLARED, rollout=CAREFUL).changes


def test_a_rival_that_nobody_uses_is_unloaded_first() -> None:
    decision = _decide(nvidia.running, _look(_state(rivals={"nouveau": 0})), driver=DECLARED, rollout=CAREFUL)
    assert [change.what for change in decision.changes] == ["module nouveau", "module nvidia"]
    assert decision.changes[0].commands == (Run(("modprobe", "-r", "nouveau")),)


OLD = Loaded(version="535.183.01", flavour="proprietary")


@pytest.mark.parametrize(
    "state",
    [
        _state(loaded=OLD),
        _state(rivals={"nouveau": 1}),
        _state(loaded=Loaded(version="580.126.16", flavour="proprietary")),
    ],
)
def test_what_needs_a_reboot_waits_unless_it_is_allowed(state: DriverState) -> None:
    there = {
        "nvidia-persistenced.service": Unit(load="loaded", file="enabled", active="failed", result="exit-code"),
        "nvidia-fabricmanager.service": Unit(load="loaded", file="disabled", active="active"),
    }
    look = _look(state, also={UNITS: Reading.ok(there)})
    waits = _decide(nvidia.running, look, driver=DECLARED, rollout=CAREFUL)
    assert (waits.changes, waits.refusals, len(waits.waiting)) == ((), (), 1)
    assert "580.126.16" in waits.waiting[0]
    goes = _decide(nvidia.running, look, driver=DECLARED, rollout=FREE)
    assert [(change.cost, change.commands) for change in goes.changes] == [(("reboot",), (Reboot(at_a_time=2),))]
    assert not _decide(nvidia.running, goes.after, driver=DECLARED, rollout=CAREFUL).waiting
    units = goes.after[UNITS].value
    assert units is not None
    assert [unit.active for unit in units.values()] == ["active", "inactive"]  # who is enabled starts with the system


def test_a_reboot_does_not_end_work_that_nobody_gave_away() -> None:
    work = (GpuProcess(pid=4711, user="alice", command="python3 train.py", gpus=("GPU-1",)),)
    look = _look(_state(loaded=OLD), also={PROCESSES: Reading.ok(work)})
    decision = _decide(nvidia.running, look, driver=DECLARED, rollout={**FREE, "allow_disruption": False})
    assert "pid 4711 (alice: python3 train.py) on GPU-1" in decision.refusals[0].what
    unknown = _look(_state(loaded=OLD), also={PROCESSES: Reading.timeout("no answer")})
    assert _decide(nvidia.running, unknown, driver=DECLARED, rollout={**FREE, "allow_disruption": False}).refusals


def test_a_next_kernel_without_a_module_is_refused_and_not_booted() -> None:
    newer = Kernel(release="6.8.0-45-generic", headers=True)
    state = _state(loaded=OLD)
    state = state.model_copy(update={"kernels": (*state.kernels, newer)})
    decision = _decide(nvidia.running, _look(state), driver=DECLARED, rollout=FREE)
    assert "6.8.0-45-generic" in decision.refusals[0].what


def test_a_host_without_gpus_loads_nothing() -> None:
    decision = _decide(nvidia.running, _look(_state(), ()), driver=DECLARED, rollout=FREE)
    assert (decision.changes, decision.waiting) == ((), ())


@pytest.mark.parametrize("status", ["error", "timeout"])
def test_what_cannot_be_read_refuses_the_host(status: str) -> None:
    reading: Reading[Any] = getattr(Reading, status)("no answer")
    for section in (DRIVER, PCI):
        look = _look(_state(), also={section: reading})
        assert _decide(nvidia.running, look, driver=DECLARED, rollout=FREE).refusals


def test_only_images_that_hold_a_rival_without_the_blacklist_are_built_anew() -> None:
    images = (
        Initramfs(release="a", rivals=("nouveau",)),
        Initramfs(release="b", rivals=("nouveau",), blacklisted=True),
        Initramfs(release="c"),
    )
    written = FileState(kind="file", mode=0o644, owner="root:root", content=nvidia.blacklist())
    own = files((BLACKLIST,))
    look = _look(_state(), also={INITRAMFS: Reading.ok(images), own: Reading.ok({BLACKLIST: written})})
    decision = _decide(nvidia.modules, look, driver=DECLARED)
    assert [change.what for change in decision.changes] == ["initramfs of a"]
    assert not _decide(nvidia.modules, decision.after, driver=DECLARED).changes
    fresh = _look(_state(), also={INITRAMFS: Reading.ok(images), own: Reading.ok({})})
    assert [change.what for change in _decide(nvidia.modules, fresh, driver=DECLARED).changes] == [
        f"file {BLACKLIST}", "initramfs of a", "initramfs of b",
    ]  # fmt: skip


DOWN = Unit(load="loaded", active="inactive", file="disabled")
UP = Unit(load="loaded", active="active", file="enabled")


def _services(state: DriverState, devices: tuple[PciDevice, ...], manager: Unit, **driver: Any) -> Decision:
    there = {nvidia_services.PERSISTENCED: UP, nvidia_services.FABRIC_MANAGER: manager}
    also = {nvidia_services._FILES: Reading.ok({}), UNITS: Reading.ok(there)}
    declared: Any = {**DECLARED, **driver}
    return _decide(nvidia_services.services, _look(state, devices, also=also), driver=declared, rollout=CAREFUL)


def test_fabric_manager_runs_where_there_is_a_switch_and_nowhere_else() -> None:
    current = _state(loaded=Loaded(version="580.126.16", flavour="open"))
    with_switch = _services(current, _gpus(H100, SWITCH), DOWN)
    assert f"unit {nvidia_services.FABRIC_MANAGER}" in [change.what for change in with_switch.changes]
    without = _services(current, _gpus(H100), DOWN)
    assert f"unit {nvidia_services.FABRIC_MANAGER}" not in [change.what for change in without.changes]


def test_a_running_fabric_manager_is_never_restarted_for_a_file() -> None:
    current = _state(loaded=Loaded(version="580.126.16", flavour="open"))
    decision = _services(current, _gpus(H100, SWITCH), UP)
    argvs = [command.argv for change in decision.changes for command in change.commands if isinstance(command, Run)]
    assert ("systemctl", "restart", nvidia_services.PERSISTENCED) in argvs
    assert not [argv for argv in argvs if nvidia_services.FABRIC_MANAGER in argv]


def test_nothing_is_started_before_the_reboot_that_brings_the_module() -> None:
    decision = _services(_state(loaded=OLD), _gpus(H100, SWITCH), DOWN)
    assert not [change for change in decision.changes if change.what.startswith("unit ")]


def test_declared_gpu_settings_become_one_script_and_one_unit_before_docker_and_slurmd() -> None:
    gpu = {"power_limit_w": 500, "graphics_clocks_mhz": [210, 1980], "ecc": True, "compute_mode": "exclusive_process",
           "mig": ["3g.40gb", "3g.40gb"]}  # fmt: skip
    script = nvidia_services.settings_script(gpu).decode()
    for line in ("-pl 500", "-lgc 210,1980", "-e 1", "-c 3", "-mig 1", "-cgi 3g.40gb,3g.40gb -C"):
        assert line in script
    assert "Before=docker.service slurmd.service" in nvidia_services._SETTINGS
    off = nvidia_services.settings_script({**dict.fromkeys(gpu), "mig": []}).decode()
    assert "-mig 0" in off
    assert "-pl" not in off


def test_kernel_metas_are_told_from_kernels() -> None:
    names = ("linux-image-generic", "linux-image-5.15.0-119-generic", "linux-generic", "linux-headers-generic",
             "linux-image-generic-hwe-22.04", "linux-base", "linux-libc-dev", "linux-image-amd64")  # fmt: skip
    installed = {
        name: Package(name=name, version="1", architecture="", want="install", state="installed") for name in names
    }
    assert set(kernel_packages.metas(installed, "image")) == {
        "linux-image-generic", "linux-image-generic-hwe-22.04", "linux-image-amd64",
    }  # fmt: skip
    assert set(kernel_packages.metas(installed, "")) == {"linux-generic"}


@pytest.mark.parametrize(
    ("name", "old", "new", "held", "may"),
    [
        ("gcc-11", None, "11.4.0-1", False, True),
        ("libgcc-s1", "12.3.0-1", "12.3.0-2", False, True),
        ("libgcc-s1", "12.3.0-2", "12.3.0-1", False, False),
        ("libgcc-s1", "12.3.0-1", "12.3.0-2", True, False),
        ("linux-image-generic", "5.15.0.119", "5.15.0.122", False, False),
        ("libnvidia-compute-580", "580.95.05-0ubuntu1", "580.126.16-0ubuntu1", False, False),
    ],
)
def test_what_may_move_for_a_compilers_sake(name: str, old: str | None, new: str, held: bool, may: bool) -> None:
    want = "hold" if held else "install"
    installed = {name: Package(name=name, version=old or "", architecture="", want=want, state="installed")}
    assert exact_set._may_move(Step(name=name, old=old, new=new), installed) is may
