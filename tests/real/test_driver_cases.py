"""Failures from the field that concern the driver, one test each, with the right behaviour (see test_field_cases)."""

from __future__ import annotations

from drivers import LATEST, declared, is_one, parts, with_driver
from harness import Rig
from machine import MARKS

from rackwright_facts._parse import apt_index, driver_set

pytestmark = MARKS
_APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq -y --allow-downgrades"
_URL = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64"
_TOOLS = ("nvidia-fabricmanager", "libnvidia-nscq")


def _by_hand(rig: Rig, host: str) -> None:
    """Set up the vendor's repository as its own guide does, with what dkms needs."""
    rig.sh(
        host,
        f"wget -qO /usr/share/keyrings/cuda.asc {_URL}/3bf863cc.pub;"
        f" echo 'deb [signed-by=/usr/share/keyrings/cuda.asc] {_URL} /' >/etc/apt/sources.list.d/cuda.list;"
        f" apt-get -qq update; {_APT} install gcc-11 linux-headers-5.15.0-119-generic dkms",
        timeout=300,
    )


def _exact(rig: Rig, host: str, version: str, flavour: str = "open", tools: tuple[str, ...] = _TOOLS) -> str:
    """Return the whole driver of a version as apt takes it, read from the host's own lists."""
    index = rig.sh(host, "cat /var/lib/apt/lists/developer.download.nvidia.com*_Packages")
    offer = driver_set.Offer(apt_index.parse_packages(index))
    found = offer.resolve(version, flavour, debian=False, tools=tools)  # type: ignore[arg-type]
    return " ".join(f"{name}={exact}" for name, exact in found.items())


def test_case_driver_userspace_upgraded_under_module(gpu_rig: Rig) -> None:
    """The libraries moved on under a loaded module: both versions are said, nothing is installed, nothing reboots."""
    rig = gpu_rig
    rig.put_back("gpu01", "fresh")
    _by_hand(rig, "gpu01")
    rig.sh(
        "gpu01",
        f"{_APT} install {_exact(rig, 'gpu01', '580.95.05')}; modprobe -r nouveau; modprobe nvidia",
        timeout=300,
    )
    rig.sh("gpu01", f"{_APT} install {_exact(rig, 'gpu01', '580.126.16')} nvidia-firmware-580-580.95.05-", timeout=300)
    said = rig.lab.run("gpu01", "nvidia-smi", check=False)
    assert (said.returncode, "Driver/library version mismatch" in said.stdout + said.stderr) == (18, True)
    with rig.settings_of("case", declared({"branch": 580})):
        plan, after = rig.converge("gpu01")
        assert not [change for change in plan["changes"] if change["what"].startswith("package nvidia-")]
        assert plan["waiting"] == ["the running module is 580.95.05, installed is 580.126.16"]
        assert set(parts(after)) <= after.held()  # from now on


def test_case_cuda_metapackage_follows_latest(gpu_rig: Rig) -> None:
    """A meta-package that follows the latest goes, and the driver that it brought stays, held."""
    rig = gpu_rig
    rig.put_back("gpu01", "fresh")
    _by_hand(rig, "gpu01")
    rig.sh("gpu01", f"{_APT} install cuda-drivers; modprobe -r nouveau; modprobe nvidia", timeout=300)
    before = parts(rig.snapshot("gpu01"))
    driver = {"branch": 595, "kernel_module": "proprietary"}
    with rig.settings_of("case", declared(driver, allow_reboot=True)):
        plan, after = rig.converge("gpu01")
        gone = [
            change["what"] for change in plan["changes"] if change["what"].startswith("package ") and not change["to"]
        ]
        assert gone == ["package cuda-drivers"]
        assert before.items() <= parts(after).items()
        assert set(parts(after)) <= after.held()
        rig.nothing_to_change("gpu01")


