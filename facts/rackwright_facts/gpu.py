"""The GPUs of a node as their driver sees them."""

from __future__ import annotations

from rackwright_facts._parse import nvidia_smi_xml
from rackwright_facts._parse.gpu import SmiLog
from rackwright_facts.look import Section, SectionFact

# A call that hangs in the driver cannot be killed, and each further one would hang beside it: so none is begun while
# one stands in uninterruptible sleep, or has run for a minute (leptonai/gpud#117). The tool tells its failures on
# stdout.
_ASK = r"""command -v nvidia-smi >/dev/null || exit 127
stuck=$(ps -eo pid=,stat=,etimes=,comm= | awk '$4 == "nvidia-smi" && ($2 ~ /^D/ || $3 > 60) { printf "%s ", $1 }')
[ -z "$stuck" ] || { echo "the driver does not answer: nvidia-smi hangs as process $stuck" >&2; exit 1; }
said=$(timeout -k 2 30 nvidia-smi -q -x 2>&1); rc=$?
case $rc in 124|137) echo "the driver does not answer: nvidia-smi said nothing for 30 s" >&2; exit 124 ;; esac
[ $rc -eq 0 ] || { printf '%s\n' "$said" >&2; exit $rc; }
printf '%s\n' "$said"
"""

GPUS: Section[SmiLog] = Section(
    key="gpu.gpus",
    command=_ASK,
    parse=lambda data: nvidia_smi_xml.parse(data.decode(errors="replace")),
    timeout_s=40,
)


class Gpus(SectionFact):
    """Reading of the `SmiLog`; absent where nvidia-smi is not installed."""

    def command(self) -> str:
        """One section, no arguments."""
        return self.ask(GPUS)
