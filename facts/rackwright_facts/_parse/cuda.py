"""What nvcc says of itself, and what the proof of a toolkit printed."""

from __future__ import annotations

import re
from typing import Literal

from rackwright_facts._parse.model import Model


class Proof(Model):
    """How far one CUDA toolkit was shown to work on a node."""

    release: str
    """`12.2`, as nvcc names itself."""
    build: str
    """`12.2.140`, the full version of nvcc."""
    mode: Literal["ran", "assembled", "failed"]
    """`ran`: a kernel was compiled and gave the right result on each GPU; `assembled`: there is no
    GPU, or only a lab's stand-in for one."""
    passed: int = 0
    """GPUs on which the kernel gave the right result."""
    gpus: int = 0
    detail: str = ""
    """What the failing tool said."""

    def __str__(self) -> str:
        if self.mode == "ran":
            return f"ran {self.passed}/{self.gpus}"
        if self.mode == "assembled":
            return f"assembled only ({self.detail})" if self.detail else "assembled only"
        return f"failed: {self.detail}"


def nvcc_version(text: str) -> tuple[str, str]:
    """Return (release, build) out of `nvcc --version`, e.g. ("12.2", "12.2.140")."""
    match = re.search(r"\brelease (\d+\.\d+), V(\d+(?:\.\d+)+)", text)
    if match is None:
        raise ValueError(f"no release in what nvcc --version printed: {text.strip()[:200]!r}")
    return match.group(1), match.group(2)


def parse_proof(text: str) -> Proof:
    """Read the lines of the proof: what `nvcc --version` printed, then `@ MODE PASSED GPUS DETAIL`."""
    said, separator, verdict = text.partition("\n@ ")
    if not separator:
        raise ValueError("the proof did not come to its end")
    release, build = nvcc_version(said)
    mode, passed, gpus, *detail = verdict.strip().split(" ", 3)
    if mode not in ("ran", "assembled", "failed"):
        raise ValueError(f"unknown verdict {mode!r}")
    return Proof(
        release=release, build=build, mode=mode,  # type: ignore[arg-type]
        passed=int(passed), gpus=int(gpus), detail=" ".join(detail),
    )  # fmt: skip