def test_case_driver_branch_switch_held_broken(gpu_rig: Rig) -> None:
    """From a held 535 to 580: its names alone end in "held broken packages", the whole set at once does not."""
    rig = gpu_rig
    rig.put_back("gpu01", "fresh")
    _by_hand(rig, "gpu01")
    rig.sh("gpu01", f"{_APT} install {_exact(rig, 'gpu01', '535.183.01')};"
                    " apt-mark hold $(dpkg-query -W -f '${Package} ' '*nvidia*'); modprobe -r nouveau; modprobe nvidia",
           timeout=300)  # fmt: skip
    said = rig.lab.run("gpu01", "apt-get -s install nvidia-utils-580=580.95.05-0ubuntu1", check=False)
    assert "held" in said.stderr  # "you have held broken packages", or in other words of another apt
    with rig.settings_of("case", declared({"branch": 580}, allow_reboot=True)):
        plan, after = rig.converge("gpu01")
        commands = [command.get("run", []) for change in plan["changes"] for command in change["commands"]]
        transactions = [argv for argv in commands if argv[:2] == ["apt-get", "install"] and "nvidia" in str(argv)]
        assert len(transactions) == 1
        assert not [name for name in parts(after) if "535" in name]
        is_one(rig, "gpu01", "580.126.16", 8, "Dual MIT/GPL")
        rig.nothing_to_change("gpu01")


def test_case_driver_pin_without_hold(gpu_rig: Rig) -> None:
    """A declared version is a hold and a pin too; a failure in the middle leaves them in place."""
    rig = gpu_rig
    rig.put_back("gpu01", "fresh")
    exact = declared({"branch": 580, "version": "580.95.05"})
    with rig.settings_of("case", exact):
        _, after = rig.converge("gpu01")
        assert set(parts(after)) <= after.held()
        rig.sh("gpu01", f"{_APT} upgrade; {_APT} dist-upgrade; unattended-upgrade", timeout=300)
        assert rig.snapshot("gpu01").packages == after.packages  # no part of it, and no kernel
        rig.lab.reboot("gpu01")
        is_one(rig, "gpu01", "580.95.05", 8, "Dual MIT/GPL")
        rig.nothing_to_change("gpu01")
    rig.lab.fault("gpu01", "dkms_fails")
    newer = declared({"branch": 580, "version": LATEST}, allow_reboot=True)
    with rig.settings_of("newer", newer):
        assert rig.pyinfra("gpu01").status == 1
        failed = rig.snapshot("gpu01")
        assert set(parts(failed).values()) == {"580.95.05"}
        assert set(parts(failed)) <= failed.held()
        rig.lab.fault("gpu01", "clear")
        assert rig.pyinfra("gpu01").status == 0
        moved = rig.snapshot("gpu01")
        assert set(parts(moved).values()) == {"580.126.16"}
        assert set(parts(moved)) <= moved.held()


def test_case_kernel_headers_missing_after_autoupdate(gpu_rig: Rig) -> None:
    """A kernel came without its headers, and without a module: both are brought for it, and headers follow kernels."""
    rig = gpu_rig
    with_driver(rig, LATEST, "gpu01")
    with rig.settings_of("case", declared({"branch": 580})):
        rig.sh("gpu01", f"apt-get -qq update; {_APT} install linux-image-5.15.0-122-generic", timeout=300)
        rig.lab.reboot("gpu01")
        assert rig.sh("gpu01", "uname -r; dkms status") == (
            "5.15.0-122-generic\nnvidia/580.126.16, 5.15.0-119-generic, x86_64: installed\n"
        )
        assert rig.lab.run("gpu01", "nvidia-smi", check=False).returncode == 9
        plan, _ = rig.converge("gpu01")
        assert "package linux-headers-5.15.0-122-generic" in [change["what"] for change in plan["changes"]]
        is_one(rig, "gpu01", "580.126.16", 8, "Dual MIT/GPL")
        rig.nothing_to_change("gpu01")


