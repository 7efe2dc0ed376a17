"""What the hosts are now: the plan's decisions counted as checks, and the proof of each toolkit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rackwright.plan import HostPlan
from rackwright_facts._parse.cuda import Proof
from rackwright_facts.system import OS_RELEASE

Outcome = Literal["ok", "warn", "fail", "unknown", "skipped"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, and what came of it."""

    id: str
    status: Outcome
    detail: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the check in the schema 1 of `verify`."""
        return {"id": self.id, "status": self.status, "detail": self.detail, "fix": self.fix}


def checks(one: HostPlan) -> list[Check]:
    """Return the checks of one host; an unreachable one has none."""
    found = [Check("accepted", "fail", f"{r.what} ({r.where})", r.fix) for r in one.refusals]
    if one.changes:
        some = ", ".join(change.what for _, change in one.changes[:3])
        detail = f"{len(one.changes)} changes pending: {some}{' ...' if len(one.changes) > 3 else ''}"
        found.append(Check("as-declared", "fail", detail, "run the deploy again; `rackwright plan` shows each change"))
    elif not one.refusals and not one.waiting:
        found.append(Check("as-declared", "ok", "nothing to change"))
    found += [Check("rebooted", "fail", what, "allow it (rollout.allow_reboot), or reboot it") for what in one.waiting]
    found += [Check("driver", "ok", note) for note in one.notes if note.startswith("NVIDIA driver")]
    for key, reading in one.look.readings.items():
        if not key.startswith("cuda.proof:"):
            continue
        release = key.partition(":")[2]
        proof = reading.value
        if isinstance(proof, Proof):
            works = proof.mode != "failed"
            found.append(Check(f"cuda-{release}", "ok" if works else "fail", f"nvcc {proof.build}, {proof}"))
        else:
            status: Outcome = "fail" if reading.is_absent else "unknown"
            found.append(Check(f"cuda-{release}", status, reading.reason or reading.status, "run the deploy"))
    return found


def to_json(plans: list[HostPlan]) -> dict[str, Any]:
    """Return the result of `verify`, schema 1."""
    return {
        "schema": 1,
        "hosts": {one.name: {"checks": [check.to_json() for check in checks(one)]} for one in plans},
    }


def system(one: HostPlan) -> str:
    """Return the name of the system that a host runs, or "-"."""
    fields = one.look.readings.get(OS_RELEASE.key)
    return str(fields.value.get("PRETTY_NAME", "-")) if fields is not None and fields.value else "-"


def exit_code(plans: list[HostPlan]) -> int:
    """Return 1 when a host gave no answer, 4 when a check failed or is unknown, else 0."""
    if any(one.status == "unreachable" for one in plans):
        return 1
    return 4 if any(check.status in ("fail", "unknown") for one in plans for check in checks(one)) else 0
