"""DKMS 3 for modules whose sources are stand-ins: the real tree, the real messages, and no compiler run.

Tree and words as dkms(8) 3.0 of Debian and Ubuntu; what a build needs of the host is checked as make would find it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from .faults import fold
from .modfile import module_file
from .state import Answer, Machine, fail, write

_ARCH = "x86_64"
_NO_HEADERS, _BAD_BUILD = 21, 10
_PARTS = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm", "nvidia-peermem")


class _Failed(Exception):
    """A step that failed; carries the answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.err)
        self.answer = answer


def dkms(machine: Machine, words: list[str]) -> Answer:
    """Answer a command line of dkms."""
    verb, options = _options(words)
    machine.dkms_tree = options.get("dkmstree", machine.dkms_tree)
    machine.dkms_sources = options.get("sourcetree", machine.dkms_sources)
    verbs = {"status": _status, "add": _add, "build": _build, "install": _install, "remove": _remove}
    if verb in ("--version", "-V"):
        return Answer("dkms-3.0.10\n")
    try:
        if verb == "autoinstall":
            return _autoinstall(machine, options)
        if verb == "uninstall":
            return _remove(machine, {**options, "keep": "build"})
        if verb not in verbs:
            return fail(f"Error! Unknown action specified: {verb or '(none)'}")
        return verbs[verb](machine, options)
    except _Failed as failure:
        return failure.answer


def _options(words: list[str]) -> tuple[str, dict[str, str]]:
    """Return the verb and the options: m, v, k, all, force; `MODULE/VERSION` stands for -m and -v."""
    found: dict[str, str] = {}
    verb, left = "", list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if name in (
            "-m",
            "-v",
            "-k",
            "-a",
            "--kernelver",
            "--arch",
            "--kernelsourcedir",
            "-j",
            "--dkmstree",
            "--sourcetree",
        ):
            value = value if equals else left.pop(0) if left else ""
            found[{"--kernelver": "k", "--arch": "a"}.get(name, name.lstrip("-"))] = value
        elif word.startswith("-") and verb:
            found[word.lstrip("-")] = "yes"
        elif not verb:
            verb = word
        else:
            found["m"], _, version = word.partition("/")
            found["v"] = version or found.get("v", "")
    if "/" in found.get("m", ""):
        found["m"], _, found["v"] = found["m"].partition("/")
    return verb, found


def _kernel(machine: Machine, options: dict[str, str]) -> str:
    return options.get("k") or str(fold(machine.hardware)["kernel"])


def _named(options: dict[str, str]) -> tuple[str, str]:
    if not options.get("m"):
        raise _Failed(fail("Error! Arguments <module> and <module-version> are not specified."))
    if not options.get("v"):
        raise _Failed(fail("Error! Arguments <module> and <module-version> are not specified."))
    return options["m"], options["v"]


def _modules(machine: Machine) -> list[tuple[str, str]]:
    tree = machine.path(machine.dkms_tree)
    return sorted((path.parent.name, path.name) for path in tree.glob("*/*") if (path / "source").is_symlink())


def _built(machine: Machine, module: str, version: str) -> list[str]:
    tree = machine.path(f"{machine.dkms_tree}/{module}/{version}")
    return sorted(path.parent.name for path in tree.glob(f"*/{_ARCH}") if path.parent.name != "build")


def _installed(machine: Machine, module: str, version: str, kernel: str) -> bool:
    return (machine.path(f"{machine.dkms_tree}/{module}") / f"kernel-{kernel}-{_ARCH}").is_symlink() and (
        machine.path(f"{machine.dkms_tree}/{module}/kernel-{kernel}-{_ARCH}").readlink()
        == Path(f"{version}/{kernel}/{_ARCH}")
    )


def _status(machine: Machine, options: dict[str, str]) -> Answer:
    lines = []
    for module, version in _modules(machine):
        if options.get("m", module) != module or (options.get("v") or version) != version:
            continue
        kernels = _built(machine, module, version)
        if not kernels and not options.get("k"):
            lines.append(f"{module}/{version}: added")
        for kernel in kernels:
            if options.get("k", kernel) == kernel:
                state = "installed" if _installed(machine, module, version, kernel) else "built"
                lines.append(f"{module}/{version}, {kernel}, {_ARCH}: {state}")
    return Answer("".join(line + "\n" for line in lines))


def _add(machine: Machine, options: dict[str, str]) -> Answer:
    module, version = _named(options)
    conf = machine.path(f"{machine.dkms_sources}/{module}-{version}/dkms.conf")
    if not conf.is_file():
        return fail(
            "Error! Could not find module source directory.\n"
            f"Directory: {machine.dkms_sources}/{module}-{version} does not exist.",
            2,
        )
    link = machine.path(f"{machine.dkms_tree}/{module}/{version}/source")
    if link.is_symlink():
        return fail(
            f"Error! DKMS tree already contains: {module}-{version}\n"
            "You cannot add the same module/version combo more than once.",
            3,
        )
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"{machine.dkms_sources}/{module}-{version}")
    return Answer(
        f"Creating symlink {machine.dkms_tree}/{module}/{version}/source -> {machine.dkms_sources}/{module}-{version}\n"
    )


