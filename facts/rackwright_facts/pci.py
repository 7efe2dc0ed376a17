"""NVIDIA's devices on the PCI bus of a node."""

from __future__ import annotations

from rackwright_facts._parse.pci import PciDevice, parse
from rackwright_facts.look import Section, SectionFact

# Absent where the kernel has no PCI bus at all.
PCI: Section[tuple[PciDevice, ...]] = Section(
    key="pci.nvidia",
    command=r"""[ -d /sys/bus/pci/devices ] || exit 0
for d in /sys/bus/pci/devices/*; do
  management=0
  case "$(cat "$d/vendor" 2>/dev/null)" in
  0x10de) ;;
  0x15b3) grep -qs SW_MNG "$d/vpd" || continue; management=1 ;;
  *) continue ;;
  esac
  driver=; [ -L "$d/driver" ] && driver=$(basename "$(readlink "$d/driver")")
  printf '%s\t%s\t%s\t%s\t%s\n' "${d##*/}" "$(cat "$d/device")" "$(cat "$d/class")" "$driver" $management
done; true""",
    parse=lambda data: parse(data.decode(errors="replace")),
)


class PciDevices(SectionFact):
    """Reading of NVIDIA's `PciDevice`s."""

    def command(self) -> str:
        """One section, no arguments."""
        return self.ask(PCI)
