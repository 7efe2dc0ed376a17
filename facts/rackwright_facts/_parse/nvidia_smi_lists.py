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
    Process,
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
_RULE = re.compile(r"[+|][-=+|]+[+|]")
_FIRST = re.compile(r"\s*(\d+)\s+(\S.*?)\s+(\S+)\s*", re.ASCII)
_SECOND = re.compile(r"\s*(\S+)\s+(\S+)\s+(\S+)\s+(\S.*?)\s+/\s+(\S.*?)\s*", re.ASCII)
_MEMORY = re.compile(r"\s*(\S.*?)\s+/\s+(\S.*?)\s*", re.ASCII)
_MIG_ROW = re.compile(r"\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s*", re.ASCII)
_PROCESS = re.compile(
    r"\s*(\d+)\s+(?:(\d+|N/A)\s+(\d+|N/A)\s+)?(\d+)\s+([CGM+]+)\s+(\S.*?)\s+(\d+MiB|N/A)\s*", re.ASCII
)


def parse_table(text: str) -> SmiLog:
    """Read the plain table of `nvidia-smi`, which shortens long names; one without its end is a `ValueError`."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    at = next((number for number, line in enumerate(lines) if _HEAD.search(line)), None)
    head = _HEAD.search(lines[at]) if at is not None else None
    if at is None or head is None:
        raise ValueError("no head of nvidia-smi's table")
    notes = [line.strip() for line in lines if line.startswith("WARNING")]
    gpus: dict[int, Gpu] = {}
    block: list[list[str]] = []
    section = "head"
    for line in lines[at + 1 :]:
        cells = line.strip("|").split("|")
        if _RULE.fullmatch(line):
            section = "gpus" if section == "head" and "=" in line else section
            if block:
                gpu = _row(block)
                gpus[len(gpus) if gpu.index is None else gpu.index] = gpu
                block = []
        elif "MIG devices:" in line:
            section = "mig"
        elif "Processes:" in line:
            section = "processes"
        elif section == "gpus" and len(cells) == 3:
            block.append(cells)
        elif section == "mig" and (mig := _MIG_ROW.fullmatch(cells[0])) and int(mig[1]) in gpus:
            gpu = gpus[int(mig[1])]
            gpus[int(mig[1])] = gpu.model_copy(update={"mig_devices": (*gpu.mig_devices, _mig(mig, cells[1:]))})
        elif section == "processes" and (process := _PROCESS.fullmatch(cells[0])) and int(process[1]) in gpus:
            gpu = gpus[int(process[1])]
            before = gpu.processes if isinstance(gpu.processes, tuple) else ()
            gpus[int(process[1])] = gpu.model_copy(update={"processes": (*before, _process(process))})
    table = [line for line in lines if line not in notes]
    if block or not gpus or not _RULE.fullmatch(table[-1]):
        raise ValueError("the table does not come to its end")
    return SmiLog(
        driver_version=values.word(head.group(2)),
        cuda_version=values.word(head.group(3)),
        gpus=tuple(gpus.values()),
        notes=tuple(notes),
    )


def _row(block: list[list[str]]) -> Gpu:
    first = _FIRST.fullmatch(block[0][0])
    second = _SECOND.fullmatch(block[1][0]) if len(block) > 1 else None
    if first is None or second is None:
        raise ValueError(f"a GPU of the table cannot be read: {'|'.join(block[0]).strip()[:120]!r}")
    index, name, persistence = first.groups()
    fan, temperature, state, draw, limit = second.groups()
    memory, load = _MEMORY.fullmatch(block[1][1]), block[1][2].split(None, 1)
    errors, mig = block[0][2].strip(), block[2][2].strip() if len(block) > 2 else ""
    # "Off" stands where ECC is switched off, in place of a number.
    off = Missing(kind="not_available", text=errors) if errors == "Off" else None
    return Gpu(
        index=int(index),
        name=name,
        persistence_mode={"On": "Enabled", "Off": "Disabled"}.get(persistence) or values.word(persistence),
        bus_id=values.bus_id(block[0][1].split()[0] if block[0][1].split() else ""),
        ecc=Ecc(volatile=EccCounts(uncorrected=off or values.count(errors))),
        fan_pct=values.fan(fan),
        temperature_c=values.celsius(temperature),
        performance_state=values.word(state),
        power_draw_w=values.watts(draw),
        power_limit_w=values.watts(limit),
        memory_used_mib=values.mib(memory[1]) if memory else values.error(block[1][1]),
        memory_total_mib=values.mib(memory[2]) if memory else values.error(block[1][1]),
        utilization_gpu_pct=values.percent(load[0]) if load else None,
        compute_mode=values.word(load[1]) if len(load) > 1 else None,
        mig_mode_current=values.word(mig) if mig else None,
    )


def _mig(match: re.Match[str], cells: list[str]) -> MigDevice:
    _, instance, compute, index = (int(part) for part in match.groups())
    memory = _MEMORY.fullmatch(cells[0]) if cells else None
    return MigDevice(
        index=index,
        gpu_instance_id=instance,
        compute_instance_id=compute,
        memory_used_mib=values.mib(memory[1]) if memory else None,
        memory_total_mib=values.mib(memory[2]) if memory else None,
    )


def _process(match: re.Match[str]) -> Process:
    _, instance, compute, pid, kind, name, memory = match.groups()
    return Process(
        pid=int(pid), type=kind, name=name, used_memory_mib=values.mib(memory),
        gpu_instance_id=values.count(instance) if instance else None,
        compute_instance_id=values.count(compute) if compute else None,
    )  # fmt: skip


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


_PATH = re.compile(r"X|N/A|NV\d+|PIX|PXB|PHB|NODE|SYS|PSB|C2C", re.ASCII)
_AFFINITIES = {"CPU Affinity": "cpu_affinity", "NUMA Affinity": "numa_affinity", "GPU NUMA ID": "gpu_numa_id"}


def parse_topology(text: str) -> Topology:
    """Read `nvidia-smi topo -m`, whose header is underlined even in a pipe."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line for line in plain.splitlines() if line.strip()]
    header = [cell.strip() for cell in lines[0].split("\t")] if lines else []
    peers = [cell for cell in header[1:] if re.fullmatch(r"(GPU|NIC)\d+|mlx\S+", cell)]
    if not peers:
        raise ValueError("no header of nvidia-smi topo -m")
    more = [cell for cell in header[1:] if cell in _AFFINITIES]
    rows = []
    for line in lines[1:]:
        name, *cells = (cell.strip() for cell in line.split("\t"))
        if name not in peers:
            break
        paths = dict(zip(peers, cells, strict=False))
        if len(paths) != len(peers) or not all(map(_PATH.fullmatch, paths.values())):
            raise ValueError(f"not a row of nvidia-smi topo -m: {line[:120]!r}")
        rest = [cell for cell in cells[len(peers) :] if cell]
        told = {_AFFINITIES[one]: values.word(cell) for one, cell in zip(more, rest, strict=False)}
        if rest and len(rest) != len(more):  # some are empty, and the tabs between them do not tell which
            told = {_AFFINITIES[one]: values.error(" ".join(rest)) for one in more}
        rows.append(TopologyRow(name=name, paths=paths, **told))
    if len(rows) != len(peers) or (len(lines) == len(rows) + 1 and not text.endswith("\n")):
        raise ValueError("the matrix does not come to its end")
    nics = dict(re.findall(r"^\s*(NIC\d+): (\S+)[^\S\n]*\n", plain, re.MULTILINE))
    return Topology(rows=tuple(rows), nics=nics)