def _build(machine: Machine, options: dict[str, str]) -> Answer:
    module, version = _named(options)
    kernel = _kernel(machine, options)
    said = "" if (module, version) in _modules(machine) else _must(_add(machine, options)).out
    if kernel in _built(machine, module, version) and "force" not in options:
        return Answer(f"Module {module}/{version} already built for kernel {kernel} ({_ARCH}), skip.\n")
    headers = machine.path(f"/lib/modules/{kernel}/build")
    if not headers.exists():
        return fail(
            f"Error! Your kernel headers for kernel {kernel} cannot be found at /lib/modules/{kernel}/build or "
            f"/lib/modules/{kernel}/source.\n"
            f"Please install the linux-headers-{kernel} package or use the --kernelsourcedir option to tell DKMS "
            "where it's located.",
            _NO_HEADERS,
        )
    conf = machine.path(f"{machine.dkms_sources}/{module}-{version}/dkms.conf").read_text()
    folder = machine.path(f"{machine.dkms_tree}/{module}/{version}")
    compiler, banner, problem = _compiler(machine, headers)
    log = [
        f"DKMS make.log for {module}-{version} for kernel {kernel} ({_ARCH})",
        f"make[1]: Entering directory '/usr/src/linux-headers-{kernel}'",
    ]
    if not problem and "dkms_fails" in fold(machine.hardware)["faults"]:
        problem = (
            f"{machine.dkms_tree}/{module}/{version}/build/nvidia/nv-acpi.c:84:19: error: initialization of 'int (*)"
            "(struct acpi_device *)' from incompatible pointer type [-Werror=incompatible-pointer-types]\n"
            "cc1: some warnings being treated as errors\n"
            f"make[3]: *** [scripts/Makefile.build:297: {machine.dkms_tree}/{module}/{version}/build/nvidia/nv-acpi.o] "
            "Error 1"
        )
    if problem:
        log += [problem, f"make: *** [Makefile:82: modules] Error {2 if compiler else 127}"]
        write(folder / "build/make.log", "\n".join(log) + "\n")
        raise _Failed(
            Answer(
                f"{said}Building module:\nCleaning build area...\n"
                f"'make' -j2 KERNEL_UNAME={kernel} modules...(bad exit status: 2)\n",
                f"Error! Bad return status for module build on kernel: {kernel} ({_ARCH})\n"
                f"Consult {machine.dkms_tree}/{module}/{version}/build/make.log for more information.\n",
                _BAD_BUILD,
            )
        )
    flavour = re.search(r"^#\s*rackwright-lab:\s*flavour=(\S+)", conf, re.MULTILINE)
    key = machine.path("/var/lib/shim-signed/mok/MOK.der")
    signer = "DKMS module signing key" if key.is_file() else None
    out = folder / f"{kernel}/{_ARCH}"
    for name in _names(conf, module):
        content = module_file(name, version, flavour.group(1) if flavour else "GPL", kernel, signer)
        write(out / f"module/{name}.ko", content)
    write(out / "log/make.log", "\n".join([*log, f"  using {banner}", "make[1]: Leaving directory"]) + "\n")
    shutil.rmtree(folder / "build", ignore_errors=True)
    signing = f"Signing module {machine.dkms_tree}/{module}/{version}/build/{module}.ko\n" if signer else ""
    return Answer(
        f"{said}Building module:\nCleaning build area...\n'make' -j2 KERNEL_UNAME={kernel} modules...\n{signing}"
        "Cleaning build area...\n"
    )


def _names(conf: str, module: str) -> list[str]:
    found = re.findall(r'^BUILT_MODULE_NAME\[\d+\]="?([\w-]+)"?', conf, re.MULTILINE)
    return found or (list(_PARTS) if module == "nvidia" else [module])


def _compiler(machine: Machine, headers: Path) -> tuple[bool, str, str]:
    """Return whether the kernel's own compiler is there, its banner, and what make says where it is not."""
    config = headers / ".config"
    text = config.read_text(errors="replace") if config.is_file() else ""
    found = re.search(r'^CONFIG_CC_VERSION_TEXT="([^"]+)"', text, re.MULTILINE)
    banner = found.group(1) if found else "gcc"
    name = banner.split()[0]
    major = re.search(r"\b(\d+)\.\d+\.\d+\s*$", banner)
    short = re.sub(r"^x86_64-(linux|pc-linux)-gnu-", "", name)
    # A plain "gcc" in the banner is the distribution's default: its version says which package it was.
    wanted = f"{short}-{major.group(1)}" if major and short in ("gcc", "clang") else short
    if any(machine.path(f"/usr/bin/{one}").exists() for one in {name, wanted} - {"gcc"}):
        return True, banner, ""
    default = machine.path("/usr/bin/gcc")
    if short == "gcc" and default.exists() and (not major or str(default.resolve()).endswith(f"-{major.group(1)}")):
        return True, banner, ""
    warning = "warning: the compiler differs from the one used to build the kernel"
    return False, banner, f"{warning}\n  The kernel was built by: {banner}\n/bin/sh: 1: {wanted}: not found"


