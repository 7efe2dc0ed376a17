"""nvidia-smi's texts: `-q`, the table, the list, the versions, the links and the topology."""

from __future__ import annotations

from .smi_device import NA, View, cuda_version
from .smi_rows import Rows, ecc_modes, mig_texts
from .smi_tree import gpu_tree
from .state import numbers

# The blocks that each section of `-d` shows, by their elements.
SECTIONS = {
    "MEMORY": ("fb_memory_usage", "bar1_memory_usage", "cc_protected_memory_usage"),
    "UTILIZATION": ("utilization",),
    "ECC": ("ecc_mode", "ecc_errors"),
    "TEMPERATURE": ("temperature",),
    "POWER": ("power_readings", "gpu_power_readings", "gpu_memory_power_readings", "module_power_readings"),
    "CLOCK": (
        "clocks", "applications_clocks", "default_applications_clocks", "deferred_clocks", "max_clocks",
        "max_customer_boost_clocks", "clock_policy",
    ),
    "COMPUTE": ("compute_mode",),
    "PIDS": ("processes",),
    "PERFORMANCE": (
        "performance_state", "clocks_event_reasons", "clocks_throttle_reasons", "clocks_event_reasons_counters",
        "sparse_operation_mode",
    ),
    "PAGE_RETIREMENT": ("retired_pages",),
    "ROW_REMAPPER": ("remapped_rows",),
    "VOLTAGE": ("voltage",),
    "FBC_STATS": ("fbc_stats",),
    "ENCODER_STATS": ("encoder_stats",),
    "ACCOUNTING": ("accounting_mode", "accounting_mode_buffer_size"),
}  # fmt: skip
_HEXADECIMAL = ("pci_bus", "pci_device", "pci_domain", "pci_base_class", "pci_sub_class", "pci_device_id",
                "pci_sub_system_id")  # fmt: skip


def query(found: list[View], attached: int, driver: str, now: str, sections: tuple[str, ...]) -> str:
    """Return the text of `-q`, with all blocks or those of the named sections."""
    width = 55 if numbers(driver) >= (580,) else 42
    lines = ["", "==============NVSMI LOG==============", ""]
    for label, value in (
        ("Timestamp", now),
        ("Driver Version", driver),
        ("CUDA Version", cuda_version(driver)),
        ("", ""),
        ("Attached GPUs", str(attached)),
    ):
        lines.append(f"{label:{width}}: {value}" if label else "")
    wanted = {tag for section in sections for tag in SECTIONS[section]}
    for view in found:
        lines.append(f"GPU {view.bus_id}")
        rows = [
            row for row in gpu_tree(view) if not wanted or row[0] in wanted or (row[1] == "Processes" and not row[0])
        ]
        if wanted and "processes" not in wanted:
            rows = [row for row in rows if row[1] != "Processes"]
        _write(lines, rows, "    ", width)
        lines.append("")
    return "\n".join(lines) + "\n"


def _write(lines: list[str], rows: Rows, indent: str, width: int) -> None:
    for tag, label, content in rows:
        if tag == "process_info" or tag == "mig_device":
            _write(lines, content if isinstance(content, list) else [], indent, width)
        elif not label:
            continue
        elif isinstance(content, list):
            lines.append(f"{indent}{label}")
            _write(lines, content, indent + "    ", width)
        else:
            prefix = "0x" if tag in _HEXADECIMAL else ""
            lines.append(f"{indent + label:{width}}: {prefix}{content}")


def listing(found: list[View]) -> str:
    """Return the text of `-L`."""
    lines = []
    for view in found:
        lines.append(f"GPU {view.gpu['index']}: {view.board.name} (UUID: {view.gpu['uuid']})")
        devices = (one for one in view.mig_instances if one["has_compute"])
        lines += [
            f"  MIG {one['profile']:<11} Device {index:2d}: (UUID: {one['uuid']})" for index, one in enumerate(devices)
        ]
    return "".join(line + "\n" for line in lines)


def version(driver: str, module: str) -> str:
    """Return the text of `--version`."""
    library = ".".join(driver.split(".")[:2])
    rows: tuple[tuple[str, str], ...]
    if numbers(driver) >= (610,):
        rows = (
            ("NVIDIA-SMI version", driver), ("NVML version", library),
            ("DRIVER version", 'Deprecated, see "KMD version" instead'),
            ("CUDA version", 'Deprecated, see "CUDA UMD version" instead'),
            ("KMD version", module), ("CUDA UMD version", cuda_version(driver)),
        )  # fmt: skip
    else:
        rows = (
            ("NVIDIA-SMI version", driver), ("NVML version", library), ("DRIVER version", module),
            ("CUDA Version", cuda_version(driver)),
        )  # fmt: skip
    return "".join(f"{name:<20}: {value}\n" for name, value in rows)


def nvlink(found: list[View]) -> str:
    """Return the text of `nvlink -s`: the speed of each link in one direction."""
    lines = []
    for view in found:
        lines.append(f"GPU {view.gpu['index']}: {view.board.name} (UUID: {view.gpu['uuid']})")
        if view.fabric[0] == "In Progress":
            lines.append("NVML: Unable to retrieve NVLink information as all links are inActive")
            continue
        lines += [f"\t Link {link}: {view.board.nvlink_gbs} GB/s" for link in range(view.board.nvlinks)]
    return "".join(line + "\n" for line in lines)