def test_case_fabricmanager_version_mismatch(gpu_rig: Rig) -> None:
    """Fabric manager of another build than the driver refuses to start: it goes with the set, to the last digit."""
    rig = gpu_rig
    with_driver(rig, LATEST, "gpu01")
    with rig.settings_of("case", declared({"branch": 580})):
        rig.sh("gpu01", f"{_APT} --allow-change-held-packages install nvidia-fabricmanager=580.95.05-1", timeout=300)
        rig.sh("gpu01", "systemctl restart nvidia-fabricmanager; sleep 1", check=False)
        assert "don't match with driver version 580.126.16" in rig.sh("gpu01", "journalctl -u nvidia-fabricmanager")
        rig.converge("gpu01")
        assert rig.sh("gpu01", "systemctl is-active nvidia-fabricmanager; nv-fabricmanager -v").startswith("active\n")
        is_one(rig, "gpu01", "580.126.16", 8, "Dual MIT/GPL")


def test_case_nouveau_still_in_initramfs(gpu_rig: Rig) -> None:
    """The blacklist is there, and the image that boots does not hold it: the image is looked at, and built anew."""
    rig = gpu_rig
    rig.put_back("gpu01", "fresh")
    rig.sh("gpu01", "echo nouveau >>/etc/initramfs-tools/modules; update-initramfs -u -k all;"
                    " echo 'blacklist nouveau' >/etc/modprobe.d/blacklist-nouveau.conf", timeout=300)  # fmt: skip
    rig.lab.reboot("gpu01")
    assert "nouveau" in rig.sh("gpu01", "ls /sys/module")
    with rig.settings_of("case", declared({"branch": 580})):
        plan, _ = rig.converge("gpu01")
        assert "initramfs of 5.15.0-119-generic" in [change["what"] for change in plan["changes"]]
        listed = rig.sh("gpu01", "lsinitramfs /boot/initrd.img-5.15.0-119-generic")
        assert "modprobe.d/rackwright-nvidia.conf" in listed
        is_one(rig, "gpu01", "580.126.16", 8, "Dual MIT/GPL")
        rig.nothing_to_change("gpu01")
        rig.lab.reboot("gpu01")
        assert "nouveau" not in rig.sh("gpu01", "ls /sys/module")
        rig.nothing_to_change("gpu01")


def test_case_reboot_required_not_handled(gpu_rig: Rig) -> None:
    """The one place that decides about a reboot: a new boot_id and on it goes, or plainly pending; then no change."""
    rig = gpu_rig
    with_driver(rig, "535.183.01", "gpu01")
    boot = rig.sh("gpu01", "cat /proc/sys/kernel/random/boot_id")
    with rig.settings_of("waits", declared({"branch": 580})):
        run = rig.pyinfra("gpu01")
        assert run.status == 0, run.said
        waits = "the running module is 535.183.01, installed is 580.126.16"
        assert f"gpu01: reboot pending: {waits}" in run.stderr
        assert rig.sh("gpu01", "cat /proc/sys/kernel/random/boot_id") == boot
        planned = rig.plan("gpu01")
        host = planned.report["hosts"]["gpu01"]
        assert (planned.status, host["status"], host["changes"]) == (3, "pending", [])
        assert host["waiting"] == [waits]
        again = rig.pyinfra("gpu01")
        assert (again.status, again.changed("gpu01")) == (0, []), again.said
        assert rig.rackwright("verify", "inventories/lab.py", "--limit", "gpu01").status == 4
    with rig.settings_of("goes", declared({"branch": 580}, allow_reboot=True)):
        rig.converge("gpu01")
        assert rig.sh("gpu01", "cat /proc/sys/kernel/random/boot_id") != boot
        is_one(rig, "gpu01", "580.126.16", 8, "Dual MIT/GPL")
        rig.nothing_to_change("gpu01")