def _install(machine: Machine, options: dict[str, str]) -> Answer:
    module, version = _named(options)
    kernel = _kernel(machine, options)
    said = ""
    if kernel not in _built(machine, module, version):
        said = _must(_build(machine, options)).out
    if _installed(machine, module, version, kernel) and "force" not in options:
        return Answer(f"{said}Module {module}/{version} already installed on kernel {kernel} ({_ARCH}), skip.\n")
    _uninstall(machine, module, kernel)
    lines = []
    target = machine.path(f"/lib/modules/{kernel}/updates/dkms")
    for path in sorted(machine.path(f"{machine.dkms_tree}/{module}/{version}/{kernel}/{_ARCH}/module").iterdir()):
        write(target / path.name, path.read_bytes())
        lines.append(
            f"\n{path.name}:\nRunning module version sanity check.\n - Original module\n"
            f"   - No original module exists within this kernel\n - Installation\n"
            f"   - Installing to /lib/modules/{kernel}/updates/dkms/\n"
        )
    link = machine.path(f"{machine.dkms_tree}/{module}/kernel-{kernel}-{_ARCH}")
    link.unlink(missing_ok=True)
    link.symlink_to(f"{version}/{kernel}/{_ARCH}")
    _depmod(machine, kernel)
    return Answer(f"{said}{''.join(lines)}depmod...\n")


def _uninstall(machine: Machine, module: str, kernel: str) -> str | None:
    """Take an installed version's files from a kernel; return the version, None where there was none."""
    link = machine.path(f"{machine.dkms_tree}/{module}/kernel-{kernel}-{_ARCH}")
    if not link.is_symlink():
        return None
    version = link.readlink().parts[0]
    for path in machine.path(f"{machine.dkms_tree}/{module}/{version}/{kernel}/{_ARCH}/module").glob("*.ko"):
        machine.path(f"/lib/modules/{kernel}/updates/dkms/{path.name}").unlink(missing_ok=True)
    link.unlink()
    _depmod(machine, kernel)
    return version


def _depmod(machine: Machine, kernel: str) -> None:
    """Let kmod's own tool note which modules there are; below another root it is not asked."""
    if not machine.root:
        subprocess.run(["depmod", kernel], check=False)


def _remove(machine: Machine, options: dict[str, str]) -> Answer:
    module, version = _named(options)
    if (module, version) not in _modules(machine):
        return fail(f"Error! There are no instances of module: {module}\n{version} located in the DKMS tree.", 3)
    kernels = _built(machine, module, version) if "all" in options else [_kernel(machine, options)]
    lines = []
    for kernel in kernels:
        if _installed(machine, module, version, kernel):
            _uninstall(machine, module, kernel)
            lines.append(
                f"Module {module}-{version} for kernel {kernel} ({_ARCH}).\n"
                "Before uninstall, this module version was ACTIVE on this kernel.\n"
            )
        if options.get("keep") != "build":
            shutil.rmtree(machine.path(f"{machine.dkms_tree}/{module}/{version}/{kernel}"), ignore_errors=True)
    if "all" in options and options.get("keep") != "build":
        shutil.rmtree(machine.path(f"{machine.dkms_tree}/{module}/{version}"))
        lines.append(f"Deleting module {module}-{version} completely from the DKMS tree.\n")
        parent = machine.path(f"{machine.dkms_tree}/{module}")
        if not any(parent.iterdir()):
            parent.rmdir()
    return Answer("".join(lines))


def _autoinstall(machine: Machine, options: dict[str, str]) -> Answer:
    """Build and install the newest version of every module, as the kernel's post-install hook does."""
    newest = dict(_modules(machine))
    kernel = _kernel(machine, options)
    out, err, failed = "", "", []
    for module, version in newest.items():
        try:
            answer = _install(machine, {**options, "m": module, "v": version})
        except _Failed as failure:
            answer = failure.answer
        out, err = out + answer.out, err + answer.err
        if answer.code:
            failed.append(f"{module}/{version}({answer.code})")
    if failed:
        err += (
            "Error! One or more modules failed to install during autoinstall.\n"
            f"dkms autoinstall on {kernel}/{_ARCH} failed for {' '.join(failed)}\n"
        )
        return Answer(out, err, 11)
    return Answer(out, err)


def _must(answer: Answer) -> Answer:
    if answer.code:
        raise _Failed(answer)
    return answer
