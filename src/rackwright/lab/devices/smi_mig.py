"""`nvidia-smi mig`: profiles, instances and their creation; an instance takes some of the seven slices of a board."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from .smi_device import View
from .smi_set import keep
from .state import Answer, Machine

_SLICES = 7


class Profile(NamedTuple):
    """A size of GPU instance: memory in MiB, `most` how many fit a board."""

    number: int
    name: str
    slices: int
    memory_mib: int
    processors: int
    most: int


def _profiles(*rows: tuple[str, int, int]) -> tuple[Profile, ...]:
    numbers, slices, most = (19, 14, 9, 5, 0), (1, 2, 3, 4, 7), (7, 3, 2, 1, 1)
    return tuple(
        Profile(numbers[at], name, slices[at], memory, processors, most[at])
        for at, (name, memory, processors) in enumerate(rows)
    )


# NVIDIA Multi-Instance GPU User Guide, "Supported MIG Profiles".
PROFILES = {
    "NVIDIA A100-SXM4-40GB": _profiles(
        ("1g.5gb", 4864, 14), ("2g.10gb", 9856, 28), ("3g.20gb", 19968, 42), ("4g.20gb", 19968, 56),
        ("7g.40gb", 40192, 98),
    ),
    "NVIDIA H100 80GB HBM3": _profiles(
        ("1g.10gb", 9984, 16), ("2g.20gb", 20096, 32), ("3g.40gb", 40448, 60), ("4g.40gb", 40448, 64),
        ("7g.80gb", 81152, 132),
    ),
    "NVIDIA B200": _profiles(
        ("1g.23gb", 22784, 18), ("2g.45gb", 45696, 36), ("3g.90gb", 91136, 70), ("4g.90gb", 91136, 74),
        ("7g.180gb", 182528, 148),
    ),
}  # fmt: skip


def mig(machine: Machine, chosen: list[View], words: list[str]) -> Answer:
    """Answer `mig -lgip | -lgi | -cgi PROFILES [-C] | -cci | -dci | -dgi`, on the GPUs whose MIG mode is on."""
    on = [view for view in chosen if view.mig is not None and view.mig[0]]
    if not on:
        return Answer("No MIG-enabled devices found.\n", code=6)
    if "-lgip" in words:
        return Answer(_profile_table(on))
    if "-lgi" in words:
        return Answer(_instance_table(on))
    with machine.changing():
        if "-cgi" in words:
            wanted = words[words.index("-cgi") + 1 :][:1]
            return _create(machine, on, wanted[0].split(",") if wanted else [], has_compute="-C" in words)
        if "-cci" in words:
            return _compute(machine, on, create=True)
        if "-dci" in words:
            return _compute(machine, on, create=False)
        if "-dgi" in words:
            return _destroy(machine, on)
    return Answer(f"Option {' '.join(words)} is not recognized. Please run 'nvidia-smi mig -h'.\n", code=2)


def _create(machine: Machine, found: list[View], names: list[str], *, has_compute: bool) -> Answer:
    out = ""
    for view in found:
        for name in names:
            profile = next((one for one in PROFILES[view.board.name] if name in (str(one.number), one.name)), None)
            if profile is None:
                return Answer(f"{out}Failed to parse input argument: {name}\n", code=2)
            instances = view.mig_instances
            used = sum(one["slices"] for one in instances)
            if (
                used + profile.slices > _SLICES
                or sum(one["profile"] == profile.name for one in instances) >= profile.most
            ):
                text = (
                    f"Unable to create a GPU instance on GPU {view.gpu['index']:2d} using profile {profile.number}: "
                    "Insufficient Resources\nFailed to create GPU instances: Insufficient Resources\n"
                )
                return Answer(out + text, code=19)
            number = next(at for at in range(1, 15) if at not in [one["id"] for one in instances])
            digest = hashlib.sha256(f"{view.gpu['uuid']}/{number}".encode()).hexdigest()
            instance = {
                "id": number, "profile": profile.name, "number": profile.number, "slices": profile.slices,
                "memory_mib": profile.memory_mib, "processors": profile.processors, "has_compute": has_compute,
                "uuid": f"MIG-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}",
            }  # fmt: skip
            keep(machine, view, mig_instances=[*instances, instance])
            out += (
                f"Successfully created GPU instance ID {number:2d} on GPU {view.gpu['index']:2d} using profile "
                f"MIG {profile.name} (ID {profile.number:2d})\n"
            )
            if has_compute:
                out += _created(view, instance["id"], profile.name)
    return Answer(out)


def _created(view: View, number: object, name: str) -> str:
    return (
        f"Successfully created compute instance ID  0 on GPU {view.gpu['index']:2d} GPU instance ID {number!s:>2} "
        f"using profile MIG {name} (ID  0)\n"
    )


def _compute(machine: Machine, found: list[View], *, create: bool) -> Answer:
    out = ""
    for view in found:
        changed = [one for one in view.mig_instances if one["has_compute"] != create]
        keep(machine, view, mig_instances=[{**one, "has_compute": create} for one in view.mig_instances])
        for one in changed:
            if create:
                out += _created(view, one["id"], one["profile"])
            else:
                out += (
                    f"Successfully destroyed compute instance ID  0 from GPU {view.gpu['index']:2d} GPU instance ID "
                    f"{one['id']:2d}\n"
                )
    return Answer(out) if out else Answer("No GPU instances found: Not Found\n", code=6)


def _destroy(machine: Machine, found: list[View]) -> Answer:
    out = ""
    for view in found:
        for one in view.mig_instances:
            where = f"GPU instance ID {one['id']:2d} from GPU {view.gpu['index']:2d}"
            if one["has_compute"]:
                return Answer(f"{out}Unable to destroy {where}: In use by another client\n", code=19)
            out += f"Successfully destroyed {where}\n"
        keep(machine, view, mig_instances=None)
    return Answer(out) if out else Answer("No GPU instances found: Not Found\n", code=6)


def _profile_table(found: list[View]) -> str:
    rule = "+" + "-" * 77 + "+"
    lines = [
        rule,
        f"| {'GPU instance profiles:':<75} |",
        f"| {'GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC':<75} |",
        f"| {'                             Free/Total   GiB              CE    JPEG  OFA':<75} |",
        "|" + "=" * 77 + "|",
    ]
    for view in found:
        free = _SLICES - sum(one["slices"] for one in view.mig_instances)
        for one in PROFILES[view.board.name]:
            count = min(one.most, free // one.slices)
            text = (
                f"{view.gpu['index']:3d}  MIG {one.name:<12} {one.number:2d}     {count}/{one.most}        "
                f"{one.memory_mib / 1024:<9.2f}  No    {one.processors:3d}     {one.slices // 2}     0"
            )
            lines += [f"| {text:<75} |", rule]
    return "\n".join(lines) + "\n"


def _instance_table(found: list[View]) -> str:
    if not any(view.mig_instances for view in found):
        return "No GPU instances found: Not Found\n"
    rule = "+" + "-" * 55 + "+"
    lines = [
        rule,
        f"| {'GPU instances:':<53} |",
        f"| {'GPU   Name             Profile  Instance   Placement':<53} |",
        f"| {'                         ID       ID       Start:Size':<53} |",
        "|" + "=" * 55 + "|",
    ]
    for view in found:
        start = 0
        for one in view.mig_instances:
            where = f"{start}:{one['slices']}"
            text = f"{view.gpu['index']:3d}  MIG {one['profile']:<14} {one['number']:2d}{one['id']:9d}          {where}"
            lines += [f"| {text:<53} |", rule]
            start += one["slices"]
    return "\n".join(lines) + "\n"
