"""CUDA toolkits on a node: the proof that one works, and what `/usr/local/cuda` points to."""

from __future__ import annotations

import shlex

from rackwright_facts._parse import alternatives
from rackwright_facts._parse.alternatives import Alternative
from rackwright_facts._parse.cuda import Proof, parse_proof
from rackwright_facts.look import Section, SectionFact

# Vector addition on every device; one line a device on failure. Exit status 0 even then: the verdict counts.
_PROGRAM = r"""
#include <cstdio>
__global__ void add(const float *a, const float *b, float *c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
int main() {
  const int n = 1 << 16;
  static float a[n], b[n], c[n];
  for (int i = 0; i < n; i++) { a[i] = i; b[i] = 2 * i; }
  int devices = 0, passed = 0;
  const char *why = "";
  cudaError_t e = cudaGetDeviceCount(&devices);
  if (e != cudaSuccess) why = cudaGetErrorString(e);
  for (int d = 0; d < devices; d++) {
    float *x = 0, *y = 0, *z = 0;
    for (int i = 0; i < n; i++) c[i] = -1;
    e = cudaSetDevice(d);
    if (e == cudaSuccess) e = cudaMalloc(&x, sizeof a);
    if (e == cudaSuccess) e = cudaMalloc(&y, sizeof b);
    if (e == cudaSuccess) e = cudaMalloc(&z, sizeof c);
    if (e == cudaSuccess) e = cudaMemcpy(x, a, sizeof a, cudaMemcpyHostToDevice);
    if (e == cudaSuccess) e = cudaMemcpy(y, b, sizeof b, cudaMemcpyHostToDevice);
    if (e == cudaSuccess) { add<<<n / 256, 256>>>(x, y, z, n); e = cudaGetLastError(); }
    if (e == cudaSuccess) e = cudaMemcpy(c, z, sizeof c, cudaMemcpyDeviceToHost);
    int right = 0;
    for (int i = 0; i < n; i++) right += c[i] == 3.0f * i;
    if (e == cudaSuccess && right == n) passed++;
    else why = e == cudaSuccess ? "wrong result" : cudaGetErrorString(e);
    cudaFree(x); cudaFree(y); cudaFree(z);
  }
  printf("@ ran %d %d %s\n", passed, devices, why);
}
"""

# The same kernel's heart in PTX 8.2, the version that CUDA 12.2 introduced: an older ptxas refuses it.
_PTX = """.version {ptx}
.target {target}
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b)
{{
  .reg .b32 %r<4>; .reg .b64 %rd<5>; .reg .f32 %f<4>;
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];
  mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd1, %rd1, %rd3; add.s64 %rd2, %rd2, %rd3;
  ld.global.f32 %f1, [%rd1]; ld.global.f32 %f2, [%rd2];
  add.f32 %f3, %f1, %f2; st.global.f32 [%rd2], %f3;
  ret;
}}
"""


_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE (cuda.h)."""


def _ptx(release: str) -> str:
    """Return the kernel for the assembler of CUDA `release`, in its newest PTX.

    CUDA 11.y has PTX 7.y, 12.y has 8.y and 13.y has 9.y; 12.6 added none, and its successors are one behind
    (PTX ISA, "Release Notes").
    """
    major, minor = map(int, release.split("."))
    ptx = minor - 1 if major == 12 and minor >= 6 else minor
    return _PTX.format(ptx=f"{major - 4}.{ptx}", target="sm_90" if (major, minor) >= (11, 8) else "sm_70")


def proof(release: str) -> Section[Proof]:
    """Whether CUDA `release` (such as "12.2") works: run on each GPU, or assembled where there is none.

    Absent when its nvcc is not there. GPUs are counted on the PCI bus (NVIDIA's vendor id 10de, display class 03),
    so that a GPU whose driver is down counts as a failure and not as "no GPU". In the rehearsal lab, whose devices
    compute nothing, it is assembled too, and says so.
    """
    prefix = shlex.quote(f"/usr/local/cuda-{release}")
    target = "sm_90" if tuple(map(int, release.split("."))) >= (11, 8) else "sm_70"
    return Section(
        key=f"cuda.proof:{release}",
        command=f"""p={prefix}
[ -x "$p/bin/nvcc" ] || exit 127
"$p/bin/nvcc" --version || exit
t=$(mktemp -d) || exit 97; trap 'rm -rf "$t"' EXIT; cd "$t" || exit 97
gpus=0
for d in /sys/bus/pci/devices/*; do
  [ "$(cat "$d/vendor" 2>/dev/null)" = 0x10de ] || continue
  case "$(cat "$d/class")" in 0x0300*|0x0302*) gpus=$((gpus + 1)) ;; esac
done
verdict() {{ printf '\\n@ %s\\n' "$*" | tr -s '\\n'; exit 0; }}
lab=
if [ $gpus -gt 0 ] && grep -qx 'VARIANT_ID=rackwright-lab' /etc/os-release; then
  # The rehearsal lab's devices compute nothing: its libcuda says so, and there alone assembling is enough.
  python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL("libcuda.so.1").cuInit(0))' 2>/dev/null
  [ $? = {_NO_DEVICE} ] && lab="lab device"
fi
if [ $gpus -gt 0 ] && [ -z "$lab" ]; then
  printf %s {shlex.quote(_PROGRAM)} >k.cu
  "$p/bin/nvcc" -o k k.cu >log 2>&1 || verdict failed 0 $gpus "$(tail -n 1 log)"
  ./k >out 2>log || verdict failed 0 $gpus "$(tail -n 1 log)"
  set -- $(sed -n 's/^@ ran //p' out)
  [ "$1" = $gpus ] && verdict ran "$1" $gpus
  passed=$1; shift 2; verdict failed "$passed" $gpus "$*"
fi
printf %s {shlex.quote(_ptx(release))} >k.ptx
"$p/bin/ptxas" -arch={target} -o k.cubin k.ptx >log 2>&1 && [ -s k.cubin ] ||
  verdict failed 0 0 "ptxas: $(head -n 1 log)"
verdict assembled 0 $gpus $lab""",
        parse=lambda data: parse_proof(data.decode(errors="replace")),
        timeout_s=120,
    )


# update-alternatives(1) exits 2 when it knows no such name.
DEFAULT: Section[Alternative] = Section(
    key="cuda.default",
    command="update-alternatives --query cuda",
    parse=lambda data: alternatives.parse_query(data.decode(errors="replace")),
    absent=(2,),
)

# ld.so.cache older than a folder of settings that was written since: ldconfig has not run.
LINKER_CACHE: Section[bool] = Section(
    key="cuda.linker_cache",
    command=(
        "for f in /etc/ld.so.conf.d/*.conf; do"
        ' [ "$f" -nt /etc/ld.so.cache ] && { echo stale; exit 0; }; done; echo fresh'
    ),
    parse=lambda data: data.strip() == b"fresh",
)


class ToolkitProof(SectionFact):
    """Reading of the `Proof` of one CUDA release."""

    def command(self, release: str | float) -> str:
        """Prove CUDA `release`, such as 12.2, which pyinfra's command line hands over as a number."""
        return self.ask(proof(str(release)))


class Default(SectionFact):
    """Reading of the `cuda` alternative: which toolkit /usr/local/cuda is."""

    def command(self) -> str:
        """One section, no arguments."""
        return self.ask(DEFAULT)
