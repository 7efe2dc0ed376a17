"""What the driver (nvidia-smi) tells of the GPUs of a node.

A field is a value; `Missing`, when the driver prints it without a value; or None, when this driver, or this command,
does not print it at all. Field names carry the unit. Sources: `man nvidia-smi`, nvml.h, the DTDs of v9 to v13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from rackwright_facts._parse.model import Model
from rackwright_facts._parse.nvidia_smi_values import Missing

Text: TypeAlias = str | Missing | None
Count: TypeAlias = int | Missing | None
Real: TypeAlias = float | Missing | None
Flag: TypeAlias = bool | Missing | None


class TemperatureLimits(Model):
    """Where the driver acts, in degrees Celsius: up to Ampere as temperatures, from Hopper on as margins (T.Limit).

    A margin counts down to its limit: `tlimit_c` is what is left, the others are the margins at which it acts.
    """

    shutdown_c: Count = None
    slowdown_c: Count = None
    max_operating_c: Count = None
    target_c: Count = None
    memory_max_operating_c: Count = None
    tlimit_c: Count = None
    shutdown_tlimit_c: Count = None
    slowdown_tlimit_c: Count = None
    max_operating_tlimit_c: Count = None
    memory_max_operating_tlimit_c: Count = None


class Clocks(Model):
    """Clocks in MHz: as they are, as applications set them, and the highest."""

    graphics_mhz: Count = None
    sm_mhz: Count = None
    memory_mhz: Count = None
    video_mhz: Count = None
    applications_graphics_mhz: Count = None
    applications_memory_mhz: Count = None
    max_graphics_mhz: Count = None
    max_sm_mhz: Count = None
    max_memory_mhz: Count = None


class EccCounts(Model):
    """Memory errors, in one period.

    `corrected` and `uncorrected` are the totals that every generation has: "single bit" and "double bit" up to Volta,
    the sums of SRAM and DRAM from Turing on. A counter that is not there does not count; one that could not be read
    makes the total unreadable.
    """

    corrected: Count = None
    uncorrected: Count = None
    sram_corrected: Count = None
    sram_uncorrected: Count = None
    """From driver 550 on the sum of "parity" and "SEC-DED"."""
    dram_corrected: Count = None
    dram_uncorrected: Count = None


class Ecc(Model):
    """ECC: the mode, and the errors since the driver was loaded (volatile) and of the board's life (aggregate)."""

    mode_current: Text = None
    mode_pending: Text = None
    volatile: EccCounts = EccCounts()
    aggregate: EccCounts = EccCounts()
    sram_threshold_exceeded: Flag = None
    channel_repair_pending: Flag = None
    tpc_repair_pending: Flag = None
    unrepairable_memory: Flag = None


class RetiredPages(Model):
    """Pages taken out of use (up to Turing). `pending`: a page waits for a reset of the GPU."""

    single_bit: Count = None
    double_bit: Count = None
    pending: Flag = None


class RemappedRows(Model):
    """Memory rows replaced by spare ones (from Ampere on)."""

    correctable: Count = None
    uncorrectable: Count = None
    pending: Flag = None
    """A row waits for a reset of the GPU."""
    failure: Flag = None
    """A row could not be replaced: the board is to be exchanged."""


class Pcie(Model):
    """The PCIe link, in generations and lanes; an idle GPU lowers its generation to save power."""

    generation_current: Count = None
    generation_max: Count = None
    width_current: Count = None
    width_max: Count = None
    replays: Count = None
    """Packets sent again since the last reset."""


class Fabric(Model):
    """How the GPU stands with the NVLink fabric (NVSwitch systems; from driver 525 on)."""

    state: Text = None
    """`Completed` when registered, `In Progress`, `Not Started`."""
    status: Text = None
    clique_id: Count = None
    cluster_uuid: Text = None
    health: Text = None


class MigDevice(Model):
    """One MIG device: a compute instance in a GPU instance. `-L` knows its profile and UUID, `-q` its memory."""

    index: Count = None
    gpu_instance_id: Count = None
    compute_instance_id: Count = None
    profile: Text = None
    uuid: Text = None
    memory_total_mib: Count = None
    memory_used_mib: Count = None
    memory_free_mib: Count = None
    sram_uncorrected: Count = None


class Process(Model):
    """One process on a GPU; `type` is C (compute), G (graphics) or C+G."""

    pid: Count = None
    type: Text = None
    name: Text = None
    used_memory_mib: Count = None
    gpu_instance_id: Count = None
    compute_instance_id: Count = None


class ClockReasons(Model):
    """Why the clocks are what they are, by the names of `nvidia_smi_values.clock_reasons`."""

    active: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    """Reasons of which the driver could not tell."""


