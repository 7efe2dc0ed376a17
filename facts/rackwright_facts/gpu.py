"""The GPUs of a node as their driver sees them."""

from __future__ import annotations

from rackwright_facts._parse import nvidia_smi_lists, nvidia_smi_xml
from rackwright_facts._parse.gpu import NvLinkStatus, SmiLog
from rackwright_facts.look import Section, SectionFact

# A call that hangs in the driver cannot be killed, and each further one would hang beside it: so none is begun while
# one stands in uninterruptible sleep, or has run for a minute (leptonai/gpud#117); and none is waited for in a pipe.
# The tool tells its failures on stdout; with a lost GPU it fails, and from 550 on prints the others all the same.
_ASK = r"""command -v nvidia-smi >/dev/null || exit 127
stuck=$(ps -eo pid=,stat=,etimes=,comm=,args= | awk '$4 == "nvidia-smi" && $2 !~ /^Z/ &&
  ($2 ~ /^D/ || ($3 > 60 && !/ (dmon|pmon|daemon|-l|-lms|--loop)/)) { printf "%s ", $1 }')
[ -z "$stuck" ] || { echo "the driver does not answer: nvidia-smi hangs as process $stuck" >&2; exit 1; }
f=$(mktemp) || exit 97; trap 'rm -f "$f"' EXIT
ask() {
  nvidia-smi -q -x >"$f" 2>&1 & pid=$!
  for _ in $(seq 300); do kill -0 $pid 2>/dev/null || break; sleep 0.1; done
  if kill -0 $pid 2>/dev/null; then
    echo "the driver does not answer: nvidia-smi said nothing for 30 s" >&2
    exec 2>/dev/null  # bash would have the last word: that it was killed
    kill -9 $pid; exit 1
  fi
  wait $pid; rc=$?
}
ask
end=$((SECONDS + {fabric_wait_s}))
while [ $SECONDS -lt $end ] && grep -q '<state>In Progress</state>' "$f" &&
  systemctl is-active -q nvidia-fabricmanager; do sleep 1; ask; done
# "No devices were found" comes with 0 from some drivers.
grep -q '</nvidia_smi_log>' "$f" || { tr '\n' ' ' <"$f" >&2; [ $rc -ne 0 ] || rc=1; exit $rc; }
cat "$f"
"""
_FABRIC_WAIT_S = 120


def _gpus(key: str, fabric_wait_s: int) -> Section[SmiLog]:
    return Section(
        key=key,
        command=_ASK.replace("{fabric_wait_s}", str(fabric_wait_s)),
        parse=lambda data: nvidia_smi_xml.parse(data.decode(errors="replace")),
        timeout_s=fabric_wait_s + 40,
    )


GPUS = _gpus("gpu.gpus", 0)

GPUS_AND_FABRIC = _gpus("gpu.gpus_and_fabric", _FABRIC_WAIT_S)
"""The same, and while a fabric manager that runs still trains the NVLink fabric it is waited for, at most 120 s."""

NVLINKS: Section[NvLinkStatus] = Section(
    key="gpu.nvlinks",
    command="command -v nvidia-smi >/dev/null || exit 127; timeout -k 2 20 nvidia-smi nvlink -s",
    parse=lambda data: nvidia_smi_lists.parse_nvlink(data.decode(errors="replace")),
    timeout_s=30,
)


class NvLinks(SectionFact):
    """Reading of the `NvLinkStatus`."""

    def command(self) -> str:
        """One section, no arguments."""
        return self.ask(NVLINKS)


class Gpus(SectionFact):
    """Reading of the `SmiLog`; absent where nvidia-smi is not installed."""

    def command(self) -> str:
        """One section, no arguments."""
        return self.ask(GPUS)
