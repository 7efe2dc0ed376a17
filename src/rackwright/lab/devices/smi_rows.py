"""The rows that `nvidia-smi -q` is made of, and the words in them."""

from __future__ import annotations

from typing import Union

from .smi_device import NA, View

DEPRECATED = "Requested functionality has been deprecated"
# (element, label of the text, content); an empty element is in the text alone, an empty label in the XML alone.
Node = tuple[str, str, Union[str, "list[Node]"]]
Rows = list[Node]


def pair(tag: str, label: str, stem: str, current: str, pending: str) -> Node:
    """Return a mode with what it is and what it will be."""
    return (tag, label, [(f"current_{stem}", "Current", current), (f"pending_{stem}", "Pending", pending)])


def on_off(value: bool) -> str:
    """Return Enabled or Disabled."""
    return "Enabled" if value else "Disabled"


def yes_no(value: bool) -> str:
    """Return Yes or No."""
    return "Yes" if value else "No"


def mig_texts(view: View) -> tuple[str, str]:
    """Return MIG mode now and as asked for, as printed."""
    return (NA, NA) if view.mig is None else (on_off(view.mig[0]), on_off(view.mig[1]))


def ecc_modes(view: View) -> tuple[str, str]:
    """Return the ECC mode now and after the next boot, as printed."""
    settings = view.gpu["settings"]
    return on_off(settings["ecc"]), on_off(settings["ecc_pending"])
