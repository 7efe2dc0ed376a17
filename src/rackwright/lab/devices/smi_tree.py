"""Everything that `nvidia-smi -q` tells of a GPU, as one ordered tree that is printed as XML or as text.

Which elements there are, and their order, is as the drivers 525, 535, 550, 570, 580 and 590 print them.
"""

from __future__ import annotations

from .smi_device import NA, View
from .smi_health import clocks, ecc, fabric, power, retired, temperatures
from .smi_rows import DEPRECATED, Node, Rows, mig_texts, on_off, pair

REASONS = (
    ("gpu_idle", "Idle"),
    ("applications_clocks_setting", "Applications Clocks Setting"),
    ("sw_power_cap", "SW Power Cap"),
    ("hw_slowdown", "HW Slowdown"),
    ("hw_thermal_slowdown", "    HW Thermal Slowdown"),
    ("hw_power_brake_slowdown", "    HW Power Brake Slowdown"),
    ("sync_boost", "Sync Boost"),
    ("sw_thermal_slowdown", "SW Thermal Slowdown"),
    ("display_clocks_setting", "Display Clock Setting"),
)
_COUNTERS = (
    ("sw_power_cap", "SW Power Capping"),
    ("sync_boost", "Sync Boost"),
    ("sw_therm_slowdown", "SW Thermal Slowdown"),
    ("hw_therm_slowdown", "HW Thermal Slowdown"),
    ("hw_power_brake", "HW Power Braking"),
)


def gpu_tree(view: View) -> Rows:
    """Return the rows of one GPU."""
    return [
        *_identity(view),
        *_versions(view),
        _pci(view),
        ("fan_speed", "Fan Speed", NA if view.board.is_data_center else "0 %"),
        ("performance_state", "Performance State", view.pstate),
        *_reasons(view),
        *_memory(view),
        *_statistics(view),
        *ecc(view),
        *retired(view),
        *temperatures(view),
        *power(view),
        *clocks(view),
        *fabric(view),
        *_supported_clocks(view),
        *_processes(view),
    ]


def _identity(view: View) -> Rows:
    board = view.board
    rows: Rows = [
        ("product_name", "Product Name", board.name),
        ("product_brand", "Product Brand", board.brand),
        ("product_architecture", "Product Architecture", board.architecture),
    ]
    if view.at_least(580):
        rows += [("display_mode", "Display Mode", DEPRECATED), ("display_attached", "Display Attached", "No")]
    else:
        rows.append(("display_mode", "Display Mode", on_off(board.is_data_center)))
    rows += [
        ("display_active", "Display Active", "Disabled"),
        ("persistence_mode", "Persistence Mode", on_off(bool(view.settings.get("persistence")))),
    ]
    if view.at_least(530):
        rows.append(("addressing_mode", "Addressing Mode", "None"))
    rows.append(pair("mig_mode", "MIG Mode", "mig", *mig_texts(view)))
    rows.append(("mig_devices", "MIG Device" if view.mig_instances else "", _mig_devices(view)))
    rows += [
        ("accounting_mode", "Accounting Mode", "Disabled"),
        ("accounting_mode_buffer_size", "Accounting Mode Buffer Size", "4000"),
        pair("driver_model", "Driver Model", "dm", NA, NA),
        ("serial", "Serial Number", view.gpu["serial"]),
        ("uuid", "GPU UUID", view.gpu["uuid"]),
    ]
    if view.at_least(580):
        rows.append(("pdi", "GPU PDI", view.gpu["pdi"]))
    rows += [
        ("minor_number", "Minor Number", str(view.gpu["minor"])),
        ("vbios_version", "VBIOS Version", view.gpu["vbios"]),
        ("multigpu_board", "MultiGPU Board", "No"),
        ("board_id", "Board ID", f"0x{int(view.gpu['bus_id'][5:7], 16) << 8:x}"),
        ("board_part_number", "Board Part Number", board.board_part),
        ("gpu_part_number", "GPU Part Number", board.gpu_part),
        ("gpu_fru_part_number", "FRU Part Number", NA),
    ]
    module = str(view.gpu["module_id"])
    if not view.at_least(570):
        return [*rows, ("gpu_module_id", "Module ID", module)]
    return [
        *rows,
        ("platformInfo", "Platform Info", [
            ("chassis_serial_number", "Chassis Serial Number", NA),
            ("slot_number", "Slot Number", NA),
            ("tray_index", "Tray Index", NA),
            ("host_id", "Host ID", NA),
            ("peer_type", "Peer Type", NA),
            ("module_id", "Module Id", module),
            ("gpu_fabric_guid", "GPU Fabric GUID", NA),
        ]),
    ]  # fmt: skip


