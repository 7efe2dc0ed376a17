"""cluster.yaml: what loads, what is refused, and that every mistake is told with its line and its cure."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rackwright.config import Cluster, load
from rackwright.errors import UsageMistake
from rackwright.inventory import pyinfra_groups

BASE = """\
cluster: alpha
profiles:
  hgx: {cuda: {versions: ["12.2"], default: "12.2"}}
nodes:
  gpu[01-03]: {profile: hgx}
"""


def _load(folder: Path, text: str | bytes) -> Cluster:
    path = folder / "cluster.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load(path)


def _mistakes(folder: Path, text: str | bytes) -> list[tuple[str, str, str]]:
    with pytest.raises(UsageMistake) as caught:
        _load(folder, text)
    found = [(one.what, one.where.replace(str(folder / "cluster.yaml"), "F"), one.fix) for one in caught.value.problems]
    assert all(what and where and fix for what, where, fix in found), found
    return found


def _only(folder: Path, text: str | bytes) -> tuple[str, str, str]:
    found = _mistakes(folder, text)
    assert len(found) == 1, found
    return found[0]


def test_the_designs_own_example_loads(tmp_path: Path) -> None:
    corpus = os.environ.get("RACKWRIGHT_CORPUS")
    if not corpus:
        pytest.skip("$RACKWRIGHT_CORPUS is not set: the design's text is not here")
    text = Path(corpus, "design/architecture.md").read_text()
    example = re.search(r"```yaml\n(# yaml-language-server.*?)```", text, re.DOTALL)
    assert example is not None
    cluster = _load(tmp_path, example.group(1))
    assert [node.name for node in cluster.nodes][:2] == ["gpu01.example.net", "gpu02.example.net"]
    nodes = {node.name.partition(".")[0]: node for node in cluster.nodes}
    assert len(nodes) == 8
    assert nodes["gpu05"].driver is not None
    assert (nodes["gpu05"].driver.branch, nodes["gpu05"].driver.kernel_module) == (580, "open")
    assert nodes["gpu03"].bmc is not None
    assert nodes["gpu03"].bmc.address == "gpu03-bmc.example.net"


def test_mistakes_come_together_each_with_line_path_and_cure(tmp_path: Path) -> None:
    found = _mistakes(
        tmp_path,
        """\
cluster: alpha
ssh: {user: ubuntu, prot: 22}
profiles:
  hgx:
    drvier: {branch: 580}
    cuda: {versions: [12.2]}
nodes:
  gpu[01-03]: {profile: hgxx}
  gpu04: {profile: hgx, driver: {branch: "580"}}
