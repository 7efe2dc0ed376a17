"""What `nvidia-smi -q` tells of a GPU's memory errors, temperatures, power, clocks and fabric."""

from __future__ import annotations

from .smi_device import NA, View
from .smi_rows import DEPRECATED, Rows, ecc_modes, pair, yes_no


def ecc(view: View) -> Rows:
    """Return the ECC mode and the counters of memory errors."""
    mode = pair("ecc_mode", "ECC Mode", "ecc", *ecc_modes(view))
    return [mode, ("ecc_errors", "ECC Errors", _old_errors(view) if not view.is_ampere_or_newer else _errors(view))]


def _errors(view: View) -> Rows:
    detailed = view.is_hopper_or_newer or view.at_least(550)
    rows: Rows = []
    for span in ("volatile", "aggregate"):
        counts = view.gpu["ecc"][span]
        parity, secded = counts["sram_parity"], counts["sram_secded"]
        sram: list[tuple[str, str, int]] = [("sram_uncorrectable", "SRAM Uncorrectable", parity + secded)]
        if detailed:
            sram = [
                ("sram_uncorrectable_parity", "SRAM Uncorrectable Parity", parity),
                ("sram_uncorrectable_secded", "SRAM Uncorrectable SEC-DED", secded),
            ]
        every = [
            ("sram_correctable", "SRAM Correctable", counts["sram_correctable"]),
            *sram,
            ("dram_correctable", "DRAM Correctable", counts["dram_correctable"]),
            ("dram_uncorrectable", "DRAM Uncorrectable", counts["dram_uncorrectable"]),
        ]
        inner: Rows = [(tag, label, str(count) if view.has_ecc else NA) for tag, label, count in every]
        if detailed and span == "aggregate":
            inner.append(("sram_threshold_exceeded", "SRAM Threshold Exceeded", "No" if view.has_ecc else NA))
        rows.append((span, span.title(), inner))
    if detailed:
        zero = "0" if view.has_ecc else NA
        sources: Rows = [
            ("sram_l2", "SRAM L2", zero),
            ("sram_sm", "SRAM SM", zero),
            ("sram_microcontroller", "SRAM Microcontroller", zero),
            ("sram_pcie", "SRAM PCIE", zero),
            ("sram_other", "SRAM Other", zero),
        ]
        rows.append(("aggregate_uncorrectable_sram_sources", "Aggregate Uncorrectable SRAM Sources", sources))
    repair = "No" if view.is_hopper_or_newer else NA
    if view.at_least(580):
        rows += [
            ("channel_repair_pending", "Channel Repair Pending", repair),
            ("tpc_repair_pending", "TPC Repair Pending", repair),
        ]
    if view.at_least(590):
        rows.append(("unrepairable_memory", "Unrepairable Memory", repair))
    return rows


def _old_errors(view: View) -> Rows:
    """Return the counters of Volta and older: single and double bit errors, by where they were."""
    rows: Rows = []
    for span in ("volatile", "aggregate"):
        counts = view.gpu["ecc"][span]
        bits: Rows = []
        for name, dram, sram in (
            ("single", counts["dram_correctable"], counts["sram_correctable"]),
            ("double", counts["dram_uncorrectable"], counts["sram_parity"] + counts["sram_secded"]),
        ):
            places: Rows = [
                ("device_memory", "Device Memory", str(dram)),
                ("register_file", "Register File", str(sram)),
                ("l1_cache", "L1 Cache", "0"),
                ("l2_cache", "L2 Cache", "0"),
                ("texture_memory", "Texture Memory", NA),
                ("texture_shm", "Texture Shared", NA),
                ("cbu", "CBU", NA if name == "single" else "0"),
                ("total", "Total", str(dram + sram)),
            ]
            bits.append((f"{name}_bit", f"{name.title()} Bit", places))
        rows.append((span, span.title(), bits))
    return rows