def _mig_devices(view: View) -> str | Rows:
    """Return the MIG devices: each compute instance is one."""
    devices: Rows = [
        ("mig_device", "", [
            ("index", "Index", str(index)),
            ("gpu_instance_id", "GPU Instance ID", str(one["id"])),
            ("compute_instance_id", "Compute Instance ID", "0"),
            ("device_attributes", "Device Attributes", [
                ("shared", "Shared", [
                    ("multiprocessor_count", "Multiprocessor count", str(one["processors"])),
                    ("copy_engine_count", "Copy Engine count", "1"),
                    ("encoder_count", "Encoder count", "0"),
                    ("decoder_count", "Decoder count", "1"),
                    ("ofa_count", "OFA count", "0"),
                    ("jpg_count", "JPG count", "0"),
                ]),
            ]),
            ("ecc_error_count", "ECC Errors", [
                ("volatile_count", "Volatile", [("sram_uncorrectable", "SRAM Uncorrectable", "0")]),
            ]),
            ("fb_memory_usage", "FB Memory Usage", [
                ("total", "Total", f"{one['memory_mib']} MiB"),
                ("reserved", "Reserved", "0 MiB"),
                ("used", "Used", "13 MiB"),
                ("free", "Free", f"{one['memory_mib'] - 13} MiB"),
            ]),
        ])
        for index, one in enumerate(one for one in view.mig_instances if one["has_compute"])
    ]  # fmt: skip
    return devices or "None"


def _versions(view: View) -> Rows:
    image, oem, ecc = view.board.inforom
    gsp = view.driver if view.board.architecture in ("Hopper", "Blackwell", "Ampere") else NA
    rows: Rows = [
        ("inforom_version", "Inforom Version", [
            ("img_version", "Image Version", image),
            ("oem_object", "OEM Object", oem),
            ("ecc_object", "ECC Object", ecc),
            ("pwr_object", "Power Management Object", NA),
        ]),
    ]  # fmt: skip
    if view.at_least(535):
        flush: Rows = [
            ("latest_timestamp", "Latest Timestamp", NA),
            ("latest_duration", "Latest Duration", NA),
        ]
        rows.append(("inforom_bbx_flush", "Inforom BBX Object Flush", flush))
    rows.append(pair("gpu_operation_mode", "GPU Operation Mode", "gom", NA, NA))
    virtual: Rows = [
        ("virtualization_mode", "Virtualization Mode", "None"),
        ("host_vgpu_mode", "Host VGPU Mode", NA),
    ]
    if view.at_least(550):
        virtual.append(("vgpu_heterogeneous_mode", "vGPU Heterogeneous Mode", NA))
        rows.append(("c2c_mode", "GPU C2C Mode", "Disabled" if view.is_hopper_or_newer else NA))
    else:
        rows.append(("gsp_firmware_version", "GSP Firmware Version", gsp))
    rows.append(("gpu_virtualization_mode", "GPU Virtualization Mode", virtual))
    if not view.at_least(580):
        is_old = view.at_least(570)
        drained = "No" if view.is_ampere_or_newer and view.board.is_data_center else NA
        reset: Rows = [
            ("reset_required", "Reset Required", DEPRECATED if is_old else "No"),
            ("drain_and_reset_recommended", "Drain and Reset Recommended", DEPRECATED if is_old else drained),
        ]
        if view.at_least(530):
            rows.append(("gpu_reset_status", "GPU Reset Status", reset))
    if view.at_least(570):
        rows.append(("gpu_recovery_action", "GPU Recovery Action", "Reset" if _needs_reset(view) else "None"))
    if view.at_least(550):
        rows.append(("gsp_firmware_version", "GSP Firmware Version", gsp))
    rows.append(("ibmnpu", "IBMNPU", [("relaxed_ordering_mode", "Relaxed Ordering Mode", NA)]))
    return rows