def test_case_open_vs_proprietary_module_flavour(gpu_rig: Rig) -> None:
    """Each host by its own boards in one run; a choice that drives none of them is refused with the rule."""
    rig = gpu_rig
    declared = {"profiles/rehearsal-v100x8": {"driver": {"branch": 580}},
                "profiles/rehearsal-b200x8": {"driver": {"branch": 580}}}  # fmt: skip
    with rig.borrowed("gpu04", "gpu05"), rig.settings_of("mixed", declared):
        run = rig.pyinfra("gpu04", "gpu05")
        assert run.status == 0, run.said
        is_one(rig, "gpu04", "580.126.16", 8, "NVIDIA")
        is_one(rig, "gpu05", "580.126.16", 8, "Dual MIT/GPL")
    wrong = {"profiles/rehearsal-b200x8": {"driver": {"branch": 580, "kernel_module": "proprietary"}}}
    with rig.borrowed("gpu05"), rig.settings_of("wrong", wrong):
        planned = rig.plan("gpu05")
        assert planned.status == 1
        (refusal,) = planned.report["hosts"]["gpu05"]["refusals"]
        assert "the proprietary module does not drive 0000:" in refusal["what"]
        assert "Blackwell open only" in refusal["where"]


def test_case_kernel_devel_newer_than_running(gpu_rig: Rig) -> None:
    """The sources have no headers for the running kernel any more: told with the options, and no kernel is upgraded."""
    rig = gpu_rig
    rig.put_back("gpu01", "fresh")
    rig.sh("gpu01", "printf 'Package: linux-headers-5.15.0-119-generic\\nPin: version *\\nPin-Priority: -1\\n'"
                    " >/etc/apt/preferences.d/gone")  # fmt: skip
    before = rig.snapshot("gpu01")
    with rig.settings_of("case", declared({"branch": 580})):
        run = rig.pyinfra("gpu01")
        assert run.status == 1
        assert "linux-headers-5.15.0-119-generic" in run.stderr
        assert "cannot be had" in run.stderr
        assert "rackwright never upgrades a kernel by itself" in run.stderr
        assert not before.difference(rig.snapshot("gpu01"))


def test_case_mon_nvidia_smi_hangs(gpu_rig: Rig) -> None:
    """A driver that does not answer: its host says so, the others are complete, and no call is piled upon another."""
    rig = gpu_rig
    with rig.settings_of("case", declared({"branch": 580})):
        with_driver(rig, LATEST, "gpu01", "gpu02")
        rig.lab.fault("gpu01", "smi_hangs")
        for _ in range(2):
            seen = rig.rackwright("inspect", "inventories/lab.py", "--limit", "gpu01", "--limit", "gpu02")
            lines = seen.stdout.splitlines()
            assert seen.status == 1
            assert [line for line in lines if line.startswith("gpu01") and "the driver does not answer" in line], (
                seen.said
            )
            assert len([line for line in lines if line.startswith("gpu02") and "H100 80GB HBM3" in line]) == 8
            assert int(rig.sh("gpu01", "pgrep -c nvidia-smi || true")) <= 1
        rig.lab.fault("gpu01", "clear")


def test_inspect_marks_the_odd_one(gpu_rig: Rig) -> None:
    rig = gpu_rig
    with_driver(rig, LATEST, "gpu02")
    rig.lab.fault("gpu02", "ecc_errors", "gpu=3", "uncorrected=2")
    inspect = ("inspect", "inventories/lab.py", "--limit", "gpu02")
    seen = rig.rackwright(*inspect, "--json")
    assert seen.status == 0, seen.said
    gpus = seen.report["hosts"]["gpu02"]["gpus"]["value"]["gpus"]
    assert [gpu["ecc"]["volatile"]["uncorrected"] for gpu in gpus] == [0, 0, 0, 2, 0, 0, 0, 0]
    odd = [line.split("\t") for line in rig.rackwright(*inspect).stdout.splitlines() if "*" in line]
    assert [(cells[1], cells[10]) for cells in odd] == [("3", "2 *")]
    rig.lab.fault("gpu02", "clear")