def retired(view: View) -> Rows:
    """Return the retired pages and the remapped rows: a board has one or the other."""
    retired, remapped = view.gpu["retired"], view.gpu["remapped"]
    has_pages = not view.board.banks and view.has_ecc
    single, double = (str(retired["single_bit"]), str(retired["double_bit"])) if has_pages else (NA, NA)
    pages: str | Rows = [] if has_pages else NA
    pending = yes_no(retired["pending"]) if has_pages else NA
    rows: Rows = [
        ("retired_pages", "Retired Pages", [
            ("multiple_single_bit_retirement", "", [("retired_count", "", single), ("retired_pagelist", "", pages)]),
            ("", "Single Bit ECC", single),
            ("double_bit_retirement", "", [("retired_count", "", double), ("retired_pagelist", "", pages)]),
            ("", "Double Bit ECC", double),
            ("pending_blacklist", "Pending Page Blacklist", pending),
            ("pending_retirement", "", pending),
        ]),
    ]  # fmt: skip
    if not view.board.banks:
        return [*rows, ("remapped_rows", "Remapped Rows", NA)]
    used = min(1, remapped["uncorrectable"] + remapped["correctable"])
    histogram: Rows = [
        (f"row_remapper_histogram_{tag}", tag.title(), f"{count} bank(s)")
        for tag, count in (
            ("max", view.board.banks - used), ("high", used), ("partial", 0), ("low", 0), ("none", 0),
        )
    ]  # fmt: skip
    mapped: Rows = [
        ("remapped_row_corr", "Correctable Error", str(remapped["correctable"])),
        ("remapped_row_unc", "Uncorrectable Error", str(remapped["uncorrectable"])),
        ("remapped_row_pending", "Pending", yes_no(remapped["pending"])),
        ("remapped_row_failure", "Remapping Failure Occurred", yes_no(remapped["failure"])),
        ("row_remapper_histogram", "Bank Remap Availability Histogram", histogram),
    ]
    return [*rows, ("remapped_rows", "Remapped Rows", mapped)]


def temperatures(view: View) -> Rows:
    """Return the temperatures, as margins to the limit where the board says margins."""
    shutdown, slowdown, most = view.board.limits
    now = view.gpu["temperature_c"]
    has_memory = view.board.is_data_center
    memory = f"{view.gpu['memory_temperature_c']} C" if has_memory else NA
    target = NA if view.board.is_data_center else "84 C"
    rows: Rows = [("gpu_temp", "GPU Current Temp", view.text_of(f"{now} C"))]
    if view.board.architecture in ("Hopper", "Blackwell", "Ada Lovelace") and view.at_least(530):
        rows += [
            ("gpu_temp_tlimit", "GPU T.Limit Temp", view.text_of(f"{most - now} C")),
            ("gpu_temp_max_tlimit_threshold", "GPU Shutdown T.Limit Temp", f"{most - shutdown} C"),
            ("gpu_temp_slow_tlimit_threshold", "GPU Slowdown T.Limit Temp", f"{most - slowdown} C"),
            ("gpu_temp_max_gpu_tlimit_threshold", "GPU Max Operating T.Limit Temp", "0 C"),
            ("gpu_target_temperature", "GPU Target Temperature", target),
            ("memory_temp", "Memory Current Temp", memory),
            ("gpu_temp_max_mem_tlimit_threshold", "Memory Max Operating T.Limit Temp", "0 C" if has_memory else NA),
        ]
    else:
        if view.at_least(530):
            rows.append(("gpu_temp_tlimit", "GPU T.Limit Temp", NA))
        rows += [
            ("gpu_temp_max_threshold", "GPU Shutdown Temp", f"{shutdown} C"),
            ("gpu_temp_slow_threshold", "GPU Slowdown Temp", f"{slowdown} C"),
            ("gpu_temp_max_gpu_threshold", "GPU Max Operating Temp", f"{most} C"),
            ("gpu_target_temperature", "GPU Target Temperature", target),
            ("memory_temp", "Memory Current Temp", memory),
            ("gpu_temp_max_mem_threshold", "Memory Max Operating Temp", "95 C" if has_memory else NA),
        ]
    limits = (NA, NA) if view.board.is_data_center else ("65 C", "88 C")
    supported: Rows = [
        ("gpu_target_temp_min", "GPU Target Temp Min", limits[0]),
        ("gpu_target_temp_max", "GPU Target Temp Max", limits[1]),
    ]
    return [("temperature", "Temperature", rows), ("supported_gpu_target_temp", "", supported)]


