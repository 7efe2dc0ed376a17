"""The NVIDIA driver on a node: what runs, what lies on disk for each kernel, who uses the GPUs."""

from __future__ import annotations

from rackwright_facts._parse.nvidia_driver import (
    DriverState,
    GpuProcess,
    Initramfs,
    parse,
    parse_initramfs,
    parse_processes,
)
from rackwright_facts.look import Section, SectionFact

BLACKLIST = "/etc/modprobe.d/rackwright-nvidia.conf"
"""Our file that keeps nouveau and nova away from the GPUs; an initramfs is searched for its name."""
RIVALS = ("nouveau", "nova", "nova_core", "nova_drm")
"""Modules that take NVIDIA's GPUs: the old driver and the one in Rust (LP#2150845)."""

# The variable is read as efivarfs gives it: four bytes of attributes, then the value (UEFI specification, 8.2).
# modinfo reads the module that modprobe would load for a kernel, wherever it lies.
DRIVER: Section[DriverState] = Section(
    key="nvidia.driver",
    command=rf"""say() {{ (IFS='	'; printf '%s\n' "$*"); }}
say running "$(uname -r)"
say boot_id "$(cat /proc/sys/kernel/random/boot_id)"
[ -r /proc/driver/nvidia/version ] && sed 's/^/nvrm	/' /proc/driver/nvidia/version
for m in {" ".join(RIVALS)}; do
  [ -d /sys/module/$m ] && say rival $m "$(cat /sys/module/$m/refcnt 2>/dev/null || echo 1)"
done
for v in /boot/vmlinuz-*; do
  [ -e "$v" ] || continue
  k=${{v#/boot/vmlinuz-}}; headers=0 config= installed=0
  if [ -e "/lib/modules/$k/build/.config" ]; then headers=1; c=/lib/modules/$k/build/.config; else c=/boot/config-$k; fi
  [ -r "$c" ] && config=$(sed -n 's/^CONFIG_CC_VERSION_TEXT=//p' "$c")
  major=$(printf %s "$config" | sed -n 's/.* \([0-9]*\)\.[0-9.]*"*$/\1/p')
  [ -n "$major" ] && [ -x "/usr/bin/gcc-$major" ] && installed=1
  version= license= signer=
  if info=$(modinfo -k "$k" nvidia 2>/dev/null); then
    version=$(printf '%s\n' "$info" | sed -n 's/^version: *//p')
    license=$(printf '%s\n' "$info" | sed -n 's/^license: *//p' | head -n 1)
    signer=$(printf '%s\n' "$info" | sed -n 's/^signer: *//p')
  fi
  say kernel "$k" $headers "$config" $installed "$version" "$license" "$signer"
done
for l in libcuda.so.1 libnvidia-ml.so.1 libnvidia-nscq.so.2; do
  for d in /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/lib64 /usr/lib; do
    [ -e "$d/$l" ] || continue
    f=$(readlink -f "$d/$l"); say library "${{l%.so.*}}" "$f"
    case "$l" in libcuda*) dpkg-query -S "$f" >/dev/null 2>&1 || say runfile "$f" ;; esac
    break
  done
done
for f in /usr/bin/nvidia-uninstall /usr/bin/nvidia-installer; do [ -e "$f" ] && say runfile "$f"; done
s=/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
[ -r $s ] && say secure_boot "$(od -An -tu1 -j4 -N1 $s | tr -d ' ')"
for key in /var/lib/shim-signed/mok/MOK.der /var/lib/dkms/mok.pub; do
  [ -r $key ] && mokutil --test-key $key 2>/dev/null | grep -q 'already enrolled' && say key_enrolled 1 && break
done
true""",
    parse=lambda data: parse(data.decode(errors="replace")),
    timeout_s=60,
)

INITRAMFS: Section[tuple[Initramfs, ...]] = Section(
    key="nvidia.initramfs",
    command=rf"""command -v lsinitramfs >/dev/null || exit 127
for i in /boot/initrd.img-*; do
  [ -e "$i" ] || continue
  k=${{i#/boot/initrd.img-}}
  # One that a power failure cut off cannot be read: it is to be built anew.
  names=$(lsinitramfs "$i" 2>/dev/null) || names=broken
  printf '%s\t\n' "$k"
  printf '%s\n' "$names" | grep -E '/({"|".join(RIVALS)})\.ko(\.[a-z]+)?$|modprobe.d/rackwright-nvidia.conf$|^broken$' |
    sed "s#^#$k	#"
done; true""",
    parse=lambda data: parse_initramfs(data.decode(errors="replace")),
    timeout_s=120,
)

# What the driver lists, and whoever has a GPU's device file open; the driver's own daemons are no work of anybody.
PROCESSES: Section[tuple[GpuProcess, ...]] = Section(
    key="nvidia.processes",
    command=r"""{
  command -v nvidia-smi >/dev/null && timeout -k 1 15 nvidia-smi --query-compute-apps=pid,gpu_uuid \
    --format=csv,noheader 2>/dev/null | sed -n 's/^ *\([0-9][0-9]*\), *\([^ ]*\).*/\1 \2/p'
  find /proc/[0-9]*/fd -maxdepth 1 -lname '/dev/nvidia[0-9]*' 2>/dev/null | sed -n 's#^/proc/\([0-9]*\)/.*#\1#p'
} | sort -u | while read -r pid uuid; do
  name=$(cat "/proc/$pid/comm" 2>/dev/null) || continue
  case "$name" in nvidia-persiste*|nv-fabricmanage*|nvidia-smi|nv-hostengine|dcgm*|nvidia-imex*) continue ;; esac
  printf '%s\t%s\t%s\t%s\t%s\n' "$pid" "$(stat -c %U "/proc/$pid")" "$uuid" \
    "$(tr '\n\t' '  ' <"/proc/$pid/cgroup")" "$(tr '\0\n\t' '   ' <"/proc/$pid/cmdline")"
done; true""",
    parse=lambda data: parse_processes(data.decode(errors="replace")),
    timeout_s=30,
)


class Driver(SectionFact):
    """Reading of the node's `DriverState`."""

    def command(self) -> str:
        """One section, no arguments."""
        return self.ask(DRIVER)


class InitramfsImages(SectionFact):
    """Reading of each `Initramfs`."""

    def command(self) -> str:
        """One section, no arguments."""
        return self.ask(INITRAMFS)


class GpuProcesses(SectionFact):
    """Reading of who uses the GPUs."""

    def command(self) -> str:
        """One section, no arguments."""
        return self.ask(PROCESSES)
