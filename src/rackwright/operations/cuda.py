"""CUDA toolkits: the vendor's repository, one exact set of packages, its environment, and the proof.

Settings: `host.data.cuda` ({"versions": [...], "default": ...} or None for unmanaged) and `host.data.cuda_source`
({"url", "key", "fingerprint", "proxy"}).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from rackwright import sources
from rackwright.change import Change, Decision, Refusal, Run
from rackwright.config import resolve_secret
from rackwright.errors import Problem, RackwrightError
from rackwright.operations import apt, cuda_packages, exact_set
from rackwright.operations.common import MANAGED, file_change, unreadable, written
from rackwright.runtime import planned_operation
from rackwright.sources import CudaSource
from rackwright_facts._parse.model import Reading
from rackwright_facts.cuda import DEFAULT, LINKER_CACHE
from rackwright_facts.cuda import proof as proof_of
from rackwright_facts.look import Look, Section
from rackwright_facts.packages import APT, INSTALLED, LISTS
from rackwright_facts.system import ARCHITECTURE, OS_RELEASE, SPACE, FileState, files

PROFILE = "/etc/profile.d/rackwright-cuda.sh"
LINKER = "/etc/ld.so.conf.d/rackwright-cuda.conf"
_LINK = "/usr/local/cuda"
_NAME = "cuda"
"""What our files of the repository are called after."""
_ALTERNATIVE = "/etc/alternatives/cuda"
_FILES = files((PROFILE, LINKER, _LINK))


class Cuda(TypedDict):
    """Which toolkits stand on a node, and which of them is the default (None: none is)."""

    versions: Sequence[str]
    default: str | None


def _release(version: str) -> str:
    """Return "12.2" for "12.2.2"."""
    return ".".join(version.split(".")[:2])


def repository_of(look: Look, origin: CudaSource) -> apt.Repository | Refusal:
    """Return the vendor's repository as this node takes it, or why it takes none."""
    system, architecture = look[OS_RELEASE], look[ARCHITECTURE]
    for reading, what in ((system, "which system this is"), (architecture, "its architecture")):
        if not reading.is_ok:
            return unreadable(what, reading, "rackwright sets up Debian and Ubuntu nodes, and asks dpkg and os-release")
    distro = sources.vendor_distro(system.value or {}, architecture.value or "")
    if isinstance(distro, Problem):
        return Refusal(distro.what, distro.where, distro.fix)
    proxy = origin["proxy"]
    try:
        password = resolve_secret(proxy["password"]) if proxy and proxy["password"] else None
    except RackwrightError as error:
        return Refusal(error.problems[0].what, error.problems[0].where, error.problems[0].fix)
    return apt.Repository(
        name=_NAME,
        uri=sources.cuda_repository_url(distro, origin),
        fingerprint=origin["fingerprint"],
        owns=sources.is_cuda_repository(origin),
        deb822=distro.deb822,
        key_file=origin["key"],
        key_url=sources.cuda_key_url(distro, origin),
        retired=sources.CUDA_RETIRED_KEYS,
        label=sources.CUDA_LABEL,
        vendor_files=sources.cuda_vendor_files(distro),
        keyring_package=sources.CUDA_KEYRING_PACKAGE,
        proxy=sources.proxy_with_password(proxy, password),
    )


def _is_needed(cuda: Cuda | None, driver: Mapping[str, Any] | None) -> bool:
    return cuda is not None or (driver is not None and driver["source"] == "nvidia")


def _source_reads(
    *, cuda: Cuda | None, driver: Mapping[str, Any] | None, origin: CudaSource
) -> tuple[Section[Any], ...]:  # fmt: skip
    base = (OS_RELEASE, ARCHITECTURE, APT, INSTALLED, LISTS, apt.own_files(_NAME))
    return base if _is_needed(cuda, driver) else ()


@planned_operation(reads=_source_reads)
def source(
    look: Look, *, cuda: Cuda | None, driver: Mapping[str, Any] | None, origin: CudaSource
) -> Decision:  # fmt: skip
    """The vendor's repository: one key by fingerprint, one entry, nothing else that speaks for it."""
    if not _is_needed(cuda, driver):
        return Decision(look)
    repository = repository_of(look, origin)
    if isinstance(repository, Refusal):
        return Decision(look, refusals=(repository,))
    return apt.converge(look, repository)


def _toolkit_reads(*, cuda: Cuda | None, origin: CudaSource) -> tuple[Section[Any], ...]:
    if cuda is None:
        return ()
    proofs = [proof_of(_release(version)) for version in cuda["versions"]]
    return (OS_RELEASE, ARCHITECTURE, APT, INSTALLED, LISTS, SPACE, DEFAULT, cuda_packages.PINS.file, *proofs)


@planned_operation(reads=_toolkit_reads)
def toolkit(look: Look, *, cuda: Cuda | None, origin: CudaSource) -> Decision:
    """Each declared toolkit as one exact set, in one transaction, held and pinned; never `cuda` or `cuda-12-2`.

    The transaction is simulated first: the host is refused when apt would do anything else than was asked.
    """
    if cuda is None:
        return Decision(look)
    repository = repository_of(look, origin)
    if isinstance(repository, Refusal):
        return Decision(look, refusals=(repository,))
    wanted = cuda_packages.want(look, repository, cuda["versions"])
    if isinstance(wanted, Refusal):
        return Decision(look, refusals=(wanted,))
    moves = exact_set.transaction(look, repository, wanted)
    if isinstance(moves, Refusal):
        return Decision(look, refusals=(moves,))
    changes = (*moves, *wanted.pins.changes(look, repository, wanted.versions, moves))
    after = exact_set.after(look, repository, wanted, moves)
    if moves:
        for version in cuda["versions"]:
            after = after.having(proof_of(_release(version)), Reading.unknown("after cuda.toolkit"))
        if look[DEFAULT].is_absent:
            after = after.having(DEFAULT, Reading.unknown("after cuda.toolkit"))
    return Decision(after if changes else look, changes)


