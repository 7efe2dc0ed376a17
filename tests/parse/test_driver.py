"""The driver's state, PCI devices, kernels' compilers and initramfs: text in, model out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackwright import sources
from rackwright_facts import systemd
from rackwright_facts._parse import driver_set, nvidia_driver, nvidia_products, pci
from rackwright_facts._parse.nvidia_driver import compiler_package, parse_nvrm

STATE = """running\t5.15.0-119-generic
boot_id\tf6ad9c61-1111-2222-3333-444444444444
nvrm\tNVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (builder@host)  Tue Sep 23
nvrm\tGCC version:  gcc version 12.3.0
rival\tnouveau\t2
kernel\t6.8.0-45-generic\t0\t"x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0"\t0\t\t\t
kernel\t5.15.0-119-generic\t1\t"gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0"\t1\t580.126.16\tDual MIT/GPL\tDKMS key
library\tlibcuda\t/usr/lib/x86_64-linux-gnu/libcuda.so.580.126.16
library\tlibnvidia-ml\t/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1
secure_boot\t1
key_enrolled\t1
runfile\t/usr/bin/nvidia-uninstall
"""


def test_the_state_of_a_driver() -> None:
    state = nvidia_driver.parse(STATE)
    assert state.loaded is not None
    assert (state.loaded.version, state.loaded.flavour) == ("580.95.05", "open")
    assert [kernel.release for kernel in state.kernels] == ["5.15.0-119-generic", "6.8.0-45-generic"]
    assert state.next_boot == "6.8.0-45-generic"
    here = state.kernel(state.running)
    assert here.module is not None
    assert (here.compiler, here.module.version, here.module.flavour) == ("gcc-11", "580.126.16", "open")
    assert state.kernel("6.8.0-45-generic").module is None
    assert state.libraries == {"libcuda": "580.126.16"}  # a link that leads to no version tells none
    assert (state.rivals, state.secure_boot, state.key_enrolled) == ({"nouveau": 2}, True, True)
    assert state.runfile == ("/usr/bin/nvidia-uninstall",)
    assert state.kernel("4.4.0-1-generic").headers is False


@pytest.mark.parametrize(
    ("text", "version", "flavour"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n", "535.129.03",
         "proprietary"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.80  Release Build  (b@h)\n", "595.80", "open"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  \n", "580.95.05", "open"),
    ],
)  # fmt: skip
def test_the_loaded_module(text: str, version: str, flavour: str) -> None:
    loaded = parse_nvrm(text)
    assert (loaded.version, loaded.flavour) == (version, flavour)


@pytest.mark.parametrize(
    ("text", "package"),
    [
        ("gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0", "gcc-11"),
        ("x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0", "gcc-12"),
        ("gcc-12 (Debian 12.2.0-14) 12.2.0", "gcc-12"),
        ("x86_64-linux-gnu-gcc-13 (Ubuntu 13.2.0-23ubuntu4) 13.2.0", "gcc-13"),
        ("aarch64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0", "gcc-13"),
        ("Debian clang version 14.0.6", ""),
        ("", ""),
    ],
)
def test_the_compiler_of_a_kernel(text: str, package: str) -> None:
    assert compiler_package(text) == package


def test_an_initramfs_is_looked_at_inside() -> None:
    text = (
        "5.15.0-119-generic\t\n5.15.0-119-generic\tusr/lib/modules/5.15.0-119-generic/kernel/drivers/gpu/drm/nouveau/"
        "nouveau.ko.zst\n6.1.0-28-amd64\t\n6.1.0-28-amd64\tetc/modprobe.d/rackwright-nvidia.conf\n"
        "6.1.0-28-amd64\tusr/lib/modules/6.1.0-28-amd64/kernel/drivers/gpu/drm/nouveau/nouveau.ko\n6.2.0\t\n"
        "6.3.0\t\n6.3.0\tbroken\n"
    )
    first, second, third, fourth = nvidia_driver.parse_initramfs(text)
    assert (first.rivals, first.blacklisted, first.is_clean) == (("nouveau",), False, False)
    assert (second.rivals, second.blacklisted, second.is_clean) == (("nouveau",), True, True)
    assert (third.rivals, third.is_clean) == ((), True)
    assert (fourth.broken, fourth.is_clean) == (True, False)


def test_processes_with_their_containers_and_all_their_gpus() -> None:
    long = "0::/system.slice/docker-" + "ab12" * 16 + ".scope "
    text = (
        f"4711\troot\tGPU-1\t{long}\tpython3 train.py --epochs 3\n"
        f"4711\troot\tGPU-2\t{long}\tpython3 train.py --epochs 3\n"
        "4712\talice\t\t0::/user.slice\t./a.out\n"
    )
    first, second = nvidia_driver.parse_processes(text)
    assert (first.gpus, first.container) == (("GPU-1", "GPU-2"), "ab12ab12ab12")
    assert str(second) == "pid 4712 (alice: ./a.out)"
    assert str(first) == "pid 4711 (root: python3 train.py --epochs 3) on GPU-1, GPU-2 in container ab12ab12ab12"


def test_pci_functions() -> None:
    text = (
        "0000:1b:00.0\t0x2330\t0x030200\tnvidia\t0\n0000:07:00.0\t0x22a3\t0x068000\t\t0\n"
        "0000:01:00.0\t0x2684\t0x030000\tnouveau\t0\n0000:01:00.1\t0x22ba\t0x040300\tsnd_hda_intel\t0\n"
        "0000:09:00.0\t0x1021\t0x020700\tmlx5_core\t1\n"
    )
    gpu, switch, desktop, audio, manager = pci.parse(text)
    assert (gpu.is_gpu, gpu.is_display, gpu.is_nvswitch, gpu.device_id) == (True, False, False, 0x2330)
    assert (switch.is_gpu, switch.is_nvswitch, switch.driver) == (False, True, "")
    assert (desktop.is_gpu, desktop.is_display) == (True, True)
    assert (audio.is_gpu, audio.is_nvswitch) == (False, False)
    assert (manager.is_gpu, manager.is_nvswitch) == (False, True)


@pytest.mark.parametrize(
    ("device", "generation"),
    [
        (0x2330, "hopper"), (0x2342, "hopper"), (0x20B0, "ampere"), (0x2684, "ada"), (0x1DB5, "volta"),
        (0x2901, "blackwell"), (0x2941, "blackwell"), (0x1EB8, "turing"), (0x2182, "turing"), (0x2236, "ampere"),
        (0x26B9, "ada"), (0x15F8, "pascal"), (0x1B06, "pascal"), (0x17C2, "older"), (0x102D, "older"),
        (0x2BB1, "blackwell"), (0x3182, "blackwell"), (0x2504, "ampere"),
    ],
)  # fmt: skip
def test_generations_by_device_id(device: int, generation: str) -> None:
    assert nvidia_products.generation(device) == generation


@pytest.mark.parametrize(
    ("maintainer", "origin"),
    [
        ("cudatools <cudatools@nvidia.com>", "nvidia"), ("Debian NVIDIA Maintainers <x@lists.debian.org>", "debian"),
        ("Ubuntu Core Developers <ubuntu-devel-discuss@lists.ubuntu.com>", "ubuntu"), ("", ""),
    ],
)  # fmt: skip
def test_the_origin_of_a_driver_by_its_packager(maintainer: str, origin: str) -> None:
    assert sources.driver_origin(maintainer) == origin


@pytest.mark.parametrize(
    ("name", "is_part"),
    [
        ("nvidia-driver-580-open", True), ("libnvidia-compute-535", True), ("libcuda1", True), ("nvidia-smi", True),
        ("nvidia-firmware-580-580.95.05", True), ("xserver-xorg-video-nvidia-535", True), ("cuda-drivers-580", True),
        ("nvidia-fabricmanager", True), ("nvidia-open", True), ("firmware-nvidia-gsp", True),
        ("nvidia-container-toolkit", False), ("libnvidia-container1", False), ("nvidia-settings", False),
        ("nvidia-modprobe", False), ("nvidia-cuda-toolkit", False), ("nvidia-driver-pinning-595", False),
        ("libnvidia-egl-wayland1", False), ("nvidia-docker2", False), ("bash", False), ("cuda-toolkit-12-2", False),
    ],
)  # fmt: skip
def test_what_belongs_to_a_driver(name: str, is_part: bool) -> None:
    assert driver_set.is_part(name) is is_part


def test_units() -> None:
    text = "Id=a.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\nResult=success\n\nId=b.service\n"
    text += "LoadState=not-found\nActiveState=inactive\nUnitFileState=\nResult=success\n"
    found = systemd.parse_units(text)
    assert (found["a.service"].active, found["a.service"].file, found["a.service"].is_there) == (
        "active",
        "enabled",
        True,
    )
    assert found["b.service"].is_there is False


@pytest.mark.parametrize(
    "parser",
    [nvidia_driver.parse, nvidia_driver.parse_initramfs, nvidia_driver.parse_processes, nvidia_driver.parse_nvrm,
     pci.parse, systemd.parse_units],
)  # fmt: skip
@given(text=st.text() | st.lists(st.text("kernelrunigboot_id \t0123=", max_size=40)).map("\n".join))
def test_any_text_is_a_model_or_a_value_error(parser: object, text: str) -> None:
    try:
        parser(text)  # type: ignore[operator]
    except ValueError:
        return
