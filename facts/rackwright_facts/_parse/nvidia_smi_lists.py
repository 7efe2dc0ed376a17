"""What else nvidia-smi prints: `-L`, its plain table, `nvlink -s`, `topo -m`, `--version`, and why it failed."""

from __future__ import annotations

import re

from rackwright_facts._parse import nvidia_smi_values as values
from rackwright_facts._parse.gpu import (
    Ecc,
    EccCounts,
    Gpu,
    MigDevice,
    NvLink,
    NvLinks,
    NvLinkStatus,
    SmiFailure,
    SmiLog,
    SmiVersion,
    Topology,
    TopologyRow,
)
from rackwright_facts._parse.nvidia_smi_values import Missing

_GPU = re.compile(r"^GPU (\d+): (.+?) \(UUID: (GPU-[0-9a-f-]{36})\)$")
_MIG = re.compile(r"^  MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-\S+)\)$")
_LINK = re.compile(r"^\s+Link (\d+): (.+)$")


def parse_list(text: str) -> SmiLog:
    """Read `nvidia-smi -L`, MIG devices below their GPU; other lines are notes, and no GPU is a `ValueError`."""
    gpus: list[Gpu] = []
    notes = []
    for line in text.splitlines():
        gpu, mig = _GPU.match(line.rstrip()), _MIG.match(line.rstrip())
        if gpu:
            gpus.append(Gpu(index=int(gpu.group(1)), name=gpu.group(2), uuid=gpu.group(3)))
        elif mig and gpus:
            device = MigDevice(profile=mig.group(1), index=int(mig.group(2)), uuid=mig.group(3))
            gpus[-1] = gpus[-1].model_copy(update={"mig_devices": (*gpus[-1].mig_devices, device)})
        elif line.strip():
            notes.append(line.strip())
    if not gpus:
        raise ValueError("no GPU is listed")
    return SmiLog(gpus=tuple(gpus), notes=tuple(notes))


_HEAD = re.compile(r"NVIDIA-SMI (\S+)\s+(?:Driver|KMD) Version: (\S+)\s+CUDA (?:UMD )?Version: (\S+)")
_FIRST = re.compile(r"^\|\s+(\d+)\s+(\S.*?)\s+(On|Off|N/A|ERR!)\s+\|\s+([0-9A-Fa-f:.]+)\s+(\S+)\s+\|\s+(\S.*?)\s+\|$")
_SECOND = re.compile(
    r"^\|\s*(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s*/\s*(\S+)\s+\|\s+(\S+)\s*/\s*(\S+)\s+\|\s+(\S+)\s+(\S.*?)\s+\|$"
)


def parse_table(text: str) -> SmiLog:
    """Read the plain table of `nvidia-smi`; a GPU of which the second line is not there does not count."""
    head = _HEAD.search(text)
    if head is None:
        raise ValueError("no head of nvidia-smi's table")
    gpus: list[Gpu] = []
    first: re.Match[str] | None = None
    for line in text.splitlines():
        found = _FIRST.match(line.rstrip())
        if found:
            first = found
            continue
        second = _SECOND.match(line.rstrip()) if first else None
        if first and second:
            gpus.append(_row(first, second))
            first = None
    return SmiLog(
        driver_version=values.word(head.group(2)), cuda_version=values.word(head.group(3)), gpus=tuple(gpus)
    )  # fmt: skip


def _row(first: re.Match[str], second: re.Match[str]) -> Gpu:
    index, name, persistence, bus_id, _, errors = first.groups()
    fan, temperature, state, draw, limit, used, total, load, mode = second.groups()
    return Gpu(
        index=int(index),
        name=name,  # cut off by the table where it is long
        persistence_mode={"On": "Enabled", "Off": "Disabled"}.get(persistence) or values.word(persistence),
        bus_id=values.bus_id(bus_id),
        ecc=Ecc(volatile=EccCounts(uncorrected=None if errors == "Off" else values.count(errors))),
        fan_pct=values.percent(fan.replace("%", " %")),
        temperature_c=values.celsius(temperature.replace("C", " C")),
        performance_state=values.word(state),
        power_draw_w=values.watts(draw.replace("W", " W")),
        power_limit_w=values.watts(limit.replace("W", " W")),
        memory_used_mib=values.mib(used.replace("MiB", " MiB")),
        memory_total_mib=values.mib(total.replace("MiB", " MiB")),
        utilization_gpu_pct=values.percent(load.replace("%", " %")),
        compute_mode=values.word(mode),
    )


