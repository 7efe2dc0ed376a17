"""One look: sections side by side, each with its own time-out, and answers that nothing can forge."""

from __future__ import annotations

import base64
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackwright_facts._parse.model import Reading
from rackwright_facts.look import Look, NotLooked, Section, answers, script


def _section(key: str, command: str, **options: object) -> Section[bytes]:
    return Section(key=key, command=command, parse=lambda data: data, **options)  # type: ignore[arg-type]


def _look(*sections: Section[bytes], **options: int) -> Look:
    done = subprocess.run(
        ["bash", "-c", script(sections, **options)], capture_output=True, text=True, timeout=60,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return answers(sections, done.stdout.splitlines())


def test_what_each_exit_status_means() -> None:
    ok, absent, declared, error = (
        _section("ok", "printf a"), _section("absent", "no-such-program-anywhere"),
        _section("declared", "exit 2", absent=(2,)), _section("error", "echo why >&2; exit 3"),
    )  # fmt: skip
    look = _look(ok, absent, declared, error)
    assert look[ok] == Reading.ok(b"a")
    assert look[absent].is_absent
    assert look[declared].is_absent
    assert (look[error].status, look[error].reason) == ("error", "exit status 3: why")


def test_sections_run_side_by_side_and_a_hanging_one_holds_up_nobody() -> None:
    slow = [_section(f"slow{index}", "sleep 1; echo done") for index in range(6)]
    hanging = _section("hanging", "trap '' TERM; sleep 60", timeout_s=2)
    start = time.monotonic()
    look = _look(*slow, hanging)
    assert time.monotonic() - start < 10  # one after the other they would take 66 s
    assert all(look[section] == Reading.ok(b"done\n") for section in slow)
    assert look[hanging].status == "timeout"


def test_any_bytes_come_through_and_no_output_can_pose_as_another_section() -> None:
    binary = _section("binary", r"printf '\000\377\n1 0 =eA== =\n'")
    forger = _section("forger", "echo 'binary 0 =Zm9yZ2Vk ='")
    look = _look(binary, forger)
    assert look[binary].value == b"\x00\xff\n1 0 =eA== =\n"
    assert look[forger].value == b"binary 0 =Zm9yZ2Vk =\n"


def test_a_value_that_cannot_be_parsed_is_an_error_and_no_crash() -> None:
    section: Section[int] = Section(key="number", command="echo word", parse=int)
    reading = _look(section)[section]  # type: ignore[arg-type]
    assert reading.status == "error"
    assert "cannot read the answer" in reading.reason


def test_a_node_that_says_nothing_or_a_banner_reads_as_an_error() -> None:
    section = _section("one", "true")
    for lines in ([], ["Welcome to gpu01!", "1 2 3 4", "one x = =", "one 0 =%%% ="]):
        assert answers([section], lines)[section].status == "error"


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    before = set(Path("/run").glob("rackwright.*"))
    _look(_section("one", "echo 1"))
    assert set(Path("/run").glob("rackwright.*")) == before


def test_a_decision_that_needs_more_says_which_section() -> None:
    known, other = _section("known", "true"), _section("other", "true")
    look = Look().having(known, Reading.ok(b""))
    assert known in look
    with pytest.raises(NotLooked) as need:
        look[other]
    assert need.value.section is other
    merged = look.merged(Look({"known": Reading.error("older"), "other": Reading.ok(b"x")}))
    assert merged[known].is_ok
    assert merged[other].value == b"x"


@given(st.text(), st.binary(max_size=50))
def test_any_key_names_its_own_answer(key: str, output: bytes) -> None:
    section = _section(key, "true")
    encoded = base64.b64encode(output).decode()
    assert answers([section], [f"{section.token} 0 ={encoded} ="])[section].value == output
    assert not {" ", "\n"} & set(section.token)
