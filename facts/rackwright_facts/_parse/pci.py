"""NVIDIA's functions on the PCI bus: what is plugged in, whatever the driver sees of it."""

from __future__ import annotations

from rackwright_facts._parse.model import Model

_DISPLAY, _3D, _BRIDGE = 0x0300, 0x0302, 0x0680


class PciDevice(Model):
    """One PCI function of NVIDIA's (vendor 10de, or 15b3 where it manages NVSwitches)."""

    address: str
    """As sysfs names it: `0000:1b:00.0`."""
    device_id: int
    pci_class: int
    """Class and subclass: 0x0302 is a 3D controller (PCI Code and ID Assignment Specification)."""
    driver: str = ""
    """The kernel driver that is bound to it."""
    manages_nvswitches: bool = False
    """Whether it is the adapter through which fifth-generation NVSwitches are managed (SW_MNG in its VPD)."""

    @property
    def is_gpu(self) -> bool:
        """Return whether this is a GPU: its audio, USB and bridge functions are none."""
        return self.pci_class in (_DISPLAY, _3D)

    @property
    def is_display(self) -> bool:
        """Return whether it is a board with a display: GeForce and workstation boards are, data-center boards not."""
        return self.pci_class == _DISPLAY

    @property
    def is_nvswitch(self) -> bool:
        """Return whether this is an NVSwitch, or what stands for some."""
        return self.pci_class == _BRIDGE or self.manages_nvswitches


def parse(text: str) -> tuple[PciDevice, ...]:
    """Read lines of address, device id and class (as sysfs has them), driver and 1 for SW_MNG, separated by tabs."""
    found = []
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) != 5:
            raise ValueError(f"not a line of the PCI bus: {line[:120]!r}")
        address, device, pci_class, driver, management = fields
        found.append(
            PciDevice(
                address=address, device_id=int(device, 16), pci_class=int(pci_class, 16) >> 8, driver=driver,
                manages_nvswitches=management == "1",
            )
        )  # fmt: skip
    return tuple(found)