def parse_version(text: str) -> SmiVersion:
    """Read `nvidia-smi --version`; from 610 on the driver's version stands at "KMD version"."""
    whole = text if text.endswith("\n") else text[: text.rfind("\n") + 1]  # a last line without an end is cut off
    lines = (line.partition(":") for line in whole.splitlines())
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
    (r"GPU is lost|Unable to determine the device handle", "gpu_lost"),
    (r"couldn't find libnvidia-ml|NVML Shared Library Not Found|libnvidia-ml\.so", "library_missing"),
    (r"Insufficient [Pp]ermissions|[Pp]ermission denied|\b[Rr]oot\b|privileges", "not_root"),
    (r"Failed to initialize NVML|NVIDIA-SMI has failed", "other"),
)
# Where the text tells nothing: the exit status (`man nvidia-smi`, RETURN VALUE).
_BY_STATUS = {4: "not_root", 6: "no_devices", 9: "driver_not_loaded", 12: "library_missing", 15: "gpu_lost"}


def failure(text: str, exit_status: int | None = None) -> SmiFailure:
    """Return why nvidia-smi gave no answer; text that tells no failure is a `ValueError`."""
    kind = next((kind for pattern, kind in _FAILURES if re.search(pattern, text)), None)
    if kind is None and not exit_status:
        raise ValueError("no failure of nvidia-smi in the text")
    library = re.search(r"NVML library version: (\S+)", text)
    lost = re.search(r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])", text)
    address = values.bus_id(lost.group(1)) if lost else None
    return SmiFailure(
        kind=kind or _BY_STATUS.get(exit_status or 0, "other"),  # type: ignore[arg-type]
        text=text.strip(),
        exit_status=exit_status,
        library_version=library.group(1) if library else None,
        bus_id=address if isinstance(address, str) else None,
    )