class Gpu(Model):
    """One GPU as the driver sees it."""

    index: int | None = None
    """As printed by `-L` and the table; `-q` prints none. It is the order of the bus ids, not of the minor numbers."""
    minor_number: Count = None
    """N of /dev/nvidiaN."""
    bus_id: Text = None
    """As sysfs has it: `0000:1b:00.0`."""
    uuid: Text = None
    name: Text = None
    brand: Text = None
    architecture: Text = None
    serial: Text = None
    vbios_version: Text = None
    persistence_mode: Text = None
    mig_mode_current: Text = None
    mig_mode_pending: Text = None
    mig_devices: tuple[MigDevice, ...] = ()
    compute_mode: Text = None
    performance_state: Text = None
    recovery_action: Text = None
    """What the driver wants done, from 560 on: `None` (nothing), `Reset`, `Reboot`, `Drain P2P`, `Drain and Reset`."""
    reset_required: Flag = None
    memory_total_mib: Count = None
    memory_used_mib: Count = None
    memory_free_mib: Count = None
    bar1_total_mib: Count = None
    bar1_used_mib: Count = None
    utilization_gpu_pct: Count = None
    utilization_memory_pct: Count = None
    fan_pct: Count = None
    temperature_c: Count = None
    memory_temperature_c: Count = None
    temperature_limits: TemperatureLimits = TemperatureLimits()
    power_draw_w: Real = None
    """The draw at this moment where the driver tells it, else its average."""
    power_average_w: Real = None
    power_limit_w: Real = None
    """The limit that is enforced."""
    power_limit_default_w: Real = None
    power_limit_min_w: Real = None
    power_limit_max_w: Real = None
    clocks: Clocks = Clocks()
    clock_reasons: ClockReasons | Missing | None = None
    ecc: Ecc = Ecc()
    retired_pages: RetiredPages = RetiredPages()
    remapped_rows: RemappedRows = RemappedRows()
    pcie: Pcie = Pcie()
    fabric: Fabric = Fabric()
    processes: tuple[Process, ...] | Missing | None = None


class SmiLog(Model):
    """What one call of nvidia-smi told: `-q -x`, `-q`, `-L` or the plain table."""

    driver_version: Text = None
    cuda_version: Text = None
    """The highest CUDA version that the driver serves."""
    attached_gpus: Count = None
    """How many the driver has; with `-i` fewer are printed."""
    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()
    """Lines beside the answer, such as `WARNING: infoROM is corrupted at gpu 0000:00:1E.0`."""


class SmiCsv(Model):
    """The rows of `--query-gpu=... --format=csv` (and of its `noheader` and `nounits`)."""

    columns: tuple[str, ...]
    """As the header prints them, with the unit: `memory.total [MiB]`."""
    rows: tuple[dict[str, str | int | float | Missing], ...]
    unreadable: tuple[str, ...] = ()
    """Rows with another number of cells than the header."""
    notes: tuple[str, ...] = ()


class NvLink(Model):
    """One link: its speed in GB/s, or `Missing` where it is down."""

    link: int
    speed_gb_s: float | Missing


class NvLinks(Model):
    """The links of one GPU (`nvidia-smi nvlink -s`)."""

    index: int
    name: str
    uuid: str
    links: tuple[NvLink, ...] = ()
    all_inactive: bool = False
    """NVML said so for the whole GPU, and named no link."""


class NvLinkStatus(Model):
    """What `nvidia-smi nvlink -s` told."""

    gpus: tuple[NvLinks, ...]


class TopologyRow(Model):
    """How one GPU or NIC reaches the others: X, NV18, PIX, PXB, PHB, NODE, SYS."""

    name: str
    paths: dict[str, str]
    cpu_affinity: Text = None
    numa_affinity: Text = None
    gpu_numa_id: Text = None


class Topology(Model):
    """The matrix of `nvidia-smi topo -m`."""

    rows: tuple[TopologyRow, ...]
    nics: Mapping[str, str] = {}
    """NIC0 -> mlx5_0, from the legend."""


class SmiVersion(Model):
    """What `nvidia-smi --version` tells, whatever the line is called in this driver."""

    nvidia_smi_version: Text = None
    nvml_version: Text = None
    driver_version: Text = None
    """Of the kernel module: "DRIVER version", from 610 on "KMD version"."""
    cuda_version: Text = None


class SmiFailure(Model):
    """Why nvidia-smi gave no answer."""

    kind: Literal[
        "driver_not_loaded", "version_mismatch", "no_devices", "not_root", "gpu_lost", "library_missing", "other"
    ]
    text: str
    """The tool's own words."""
    exit_status: int | None = None
    library_version: str | None = None
    """With a version mismatch: the version of the libraries, which is not that of the loaded module."""
    bus_id: str | None = None
    """The GPU that is lost."""