def parse_nvlink(text: str) -> NvLinkStatus:
    """Read `nvidia-smi nvlink -s`; links that are down are `Missing`."""
    gpus: list[NvLinks] = []
    for line in text.splitlines():
        gpu, link = _GPU.match(line.rstrip()), _LINK.match(line)
        if gpu:
            gpus.append(NvLinks(index=int(gpu.group(1)), name=gpu.group(2), uuid=gpu.group(3)))
        elif gpus and link:
            said = link.group(2).strip()
            speed = Missing(kind="not_available", text=said) if "inactive" in said else values.real(said, "GB/s")
            links = (*gpus[-1].links, NvLink(link=int(link.group(1)), speed_gb_s=speed))
            gpus[-1] = gpus[-1].model_copy(update={"links": links})
        elif gpus and "all links are inactive" in line:
            gpus[-1] = gpus[-1].model_copy(update={"all_inactive": True})
        elif line.strip():
            raise ValueError(f"not a line of nvidia-smi nvlink -s: {line[:120]!r}")
    if not gpus:
        raise ValueError("no GPU in the links")
    return NvLinkStatus(gpus=tuple(gpus))


_PATH = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS")


def parse_topology(text: str) -> Topology:
    """Read `nvidia-smi topo -m`, whose header is underlined even in a pipe."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line for line in plain.splitlines() if line.strip()]
    header = [cell.strip() for cell in lines[0].split("\t")] if lines else []
    peers = [cell for cell in header[1:] if re.fullmatch(r"(GPU|NIC)\d+|mlx\S+", cell)]
    if not peers:
        raise ValueError("no header of nvidia-smi topo -m")
    more = [cell for cell in header[1:] if cell and cell not in peers]
    rows = []
    for line in lines[1:]:
        name, *cells = (cell.strip() for cell in line.split("\t"))
        if name not in peers:
            break
        paths = dict(zip(peers, cells, strict=False))
        if len(paths) != len(peers) or not all(map(_PATH.fullmatch, paths.values())):
            raise ValueError(f"not a row of nvidia-smi topo -m: {line[:120]!r}")
        rest = dict(zip(more, [cell for cell in cells[len(peers) :] if cell], strict=False))
        rows.append(
            TopologyRow(
                name=name, paths=paths, cpu_affinity=_word(rest, "CPU Affinity"),
                numa_affinity=_word(rest, "NUMA Affinity"), gpu_numa_id=_word(rest, "GPU NUMA ID"),
            )
        )  # fmt: skip
    nics = dict(re.findall(r"^\s*(NIC\d+): (\S+)\s*$", plain, re.MULTILINE))
    return Topology(rows=tuple(rows), nics=nics)


def _word(cells: dict[str, str], name: str) -> str | Missing | None:
    return values.word(cells[name]) if name in cells else None


def parse_version(text: str) -> SmiVersion:
    """Read `nvidia-smi --version`; from 610 on the driver's version stands at "KMD version"."""
    lines = (line.partition(":") for line in text.splitlines())
    said = {name.strip().lower(): values.word(value) for name, colon, value in lines if colon}
    if "nvidia-smi version" not in said:
        raise ValueError("no NVIDIA-SMI version in the text")
    return SmiVersion(
        nvidia_smi_version=said["nvidia-smi version"],
        nvml_version=said.get("nvml version"),
        driver_version=values.first((said.get("driver version"), said.get("kmd version"))),
        cuda_version=values.first((said.get("cuda version"), said.get("cuda umd version"))),
    )


# The tool's words -> what they mean; the first that fits (nvidia-smi's own strings; nvml.h, nvmlErrorString).
_FAILURES: tuple[tuple[str, str], ...] = (
    (r"version mismatch", "version_mismatch"),
    (r"couldn't communicate with the NVIDIA driver|Driver Not Loaded", "driver_not_loaded"),
    (r"No devices were found", "no_devices"),
    (r"GPU is lost", "gpu_lost"),
    (r"couldn't find libnvidia-ml|NVML Shared Library Not Found|libnvidia-ml\.so", "library_missing"),
    (r"Insufficient Permissions|[Rr]oot|privileges", "not_root"),
    (r"Failed to initialize NVML|NVIDIA-SMI has failed|Unable to determine the device handle", "other"),
)


def failure(text: str, exit_status: int | None = None) -> SmiFailure:
    """Return why nvidia-smi gave no answer; text that tells no failure is a `ValueError`."""
    kind = next((kind for pattern, kind in _FAILURES if re.search(pattern, text)), None)
    if kind is None and not exit_status:
        raise ValueError("no failure of nvidia-smi in the text")
    library = re.search(r"NVML library version: (\S+)", text)
    lost = re.search(r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])", text)
    address = values.bus_id(lost.group(1)) if lost else None
    return SmiFailure(
        kind=kind or "other",  # type: ignore[arg-type]
        text=text.strip(),
        exit_status=exit_status,
        library_version=library.group(1) if library else None,
        bus_id=address if isinstance(address, str) else None,
    )