def _needs_reset(view: View) -> bool:
    return bool(view.gpu["remapped"]["pending"]) or view.gpu["ecc"]["volatile"]["dram_uncorrectable"] > 0


def _pci(view: View) -> Node:
    board, bus = view.board, view.gpu["bus_id"]
    most, has = board.link_gen, view.gpu.get("link_gen", board.link_gen if board.is_data_center or view.busy else 1)
    atomics = "FETCHADD_32 FETCHADD_64 SWAP_32 SWAP_64 CAS_32 CAS_64 " if view.is_hopper_or_newer else NA
    rows: Rows = [
        ("pci_bus", "Bus", bus[5:7].upper()),
        ("pci_device", "Device", bus[8:10].upper()),
        ("pci_domain", "Domain", bus[:4].upper()),
    ]
    if view.at_least(570):
        rows += [("pci_base_class", "Base Classcode", "3"), ("pci_sub_class", "Sub Classcode", board.pci_class[3])]
    host = "5" if not view.at_least(550) and board.link_gen == 5 else "4" if not view.at_least(550) else NA
    rows += [
        ("pci_device_id", "Device Id", f"{board.device.upper()}10DE"),
        ("pci_bus_id", "Bus Id", view.bus_id),
        ("pci_sub_system_id", "Sub System Id", f"{board.subsystem.upper()}10DE"),
        ("pci_gpu_link_info", "GPU Link Info", [
            ("pcie_gen", "PCIe Generation", [
                ("max_link_gen", "Max", str(most)),
                ("current_link_gen", "Current", str(has)),
                ("device_current_link_gen", "Device Current", str(has)),
                ("max_device_link_gen", "Device Max", str(most)),
                ("max_host_link_gen", "Host Max", host),
            ]),
            ("link_widths", "Link Width", [
                ("max_link_width", "Max", "16x"),
                ("current_link_width", "Current", f"{view.gpu.get('link_width', 16)}x"),
            ]),
        ]),
        ("pci_bridge_chip", "Bridge Chip", [("bridge_chip_type", "Type", NA), ("bridge_chip_fw", "Firmware", NA)]),
        ("replay_counter", "Replays Since Reset", str(view.gpu["replays"])),
        ("replay_rollover_counter", "Replay Number Rollovers", "0"),
        ("tx_util", "Tx Throughput", "361 KB/s"),
        ("rx_util", "Rx Throughput", "327 KB/s"),
    ]  # fmt: skip
    both: Rows = [
        ("atomic_caps_outbound", "Atomic Caps Outbound", atomics),
        ("atomic_caps_inbound", "Atomic Caps Inbound", atomics if view.at_least(550) else NA),
    ]
    if view.at_least(530):
        rows += both if view.at_least(550) else reversed(both)
    return ("pci", "PCI", rows)


def _reasons(view: View) -> Rows:
    word, label = ("event", "Event") if view.at_least(535, 54) else ("throttle", "Throttle")
    rows: Rows = [
        (f"clocks_{word}_reason_{name}", text, "Active" if name in view.throttle else "Not Active")
        for name, text in REASONS
    ]
    found: Rows = [(f"clocks_{word}_reasons", f"Clocks {label} Reasons", rows)]
    if view.at_least(575):
        counted: Rows = [
            (f"clocks_event_reasons_counters_{name}", text, f"{60_000_000 if _is_counted(view, name) else 0} us")
            for name, text in _COUNTERS
        ]
        found.append(("clocks_event_reasons_counters", "Clocks Event Reasons Counters", counted))
    if view.is_hopper_or_newer or view.at_least(570):
        sparse = "Disabled" if view.board.architecture == "Hopper" else NA
        found.append(("sparse_operation_mode", "Sparse Operation Mode", sparse))
    return found