def profile(default: str | None) -> bytes | None:
    """Return the shell settings of login shells: PATH and CUDA_HOME of the default toolkit."""
    if default is None:
        return None
    home = f"/usr/local/cuda-{_release(default)}"
    return (
        f"{MANAGED}CUDA_HOME={home}; export CUDA_HOME\n"
        f'case ":$PATH:" in *:{home}/bin:*) ;; *) PATH={home}/bin:$PATH; export PATH ;; esac\n'
    ).encode()


def linker(default: str | None) -> bytes | None:
    """Return the dynamic linker's setting: lib64 of the default toolkit."""
    return f"{MANAGED}/usr/local/cuda-{_release(default)}/lib64\n".encode() if default else None


def _environment_reads(*, cuda: Cuda | None) -> tuple[Section[Any], ...]:
    return (_FILES, DEFAULT, LINKER_CACHE) if cuda else ()


@planned_operation(reads=_environment_reads)
def environment(look: Look, *, cuda: Cuda | None) -> Decision:
    """PATH, linker path and the `cuda` alternative point to the default toolkit; without one they are let be."""
    if cuda is None:
        return Decision(look)
    seen = look[_FILES]
    if not seen.is_ok or seen.value is None:
        return Decision(look, refusals=(unreadable("the CUDA settings", seen, "see why they cannot be read"),))
    link = seen.value.get(_LINK)
    if cuda["default"] and link is not None and link.kind != "symlink":
        refusal = Refusal(
            what=f"{_LINK} is a {link.kind}, put there by hand or by a .run file",
            where=_LINK,
            fix=f"move it away (a side-by-side name such as {_LINK}-old is fine), or declare no `cuda.default`",
        )
        return Decision(look, refusals=(refusal,))
    contents = {PROFILE: profile(cuda["default"]), LINKER: linker(cuda["default"])}
    changes = [
        change
        for path, content in contents.items()
        if (change := file_change(path, seen.value.get(path), content)) is not None
    ]
    linker_changes = any(change.what.endswith(LINKER) for change in changes)
    if linker_changes or look[LINKER_CACHE].value is False:
        changes.append(Change("linker cache", "older than its settings", "current", commands=(Run(("ldconfig",)),)))
    alternative = _alternative(look, cuda["default"], link)
    if alternative is not None:
        changes.append(alternative)
    files_after = written(seen.value, contents)
    if alternative is not None:
        files_after[_LINK] = FileState(kind="symlink", mode=0o777, owner="root:root", target=_ALTERNATIVE)
    after = look.having(_FILES, Reading.ok(files_after)).having(LINKER_CACHE, Reading.ok(True))
    if alternative is not None:
        after = after.having(DEFAULT, Reading.unknown("after cuda.environment"))
    return Decision(after, tuple(changes))


def _alternative(look: Look, default: str | None, link: FileState | None) -> Change | None:
    if default is None:
        return None
    path = f"/usr/local/cuda-{_release(default)}"
    reading = look[DEFAULT]
    alternative = reading.value
    linked = link is not None and link.target == _ALTERNATIVE
    if alternative is not None and alternative.status == "manual" and alternative.value == path and linked:
        return None
    commands = [Run(("update-alternatives", "--set", "cuda", path))]
    if alternative is None or path not in alternative.choices:
        # Harmless where the vendor's package has done it: the same name, link and path, its own priority.
        priority = _release(default).replace(".", "")
        commands.insert(0, Run(("update-alternatives", "--install", _LINK, "cuda", path, priority)))
    before = f"{alternative.status}: {alternative.value}" if alternative is not None else None
    if alternative is not None and not linked:
        before = f"a link by hand: {link.target}" if link is not None else "no link"
    return Change("alternative cuda", before, path, known=not reading.is_unknown, commands=tuple(commands))


def _proof_reads(*, cuda: Cuda | None) -> tuple[Section[Any], ...]:
    return tuple(proof_of(_release(version)) for version in cuda["versions"]) if cuda else ()


@planned_operation(reads=_proof_reads)
def proof(look: Look, *, cuda: Cuda | None) -> Decision:
    """Each declared toolkit is shown to work: a kernel runs on every GPU, or is assembled where there is none."""
    refusals, notes = [], []
    for version in cuda["versions"] if cuda else ():
        release = _release(version)
        reading = look[proof_of(release)]
        if reading.is_unknown:
            continue
        if not reading.is_ok or reading.value is None:
            refusals.append(unreadable(f"whether CUDA {release} works", reading, "see what nvcc says on the host"))
        elif reading.value.release != release or reading.value.mode == "failed":
            refusals.append(
                Refusal(
                    what=f"CUDA {release} is installed and does not work: {reading.value}",
                    where=f"/usr/local/cuda-{release} (nvcc {reading.value.build})",
                    fix="the packages are whole, so look at the driver (nvidia-smi) and at the host's compiler",
                )
            )
        else:
            notes.append(f"CUDA {release}: nvcc {reading.value.build}, {reading.value}")
    return Decision(look, refusals=tuple(refusals), notes=tuple(notes))
