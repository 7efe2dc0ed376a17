"""One GPU as nvidia-smi sees it: the machine's data, what was set until the next boot, and the driver's generation."""

from __future__ import annotations

from .catalogue import JSON, Product
from .faults import fold
from .show import seen_modules
from .state import Machine, numbers, product

# The CUDA version that a driver's branch reports (CUDA release notes, table "CUDA Driver").
_CUDA = (
    (450, "11.0"), (470, "11.4"), (510, "11.6"), (515, "11.7"), (520, "11.8"), (525, "12.0"), (530, "12.1"),
    (535, "12.2"), (545, "12.3"), (550, "12.4"), (555, "12.5"), (560, "12.6"), (565, "12.7"), (570, "12.8"),
    (575, "12.9"), (580, "13.0"), (590, "13.1"), (595, "13.2"), (610, "13.3"),
)  # fmt: skip
UNKNOWN = "Unknown Error"
NA = "N/A"


def cuda_version(version: str) -> str:
    """Return the CUDA version of a driver."""
    branch = numbers(version)[0]
    return next((cuda for first, cuda in reversed(_CUDA) if branch >= first), "Not Found")


class View:
    """What nvidia-smi can ask of one GPU; numbers carry their unit in their name, texts are as they are printed."""

    def __init__(self, gpu: JSON, settings: JSON, driver: str, fabric: tuple[str, str]) -> None:
        self.gpu = gpu
        self.board: Product = product(gpu)
        self.settings = settings
        self.driver = driver
        self._numbers = numbers(driver)
        self.fabric = fabric

    def at_least(self, *version: int) -> bool:
        """Return whether the driver is this version or newer."""
        return self._numbers >= version

    @property
    def bus_id(self) -> str:
        """The bus id in NVML's form: a domain of eight digits, and capitals."""
        return f"0000{self.gpu['bus_id']}".upper()

    @property
    def is_ampere_or_newer(self) -> bool:
        """Whether the board is of Ampere or a later architecture."""
        return self.board.architecture not in ("Volta", "Turing")

    @property
    def is_hopper_or_newer(self) -> bool:
        """Whether the board is of the data center line from Hopper on."""
        return self.board.architecture in ("Hopper", "Blackwell")

    @property
    def throttle(self) -> tuple[str, ...]:
        """The active reasons why the clocks are not at their highest, by their names in queries."""
        reasons = list(self.gpu.get("throttle", ()))
        if not self.busy and not reasons:
            reasons.append("gpu_idle")
        return tuple(reasons)

    @property
    def busy(self) -> bool:
        """Whether anything computes on it."""
        return bool(self.gpu["processes"]) or self.gpu["utilization_percent"] > 0

    @property
    def used_mib(self) -> int:
        """Memory in use, in MiB."""
        processes = sum(one["used_mib"] for one in self.gpu["processes"])
        return int(self.gpu["memory_used_mib"]) + int(processes)

    @property
    def free_mib(self) -> int:
        """Memory that is neither used nor the driver's own, in MiB."""
        return self.board.memory - self.board.reserved - self.used_mib

    @property
    def power_limit_w(self) -> float:
        """The limit in force, in W."""
        return float(self.settings.get("power_limit_w", self.board.power[1]))

    @property
    def clocks_mhz(self) -> tuple[int, int, int]:
        """Graphics, memory and video clock as they are, within what was locked, in MHz."""
        graphics, memory, video = self.board.clocks if self.busy else self.board.idle_clocks
        if "hw_thermal_slowdown" in self.throttle:
            graphics = min(graphics, self.board.clocks[0] // 4)
        low, high = self.settings.get("graphics_clocks", (0, 10**6))
        low_memory, high_memory = self.settings.get("memory_clocks", (0, 10**6))
        return min(max(graphics, low), high), min(max(memory, low_memory), high_memory), video

    @property
    def has_ecc(self) -> bool:
        """Whether the board counts memory errors: it can, and the mode is on."""
        return bool(self.gpu["settings"]["ecc"])

    def text_of(self, value: str) -> str:
        """Return a value, or Unknown Error where the board answers with that."""
        return UNKNOWN if self.gpu.get("unknown") else value

    @property
    def mig(self) -> tuple[bool, bool] | None:
        """MIG mode now and as asked for; None where the board has none."""
        if not self.board.mig:
            return None
        current = bool(self.gpu["settings"]["mig"])
        return current, bool(self.settings.get("mig_pending", current))

    @property
    def mig_instances(self) -> list[JSON]:
        """The GPU instances, in the order of their ids."""
        found: list[JSON] = self.settings.get("mig_instances", [])
        return found

    @property
    def pstate(self) -> str:
        """The performance state: boards of a data center stay at P0."""
        return "P0" if self.busy or self.board.is_data_center else "P8"


def views(machine: Machine) -> list[View]:
    """Return the GPUs that the loaded driver drives, those that fell off the bus among them."""
    hardware = fold(machine.hardware)
    module = seen_modules(machine)["nvidia"]
    settings = machine.settings
    manager = machine.run("fabricmanager")
    routed = manager.is_file() and manager.read_text().strip() == module["version"]
    found = []
    for gpu in hardware["gpus"]:
        if gpu["bus_id"] in module["drives"]:
            fabric = (NA, NA)
            if hardware["nvswitches"] and product(gpu).architecture in ("Hopper", "Blackwell"):
                fabric = ("Completed", "Success") if routed else ("In Progress", NA)
            found.append(View(gpu, settings.get(gpu["uuid"], {}), machine.library_version or "", fabric))
    return found
