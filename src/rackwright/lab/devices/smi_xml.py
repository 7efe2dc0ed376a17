"""`nvidia-smi -q -x`: the tree as the XML that the driver's generation writes."""

from __future__ import annotations

from .smi_device import View, cuda_version
from .smi_rows import Rows
from .smi_tree import gpu_tree

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def xml(found: list[View], attached: int, driver: str, now: str) -> str:
    """Return the whole document; `attached` counts the GPUs of the machine, shown or not."""
    number = 13 if int(driver.split(".")[0]) >= 580 else 12
    lines = [
        '<?xml version="1.0" ?>',
        f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{number}.dtd">',
        "<nvidia_smi_log>",
        f"\t<timestamp>{now}</timestamp>",
        f"\t<driver_version>{driver}</driver_version>",
        f"\t<cuda_version>{cuda_version(driver)}</cuda_version>",
        f"\t<attached_gpus>{attached}</attached_gpus>",
    ]
    for view in found:
        lines.append(f'\t<gpu id="{view.bus_id}">')
        _write(lines, gpu_tree(view), "\t\t")
        lines += ["\t</gpu>", ""]
    return "\n".join([*lines, "</nvidia_smi_log>"]) + "\n"


def _write(lines: list[str], rows: Rows, indent: str) -> None:
    for tag, _, content in rows:
        if not tag:
            continue
        if tag == "mig_devices" and isinstance(content, str):
            # The real tool writes the word on a line of its own.
            lines += [f"{indent}<{tag}>", f"{indent}\t{content}", f"{indent}</{tag}>"]
        elif isinstance(content, str):
            lines.append(f"{indent}<{tag}>{content.translate(_ESCAPES)}</{tag}>")
        else:
            lines.append(f"{indent}<{tag}>")
            _write(lines, content, indent + "\t")
            lines.append(f"{indent}</{tag}>")