def power(view: View) -> Rows:
    """Return the power drawn and its limits, in W."""
    least, default, most = view.board.power
    draw = view.text_of(f"{view.gpu['power_w']:.2f} W")
    limit = f"{view.power_limit_w:.2f} W"
    if not view.at_least(530):
        return [
            ("power_readings", "Power Readings", [
                ("power_state", "", view.pstate),
                ("power_management", "Power Management", "Supported"),
                ("power_draw", "Power Draw", draw),
                ("power_limit", "Power Limit", limit),
                ("default_power_limit", "Default Power Limit", f"{default:.2f} W"),
                ("enforced_power_limit", "Enforced Power Limit", limit),
                ("min_power_limit", "Min Power Limit", f"{least:.2f} W"),
                ("max_power_limit", "Max Power Limit", f"{most:.2f} W"),
            ]),
        ]  # fmt: skip

    def block(drawn: str, values: tuple[str, ...]) -> Rows:
        two = view.at_least(570)
        average = NA if view.board.architecture == "Ampere" else drawn
        draws: Rows = [("power_draw", "Power Draw", drawn)]
        if two:
            draws = [
                ("average_power_draw", "Average Power Draw", average),
                ("instant_power_draw", "Instantaneous Power Draw", drawn),
            ]
        tags = ("current", "requested", "default", "min", "max")
        limits: Rows = [
            (f"{tag}_power_limit", f"{tag.title()} Power Limit", value) for tag, value in zip(tags, values, strict=True)
        ]
        return [("power_state", "", view.pstate), *draws, *limits]

    values = (limit, limit, f"{default:.2f} W", f"{least:.2f} W", f"{most:.2f} W")
    rows: Rows = [("gpu_power_readings", "GPU Power Readings", block(draw, values))]
    if view.at_least(570):
        memory: Rows = [
            ("average_power_draw", "Average Power Draw", NA),
            ("instant_power_draw", "Instantaneous Power Draw", NA),
        ]
        rows.append(("gpu_memory_power_readings", "GPU Memory Power Readings", memory))
    rows.append(("module_power_readings", "Module Power Readings", block(NA, (NA,) * 5)))
    if view.at_least(570):
        profiles: Rows = [
            ("power_profile_requested_profiles", "Requested Profiles", NA),
            ("power_profile_enforced_profiles", "Enforced Profiles", NA),
        ]
        rows += [
            ("power_smoothing", "Power Smoothing", NA),
            ("power_profiles", "Workload Power Profiles", profiles),
        ]
    if view.at_least(590):
        rows.append(("edpp_multiplier", "EDPp Multiplier", "100.00%"))
    return rows


def clocks(view: View) -> Rows:
    """Return the clocks as they are and as they may be, in MHz."""
    graphics, memory, video = view.clocks_mhz
    most = view.board.clocks
    wished: Rows
    if view.at_least(590):
        wished = [("graphics_clock", "Graphics", DEPRECATED), ("mem_clock", "Memory", DEPRECATED)]
    elif view.board.is_data_center:
        wished = [("graphics_clock", "Graphics", f"{most[0]} MHz"), ("mem_clock", "Memory", f"{most[1]} MHz")]
    else:
        wished = [("graphics_clock", "Graphics", NA), ("mem_clock", "Memory", NA)]
    rows: Rows = [
        ("clocks", "Clocks", [
            ("graphics_clock", "Graphics", f"{graphics} MHz"),
            ("sm_clock", "SM", f"{graphics} MHz"),
            ("mem_clock", "Memory", f"{memory} MHz"),
            ("video_clock", "Video", f"{video} MHz"),
        ]),
        ("applications_clocks", "Applications Clocks", wished),
        ("default_applications_clocks", "Default Applications Clocks", wished),
        ("deferred_clocks", "Deferred Clocks", [("mem_clock", "Memory", NA)]),
        ("max_clocks", "Max Clocks", [
            ("graphics_clock", "Graphics", f"{most[0]} MHz"),
            ("sm_clock", "SM", f"{most[0]} MHz"),
            ("mem_clock", "Memory", f"{most[1]} MHz"),
            ("video_clock", "Video", f"{most[2]} MHz"),
        ]),
        ("max_customer_boost_clocks", "Max Customer Boost Clocks", [
            ("graphics_clock", "Graphics", f"{most[0]} MHz" if view.board.is_data_center else NA),
        ]),
        ("clock_policy", "Clock Policy", [
            ("auto_boost", "Auto Boost", NA), ("auto_boost_default", "Auto Boost Default", NA),
        ]),
    ]  # fmt: skip
    if not view.at_least(580):
        volts = "675.000 mV" if view.is_hopper_or_newer else NA
        rows.append(("voltage", "Voltage", [("graphics_volt", "Graphics", volts)]))
    return rows


def fabric(view: View) -> Rows:
    """Return where the board stands in the NVSwitch fabric."""
    state, status = view.fabric
    rows: Rows = [("state", "State", state), ("status", "Status", status)]
    is_complete = state == "Completed"
    if view.at_least(550):
        rows += [
            ("cliqueId", "CliqueId", "0" if is_complete else NA),
            ("clusterUuid", "ClusterUUID", "00000000-0000-0000-0000-000000000000" if is_complete else NA),
        ]
        new = view.at_least(580)
        is_blackwell = is_complete and view.board.architecture == "Blackwell"
        health: Rows = [
            ("bandwidth", "Bandwidth", NA),
            ("route_recovery_in_progress", "Route Recovery in progress", NA),
            ("route_unhealthy", "Route Unhealthy", NA),
            ("access_timeout_recovery", "Access Timeout Recovery", "False" if is_blackwell else NA),
        ]
        if new:
            health.insert(0, ("summary", "Summary", "Healthy" if is_blackwell else NA))
            health.append(("incorrect_configuration", "Incorrect Configuration", NA))
        rows.append(("health", "Health", health))
    return [("fabric", "Fabric", rows)] if view.at_least(530) else []
