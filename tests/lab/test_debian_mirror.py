"""Which entry of a machine's apt configuration is Debian's own archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from rackwright.errors import HostFailure
from rackwright.lab.debian import MIRROR_VARIABLE, debian_mirror

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MIRROR_VARIABLE, raising=False)


def _machine(folder: Path, files: dict[str, str]) -> tuple[Path, Path]:
    etc, lists = folder / "apt", folder / "lists"
    (etc / "sources.list.d").mkdir(parents=True)
    lists.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return etc, lists


@pytest.mark.parametrize(
    "files",
    [
        {"apt/sources.list": f"deb [signed-by={KEYRING}] http://mirror.example/debian bookworm main\n"},
        {
            "apt/sources.list.d/debian.sources": "Types: deb\n# a note\nURIs: http://mirror.example/debian\n"
            f"Suites: bookworm bookworm-updates\nComponents: main\nSigned-By: {KEYRING}\n"
        },
        {
            "apt/sources.list": "deb http://mirror.example/debian/ stable main contrib\n",
            "lists/mirror.example_debian_dists_stable_InRelease": "-----BEGIN\nOrigin: Debian\nLabel: Debian\n",
        },
        {  # what stands before it is not Debian's
            "apt/sources.list": f"deb cdrom:[DVD]/ bookworm main\n"
            f"deb [signed-by={KEYRING}] http://security.example/debian-security bookworm-security main\n",
            "apt/sources.list.d/a.list": "deb [signed-by=/usr/share/keyrings/vpn.gpg] "
            "https://vpn.example/stable/debian bookworm main\n",
            "apt/sources.list.d/b.sources": "Types: deb\nURIs: http://off.example/debian\nSuites: bookworm\n"
            f"Components: main\nSigned-By: {KEYRING}\nEnabled: no\n",
            "apt/sources.list.d/broken.list": "deb nonsense\n",
            "apt/sources.list.d/c.list.save": f"deb [signed-by={KEYRING}] http://old.example/debian bookworm main\n",
            "apt/sources.list.d/d.list": f"deb [signed-by={KEYRING}] http://mirror.example/debian bookworm main\n",
        },
        {  # the origin tells Debian from a derivative that has its layout
            "apt/sources.list": "deb http://derived.example/debian bookworm main\n"
            "deb http://mirror.example/debian bookworm main\n",
            "lists/derived.example_debian_dists_bookworm_InRelease": "Origin: Raspbian\n",
            "lists/mirror.example_debian_dists_bookworm_Release": "Origin: Debian\n",
        },
    ],
)
def test_found(tmp_path: Path, files: dict[str, str]) -> None:
    etc, lists = _machine(tmp_path, files)
    assert debian_mirror(etc, lists) == "http://mirror.example/debian"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"apt/sources.list": "deb http://archive.example/ubuntu jammy main\n"},
        {"apt/sources.list": f"deb-src [signed-by={KEYRING}] http://mirror.example/debian bookworm main\n"},
        {"apt/sources.list": f"deb [signed-by={KEYRING}] http://mirror.example/debian bookworm contrib\n"},
        {"apt/sources.list": "deb http://mirror.example/debian bookworm main\n"},  # nothing says whose it is
    ],
)
def test_none_is_said_with_the_cure(tmp_path: Path, files: dict[str, str]) -> None:
    etc, lists = _machine(tmp_path, files)
    with pytest.raises(HostFailure) as caught:
        debian_mirror(etc, lists)
    assert f"export {MIRROR_VARIABLE}=" in caught.value.problems[0].fix


def test_the_variable_wins_and_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etc, lists = _machine(tmp_path, {})
    monkeypatch.setenv(MIRROR_VARIABLE, "https://named.example/debian/")
    assert debian_mirror(etc, lists) == "https://named.example/debian"
    monkeypatch.setenv(MIRROR_VARIABLE, "named.example")
    with pytest.raises(HostFailure, match="no http or https URL"):
        debian_mirror(etc, lists)