def topology(found: list[View]) -> str:
    """Return the text of `topo -m`: NVLink where the boards have it, else how the PCIe paths run."""
    names = [f"GPU{view.gpu['index']}" for view in found]
    lines = ["\t\033[4m" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]) + "\033[0m"]
    for view in found:
        half = int(view.gpu["bus_id"][5:7], 16) >= 0x80
        cells = []
        for other in found:
            across = half != (int(other.gpu["bus_id"][5:7], 16) >= 0x80)
            links = f"NV{view.board.nvlinks}" if view.board.nvlinks else "SYS" if across else "NODE"
            cells.append(" X " if other is view else links)
        lines.append(
            "\t".join([f"GPU{view.gpu['index']}", *cells, "48-95" if half else "0-47", str(int(half)), "", NA])
        )
    legend = (
        "X    = Self",
        "SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)",
        "NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node",
        "PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)",
        "PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)",
        "PIX  = Connection traversing at most a single PCIe bridge",
        "NV#  = Connection traversing a bonded set of # NVLinks",
    )
    return "\n".join([*lines, "", "Legend:", "", *(f"  {line}" for line in legend)]) + "\n"


def table(found: list[View], driver: str, module: str, now: str) -> str:
    """Return what nvidia-smi prints without arguments; it grew wider with 530 and with 545."""
    a, b, c = (41, 24, 22) if numbers(driver) >= (545,) else (41, 22, 22) if numbers(driver) >= (530,) else (31, 22, 22)
    inner = a + b + c + 2
    edge, rule = "+" + "-" * inner + "+", f"+{'-' * a}+{'-' * b}+{'-' * c}+"
    if numbers(driver) >= (610,):
        head = f" NVIDIA-SMI {driver:<22}KMD Version: {module:<14}CUDA UMD Version: {cuda_version(driver)}"
    else:
        first, second = (23, inner - 74) if a > 31 else (13, 13)
        head = f" NVIDIA-SMI {driver:<{first}}Driver Version: {module:<{second}}CUDA Version: {cuda_version(driver)}"
    if a > 31:
        names, heats = f" GPU  {'Name':<{a - 20}}Persistence-M ", f" Fan  Temp   Perf {'Pwr:Usage/Cap':>{a - 19}} "
    else:
        names, heats = " GPU  Name        Persistence-M", " Fan  Temp  Perf  Pwr:Usage/Cap"
    lines = [
        now,
        edge,
        f"|{head:<{inner}}|",
        f"|{rule[1:]}",
        f"|{names}|{' Bus-Id':<{b - 7}}Disp.A | Volatile Uncorr. ECC |",
        f"|{heats}|{'Memory-Usage':>{b - 1}} | GPU-Util  Compute M. |",
        f"|{' ' * a}|{' ' * b}|{'MIG M.':>{c - 1}} |",
        f"|{'=' * a}+{'=' * b}+{'=' * c}|",
    ]
    for view in found:
        lines += [*_table_rows(view, a, b, c), rule]
    lines += ["", edge, f"|{' Processes:':<{inner}}|"]
    lines.append(f"|{'  GPU   GI   CI        PID   Type   Process name':<{inner - 11}}GPU Memory |")
    lines.append(f"|{'        ID   ID':<{inner - 11}}{'Usage':<11}|")
    lines.append(f"|{'=' * inner}|")
    running = [(view, one) for view in found for one in view.gpu["processes"]]
    for view, one in running:
        left = f"    {view.gpu['index']}   N/A  N/A  {one['pid']:>9}      {one.get('type', 'C')}   {one['name']}"
        lines.append(f"|{left:<{inner - 12}}{one['used_mib']:>8}MiB |")
    if not running:
        lines.append(f"|{'  No running processes found':<{inner}}|")
    return "\n".join([*lines, edge]) + "\n"


def _table_rows(view: View, a: int, b: int, c: int) -> list[str]:
    most = a - 14 if a > 31 else 18
    name = view.board.name if len(view.board.name) <= most else view.board.name[: most - 3] + "..."
    wide = b > 22
    error, limit = view.gpu.get("unknown"), f"{view.power_limit_w:.0f}W"
    persistence = "On" if view.settings.get("persistence") else "Off"
    counts = view.gpu["ecc"]["volatile"]
    uncorrected = str(counts["dram_uncorrectable"] + counts["sram_parity"] + counts["sram_secded"])
    can_ecc = view.gpu["settings"]["ecc"] or not view.board.is_data_center
    ecc = uncorrected if view.has_ecc else "Off" if ecc_modes(view)[0] == "Disabled" and can_ecc else NA
    heat = "ERR!" if error else f"{view.gpu['temperature_c']}C"
    drawn = "ERR!" if error else f"{view.gpu['power_w']:.0f}W"
    fan = NA if view.board.is_data_center else "0%"
    load = NA if view.mig is not None and view.mig[0] else f"{view.gpu['utilization_percent']}%"
    mode = {"Exclusive_Process": "E. Process"}.get(view.settings.get("compute_mode", "Default"))
    compute = mode or view.settings.get("compute_mode", "Default")
    memory = f"{view.used_mib}MiB / {view.board.memory:>{6 if wide else 5}}MiB"
    first = f" {view.gpu['index']:>3}  {name:<{a - 10 if a > 31 else 20}}{persistence:<3} "
    usage = f"{drawn} / {limit:>{5 if wide else 4}}"
    heats = f" {fan:>3}   {heat:>3}    {view.pstate:<4}"
    return [
        f"|{first:<{a}}|{view.bus_id:>{b - 5}} Off |{ecc:>{c - 1}} |",
        f"|{heats}{usage:>{a - len(heats) - 1}} |{memory:>{b - 1}} |{load:>{c - 14}} {compute:>12} |",
        f"|{' ' * a}|{' ' * b}|{mig_texts(view)[0]:>{c - 1}} |",
    ]