""",
    )
    told = {where: (what, fix) for what, where, fix in found}
    assert told["F:2  ssh.prot"] == ("unknown key 'prot'", "did you mean 'port'?")
    assert told["F:5  profiles.hgx.drvier"] == ("unknown key 'drvier'", "did you mean 'driver'?")
    assert 'quote it: "12.2"' in told["F:6  profiles.hgx.cuda.versions.0"][1]
    assert told["F:8  nodes.gpu[01-03].profile"] == ("there is no profile 'hgxx'", "did you mean 'hgx'?")
    assert "whole number" in told["F:9  nodes.gpu04.driver.branch"][0]
    assert len(found) == 5


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("", "the file is empty", "F:1"),
        ("\n# nothing\n", "the file is empty", "F:1"),
        ("- a\n", "the file is a list", "F:1"),
        ("word\n", "the file is a single value", "F:1"),
        (b"\xff\xfec\x00", "the file is UTF-16", "F:1"),
        (b"cluster: a\xff\n", "the file is not UTF-8", "F:1"),
        ("cluster: a\n\tnodes: {}\n", "a tab in the indentation", "F:2"),
        ("cluster: a\nssh: {user: a\x00b}\n", "a control character (U+0000)", "F:2, column 14"),
        (BASE + "---\ncluster: b\n", "a second document begins", "F:6"),
        (BASE + "ssh: &a {}\n", "anchors and aliases are not used in settings", "F:6"),
        (BASE + "ssh: !!python/object:os.system x\n", "the tag 'tag:yaml.org", "F:6"),
        ("cluster: [a\nnodes: {", "not YAML", "F:2"),
        ("? [a]\n: b\n", "a key that is itself a list or mapping", "F:1"),
        ("a: " + "[" * 60, "nested deeper than 50 levels", "F:1"),
        ("a: " + "[" * 90_000, "not YAML: exceeded maximum nesting depth", "F:1"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_settings_gets_one_clear_answer(
    tmp_path: Path, text: str | bytes, what: str, where: str
) -> None:
    told = _only(tmp_path, text)
    assert told[0].startswith(what)
    assert told[1] == where


def test_a_bomb_is_answered_at_once(tmp_path: Path) -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{new}: &{new} [{','.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    start = time.monotonic()
    assert "anchors" in _only(tmp_path, bomb)[0]
    assert time.monotonic() - start < 5  # expanding it would take days and all memory


def test_a_file_larger_than_any_cluster_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(UsageMistake, match="larger than 16 MiB"):
        load(path)


@pytest.mark.parametrize("path", ["/nonexistent/cluster.yaml", "/"])
def test_what_is_no_file_is_said(path: str) -> None:
    with pytest.raises(UsageMistake) as caught:
        load(path)
    assert caught.value.problems[0].fix


def test_a_bom_is_harmless_and_words_are_only_words(tmp_path: Path) -> None:
    cluster = _load(tmp_path, b"\xef\xbb\xbf" + BASE.replace("gpu[01-03]", "no").encode())
    assert [node.name for node in cluster.nodes] == ["no"]  # YAML 1.1 would read a boolean


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gpü01", "'ü' at position 3 cannot be part of a host name"),
        ("gpu_01", "'_' at position 4"),
        ("-gpu", "not a host name"),
        ("gpu[03-01]", "03-01 runs backwards"),
        ("gpu[1-03]", ""),
        ("gpu[01-3]", "not the same number of digits"),
        ("gpu[a-b]", "neither a number nor FIRST-LAST"),
        ("gpu[01", "the bracket is not closed"),
        ("gpu[0-999999]", "more than 100000 hosts"),
        ("gpu[1-99999][1-99999]", "more than 100000 hosts"),
    ],
)
def test_names_that_are_no_hosts(tmp_path: Path, name: str, why: str) -> None:
    text = BASE.replace("gpu[01-03]", f'"{name}"')
    if not why:
        return
    assert why in _only(tmp_path, text)[0]


def test_ranges_keep_their_padding(tmp_path: Path) -> None:
    cluster = _load(tmp_path, BASE.replace("gpu[01-03]", "r[1-2]n[08-10,12].example.net"))
    names = [node.name for node in cluster.nodes]
    assert names[:4] == ["r1n08.example.net", "r1n09.example.net", "r1n10.example.net", "r1n12.example.net"]
    assert len(names) == 8


def test_a_host_in_two_ranges_names_both_lines(tmp_path: Path) -> None:
    what, where, _ = _only(tmp_path, BASE + "  gpu[03-05]: {profile: hgx}\n")
    assert what.startswith("gpu03 is in two ranges")
    assert where == "F:6  nodes.gpu[03-05] and F:5"


def test_a_key_given_twice_names_both_lines(tmp_path: Path) -> None:
    what, where, _ = _only(tmp_path, BASE + "cluster: beta\n")
    assert what == "the key 'cluster' is given twice"
    assert where == "F:1  cluster and line 6"


def test_merging_profile_range_and_name(tmp_path: Path) -> None:
    cluster = _load(
        tmp_path,
        """\
cluster: alpha
profiles:
  a:
    driver: {branch: 580, kernel_module: open}
    cuda: {versions: ["12.2", "12.4"], default: "12.2"}
  b: {driver: {branch: 570}}
nodes:
  n3: {profile: b}
  n2: {cuda: null, driver: {kernel_module: null}}
  n1: {cuda: {versions: ["13.0"], default: null}}
  n[1-4]: {profile: a, driver: {branch: 590}}
