"""Any saved output of nvidia-smi: which of its formats a text is, by its own marks."""

from __future__ import annotations

import re
from collections.abc import Callable

from rackwright_facts._parse import nvidia_smi_csv, nvidia_smi_lists, nvidia_smi_text, nvidia_smi_xml
from rackwright_facts._parse.model import Model

# What a format is told by -> its parser; the first that fits.
_FORMATS: tuple[tuple[str, Callable[[str], Model]], ...] = (
    (r"\A\s*<\?xml|<nvidia_smi_log", nvidia_smi_xml.parse),
    (r"^=+NVSMI LOG=+\s*$", nvidia_smi_text.parse),
    (r"^\| NVIDIA-SMI \S+ +(Driver|KMD) Version:", nvidia_smi_lists.parse_table),
    (r"^NVIDIA-SMI version", nvidia_smi_lists.parse_version),
    (r"^\s+Link \d+: |all links are inactive", nvidia_smi_lists.parse_nvlink),
    (r"^GPU \d+: .*\(UUID: ", nvidia_smi_lists.parse_list),
    (r"^(\x1b\[[0-9;]*m)?\t(\x1b\[[0-9;]*m)?(GPU|NIC)\d+\t", nvidia_smi_lists.parse_topology),
    (r"^[a-z_]+[a-z_.]*( \[\S+\])?, ", nvidia_smi_csv.parse),
    (r"\A(name|index|uuid|serial|count|pstate|driver_version|vbios_version|[a-z_]+\.[A-Za-z_.]+)( \[\S+\])?$",
     nvidia_smi_csv.parse),  # one column
)  # fmt: skip


def parse(text: str) -> Model:
    """Return the model of a saved output, a failure among them; what is none of them is a `ValueError`."""
    for mark, parser in _FORMATS:
        if re.search(mark, text, re.MULTILINE):
            return parser(text)
    return nvidia_smi_lists.failure(text)
