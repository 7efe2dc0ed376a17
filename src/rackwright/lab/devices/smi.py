"""nvidia-smi: its command line, its refusals and exit statuses; what it prints is made by its siblings.

Exit statuses: section "RETURN VALUE" of nvidia-smi(1).
"""

from __future__ import annotations

import signal
import time

from . import smi_csv, smi_mig, smi_set, smi_text, smi_xml
from .show import seen_modules
from .smi_device import View, views
from .state import Answer, Machine

_NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n\n"
)
_NO_LIBRARY = (
    "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver "
    "is properly installed and present in your system.\nPlease also try adding directory that contains libnvidia-ml.so "
    "to your system PATH.\n"
)
_INVALID, _NOT_FOUND, _NOT_LOADED, _LIBRARY_NOT_FOUND, _MISMATCH, _OTHER = 2, 6, 9, 12, 18, 255
_VALUED = ("-i", "--id", "-d", "--display", "-f", "--filename", "-l", "--loop", "-lms", "--format", "--query-gpu",
           "--query-compute-apps")  # fmt: skip


class _Wrong(Exception):
    """A command line that nvidia-smi does not take."""


def nvidia_smi(machine: Machine, words: list[str]) -> Answer:
    """Answer a command line of nvidia-smi."""
    faults = machine.hardware.get("faults", {})
    if "smi_hangs" in faults:
        _hang()
    library = machine.library_version
    if library is None:
        return Answer(_NO_LIBRARY, code=_LIBRARY_NOT_FOUND)
    module = seen_modules(machine).get("nvidia")
    if module is None:
        return Answer(_NO_DRIVER, code=_NOT_LOADED)
    if module["version"] != library:
        short = ".".join(library.split(".")[:2])
        text = f"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {short}\n"
        return Answer(text, code=_MISMATCH)
    try:
        return _answer(machine, words, library, module["version"])
    except _Wrong as wrong:
        return Answer(f"{wrong}\n", code=_INVALID)


def _hang() -> None:
    """Never answer: as a process that waits in the driver, which only SIGKILL ends here."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        signal.pause()


def _answer(machine: Machine, words: list[str], driver: str, module: str) -> Answer:
    if words == ["--version"]:
        return Answer(smi_text.version(driver, module))
    every = views(machine)
    alive = [view for view in every if not view.gpu["lost"]]
    lost = "".join(_lost_line(view) for view in every if view.gpu["lost"])
    if lost and not (alive and alive[0].at_least(550)):
        # Older releases stop at the first board whose handle they do not get.
        return Answer(lost, code=_OTHER)
    if not alive:
        return Answer("No devices were found\n", code=_NOT_FOUND)
    if words[:1] == ["mig"]:
        return smi_mig.mig(machine, _chosen(alive, _id_of(words[1:])), words[1:])
    if words[:1] in (["nvlink"], ["topo"]):
        return _links(alive, words)
    options, settings = _options(words)
    chosen = _chosen(alive, options.get("-i"))
    if not chosen:
        return Answer(lost + "No devices were found\n", code=_NOT_FOUND)
    if settings:
        return smi_set.apply(machine, chosen, settings)
    answer = _report(chosen, len(every), options, driver, module)
    return Answer(lost + answer.out, answer.err, _OTHER if lost and not answer.code else answer.code)


def _lost_line(view: View) -> str:
    where = f"GPU{view.gpu['index']}: " if view.at_least(550) else "GPU"
    return f"Unable to determine the device handle for {where}{view.gpu['bus_id'].upper()}: Unknown Error\n"


def _id_of(words: list[str]) -> str | None:
    return next((words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-i", "--id")), None)


def _options(words: list[str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return what to report, and what to set in the order given."""
    found: dict[str, str] = {}
    settings: list[tuple[str, str]] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        name = {"--id": "-i", "--display": "-d", "--query": "-q", "--xml-format": "-x", "--list-gpus": "-L"}.get(
            name, name
        )
        setting = smi_set.NAMES.get(name)
        if name in _VALUED or (setting is not None and setting not in smi_set.BARE):
            if not equals:
                if not left:
                    raise _Wrong(f"Missing argument for option: {word}")
                value = left.pop(0)
        elif name not in ("-q", "-x", "-L", "-u", "--dtd") and setting is None:
            raise _Wrong(
                f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\nUnknown: {word}"
            )
        if setting is None:
            found[name] = value
        else:
            settings.append((setting, value))
    return found, settings


def _chosen(found: list[View], wanted: str | None) -> list[View]:
    """Return the GPUs that `-i` names, by index, uuid, serial or bus id; all where it names none."""
    if wanted is None:
        return found
    return [view for view in found if any(_is(view, one.strip()) for one in wanted.split(","))]


def _is(view: View, name: str) -> bool:
    bus = name.upper().rjust(16, "0") if ":" in name else ""
    return name in (str(view.gpu["index"]), view.gpu["uuid"], view.gpu["serial"]) or bus == view.bus_id


def _report(chosen: list[View], attached: int, options: dict[str, str], driver: str, module: str) -> Answer:
    now = time.strftime("%a %b %e %H:%M:%S %Y")
    stamp = time.strftime("%Y/%m/%d %H:%M:%S.000")
    for option, query in (("--query-gpu", smi_csv.query_gpu), ("--query-compute-apps", smi_csv.query_apps)):
        if option in options:
            formats = {one.strip() for one in options.get("--format", "").split(",")}
            if "csv" not in formats:
                raise _Wrong("\"--format=\" is missing. Please run 'nvidia-smi -h' for help.")
            names = [name.strip() for name in options[option].split(",")]
            try:
                return Answer(query(chosen, names, stamp, formats))
            except smi_csv.UnknownField as unknown:
                raise _Wrong(f'Field "{unknown}" is not a valid field to query.\n') from None
    if "-L" in options:
        return Answer(smi_text.listing(chosen))
    if "-q" not in options:
        return Answer(smi_text.table(chosen, driver, module, now))
    if "-x" in options:
        return Answer(smi_xml.xml(chosen, attached, driver, now))
    sections = tuple(one.strip().upper() for one in options.get("-d", "").split(",") if one.strip())
    for section in sections:
        if section not in smi_text.SECTIONS:
            raise _Wrong(f'"{section}" is not a valid display type.')
    return Answer(smi_text.query(chosen, attached, driver, now, sections))


def _links(found: list[View], words: list[str]) -> Answer:
    chosen = _chosen(found, _id_of(words[1:]))
    if words[0] == "topo" and "-m" in words:
        return Answer(smi_text.topology(chosen))
    if words[0] == "nvlink" and ("-s" in words or "--status" in words):
        return Answer(smi_text.nvlink(chosen))
    raise _Wrong(f"Option {' '.join(words[1:])} is not recognized. Please run 'nvidia-smi {words[0]} -h'.")