def _is_counted(view: View, counter: str) -> bool:
    return counter == "hw_therm_slowdown" and "hw_thermal_slowdown" in view.throttle


def _memory(view: View) -> Rows:
    board = view.board
    rows: Rows = [
        ("fb_memory_usage", "FB Memory Usage", [
            ("total", "Total", f"{board.memory} MiB"),
            ("reserved", "Reserved", f"{board.reserved} MiB"),
            ("used", "Used", f"{view.used_mib} MiB"),
            ("free", "Free", f"{view.free_mib} MiB"),
        ]),
        ("bar1_memory_usage", "BAR1 Memory Usage", [
            ("total", "Total", f"{board.bar1} MiB"),
            ("used", "Used", "1 MiB"),
            ("free", "Free", f"{board.bar1 - 1} MiB"),
        ]),
    ]  # fmt: skip
    if view.at_least(530):
        nothing: Rows = [(tag, tag.title(), "0 MiB") for tag in ("total", "used", "free")]
        rows.append(("cc_protected_memory_usage", "Conf Compute Protected Memory Usage", nothing))
    rows.append(("compute_mode", "Compute Mode", view.settings.get("compute_mode", "Default")))
    return rows


def _statistics(view: View) -> Rows:
    load = view.text_of(f"{view.gpu['utilization_percent']} %")
    if view.mig is not None and view.mig[0]:
        load = NA
    gpu_label = "GPU" if view.at_least(570) else "Gpu"
    used: Rows = [
        ("gpu_util", gpu_label, load),
        ("memory_util", "Memory", load if load == NA else view.text_of("0 %")),
    ]
    names = ("encoder", "decoder", "jpeg", "ofa") if view.at_least(530) else ("encoder", "decoder")
    labels = {"jpeg": "JPEG", "ofa": "OFA"}
    used += [(f"{name}_util", labels.get(name, name.title()), load if load == NA else "0 %") for name in names]
    sessions: Rows = [
        ("session_count", "Active Sessions", "0"),
        ("average_fps", "Average FPS", "0"),
        ("average_latency", "Average Latency", "0"),
    ]
    rows: Rows = [
        ("utilization", "Utilization", used),
        ("encoder_stats", "Encoder Stats", sessions),
        ("fbc_stats", "FBC Stats", sessions),
    ]
    if view.at_least(570):
        rows.append(pair("dram_encryption_mode", "DRAM Encryption Mode", "dram_encryption", NA, NA))
    return rows


def _supported_clocks(view: View) -> Rows:
    steps: Rows = [
        ("supported_graphics_clock", "", f"{clock} MHz")
        for clock in range(view.board.clocks[0], view.board.idle_clocks[0] - 1, -15)
    ]
    value: Rows = [("value", "", f"{view.board.clocks[1]} MHz"), *steps]
    return [("supported_clocks", "", [("supported_mem_clock", "", value)])]


def _processes(view: View) -> Rows:
    rows: Rows = [
        ("process_info", "", [
            ("gpu_instance_id", "GPU instance ID", NA),
            ("compute_instance_id", "Compute instance ID", NA),
            ("pid", "Process ID", str(one["pid"])),
            ("type", "    Type", one.get("type", "C")),
            ("process_name", "    Name", one["name"]),
            ("used_memory", "    Used GPU Memory", f"{one['used_mib']} MiB"),
        ])
        for one in view.gpu["processes"]
    ]  # fmt: skip
    found: Rows = [("processes", "Processes" if rows else "", rows)]
    if not rows:
        found.append(("", "Processes", "None"))
    found.append(("accounted_processes", "", []))
    if view.at_least(570):
        found.append(("capabilities", "Capabilities", [("egm", "EGM", "disabled")]))
    return found