""",
    )
    nodes = {node.name: node for node in cluster.nodes}
    assert nodes["n4"].cuda is not None
    assert nodes["n4"].cuda.versions == ["12.2", "12.4"]
    assert nodes["n4"].driver is not None
    assert (nodes["n4"].driver.branch, nodes["n4"].driver.kernel_module) == (590, "open")
    assert nodes["n1"].cuda is not None
    assert (nodes["n1"].cuda.versions, nodes["n1"].cuda.default) == (["13.0"], None)  # a list replaces, null unsets
    assert nodes["n2"].cuda is None
    assert nodes["n2"].driver is not None
    assert nodes["n2"].driver.kernel_module == "auto"
    assert nodes["n3"].cuda is None  # another profile replaces the base; the range's own settings stay
    assert nodes["n3"].driver is not None
    assert nodes["n3"].driver.branch == 590


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (('default: "12.2"', 'default: "12.4"'), "the default 12.4 is not among the versions"),
        (('["12.2"]', '["12.2", "12.2.1"]'), "CUDA 12.2 is named twice"),
        (('["12.2"]', '["12"]'), "'12' is no CUDA version"),
        (('["12.2"]', "[]"), "versions"),
        (("hgx: {cuda", "hgx: {driver: {branch: 470}, cuda"), "CUDA 12.2 does not run on a driver of branch 470"),
        (("cluster: alpha", "cluster: [a]"), "'cluster'"),
        (("nodes:", "rollout: {batch: 0}\nnodes:"), "at least 1"),
        (("nodes:", "rollout: {batch: 110%}\nnodes:"), "no percentage"),
        (("nodes:", "rollout: {allow_disruption: [gpu9]}\nnodes:"), "'gpu9' is no node"),
        (("nodes:", "sources: {cuda: {url: 'ftp://x'}}\nnodes:"), "not an http or https URL"),
        (("nodes:", "sources: {cuda: {url: 'https://a:b@x/y'}}\nnodes:"), "a URL with a user or password in it"),
        (("nodes:", "sources: {cuda: {url: 'https://x', key: k}}\nnodes:"), "a key file without the fingerprint"),
        (("nodes:", "sources: {cuda: {url: 'https://x', fingerprint: 3BF863CC}}\nnodes:"), "40 hexadecimal digits"),
        (("nodes:", "ssh: {sudo: 'yes'}\nnodes:"), "true or false"),
        (("nodes:", "ssh: {port: 0}\nnodes:"), "'port'"),
    ],
)
def test_combinations_that_cannot_be(tmp_path: Path, change: tuple[str, str], what: str) -> None:
    found = _mistakes(tmp_path, BASE.replace(*change))
    assert any(what in told[0] for told in found), found


def test_a_secret_in_the_file_is_refused_and_never_shown(tmp_path: Path) -> None:
    text = BASE + "ssh: {user: u, sudo: true, sudo_password: hunter2!}\n"
    found = _mistakes(tmp_path, text)
    assert "reference" in found[0][0]
    assert "hunter2" not in str(found)


def test_old_branches_are_a_warning_and_no_refusal(tmp_path: Path) -> None:
    cluster = _load(tmp_path, BASE.replace("hgx: {cuda", "hgx: {driver: {branch: 535}, cuda"))
    assert "535 had its last release in 2026-06" in cluster.warnings[0]
    assert not _load(tmp_path, BASE.replace("hgx: {cuda", "hgx: {driver: {branch: 580}, cuda")).warnings


def test_five_thousand_nodes_load(tmp_path: Path) -> None:
    nodes = "".join(f"  n{i}.example.net: {{profile: hgx, address: 10.0.{i >> 8}.{i & 255}}}\n" for i in range(5000))
    cluster = _load(tmp_path, BASE.replace("  gpu[01-03]: {profile: hgx}\n", nodes))
    groups = pyinfra_groups(cluster)
    assert len(groups["hgx"]) == 5000
    assert groups["hgx"][4999][1]["ssh_hostname"] == "10.0.19.135"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_give_a_cluster_or_a_mistake(tmp_path: Path, content: bytes) -> None:
    try:
        _load(tmp_path, content)
    except UsageMistake as mistake:
        assert all(one.what and one.where and one.fix for one in mistake.problems)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_KEYS = ("cluster", "ssh", "sources", "profiles", "nodes", "rollout")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=6), _VALUES)
def test_any_shape_gives_a_cluster_or_a_mistake(tmp_path: Path, data: dict[str, object], node: object) -> None:
    import yaml

    shapes = {**data, "cluster": "alpha", "profiles": {"p": data.get("profiles")}, "nodes": {"n[1-2]": node}}
    for shape in (data, shapes):
        text = yaml.safe_dump(shape, allow_unicode=True)
        try:
            _load(tmp_path, text)
        except UsageMistake as mistake:
            assert all(one.what and one.where and one.fix for one in mistake.problems)
