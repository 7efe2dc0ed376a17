"""What apt and dpkg hold, and what a repository could give, read without changing the node.

`index` and `simulate` use apt with configuration, lists and cache of their own in a temporary folder under /run
(`-c`, `Dir::...`): nothing under /etc or /var/lib/apt changes, and a host whose own sources are broken can be asked.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence

from rackwright_facts._parse import (
    apt_index,
    apt_preferences,
    apt_simulate,
    apt_sources,
    dpkg,
    dpkg_verify,
    locks,
)
from rackwright_facts._parse.apt_index import Available
from rackwright_facts._parse.apt_preferences import PreferencesFile
from rackwright_facts._parse.apt_simulate import Simulation
from rackwright_facts._parse.apt_sources import SourceFile
from rackwright_facts._parse.dpkg import Package
from rackwright_facts._parse.dpkg_verify import Verify
from rackwright_facts._parse.locks import Lock
from rackwright_facts._parse.model import Model
from rackwright_facts.look import Section, SectionFact
from rackwright_facts.system import READ_FILE, parse_files


class AptConfiguration(Model):
    """The files that tell apt what to fetch, what to prefer and whom to trust."""

    sources: tuple[SourceFile, ...] = ()
    preferences: tuple[PreferencesFile, ...] = ()
    keyrings: Mapping[str, bytes] = {}
    """Path -> content of the keyrings that are trusted for every repository (apt-key's)."""


class Repository(Model):
    """What one repository offers, asked by the node itself."""

    label: str = ""
    """`Label` of its Release file; what `Pin: release l=` matches."""
    packages: tuple[Available, ...] = ()


class Request(Model):
    """One repository as it would be declared, to be asked before it is."""

    uri: str
    suite: str = "/"
    components: tuple[str, ...] = ()
    key: bytes
    """The binary OpenPGP certificate that has to have signed it."""
    proxy: str | None = None


def _apt_configuration(data: bytes) -> AptConfiguration:
    sources, preferences, keyrings = [], [], {}
    for path, state in parse_files(data).items():
        if state.content is None:
            continue
        if path.startswith("/etc/apt/sources.list"):
            sources.append(apt_sources.parse(path, state.content))
        elif path.startswith("/etc/apt/preferences"):
            preferences.append(apt_preferences.parse(path, state.content))
        else:
            keyrings[path] = state.content
    return AptConfiguration(sources=tuple(sources), preferences=tuple(preferences), keyrings=keyrings)


# Which names apt reads: apt.conf(5), sources.list(5), apt_preferences(5) (preferences.d: no suffix or .pref).
APT: Section[AptConfiguration] = Section(
    key="packages.apt",
    command=f"""{READ_FILE}
cd /etc/apt || exit 127
for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources \
         /etc/apt/preferences /etc/apt/preferences.d/* /etc/apt/trusted.gpg /etc/apt/trusted.gpg.d/*.gpg \
         /etc/apt/trusted.gpg.d/*.asc; do
  case "$f" in /etc/apt/preferences.d/*.pref) ;; /etc/apt/preferences.d/*.*) continue ;; esac
  [ -f "$f" ] && {{ read_file "$f" || exit 1; }}
done; true""",
    parse=_apt_configuration,
)

# Depends is kept only where a set of packages is followed through it: two thousand of them would be most of a look.
INSTALLED: Section[Mapping[str, Package]] = Section(
    key="packages.installed",
    command=(
        "command -v dpkg-query >/dev/null || exit 127; set -o pipefail; dpkg --print-architecture;"
        r" dpkg-query -W -f='${Package}\t${Version}\t${Architecture}\t${db:Status-Want}\t${db:Status-Status}"
        r"\t${db:Status-Eflag}\t${Depends}\t${Provides}\t${Maintainer}\n' | awk -F '\t' -v OFS='\t'"
        r""" '{ driver = $1 ~ /^(cuda-drivers|nvidia|lib(nvidia|cuda)|firmware-nvidia|xserver-xorg-video-nvidia)/ }
        !driver { $9 = "" } !driver && $1 !~ /-[0-9]+-[0-9]+$/ && $1 !~ /^(cuda|nsight)/ { $7 = "" } { print }'"""
    ),
    parse=lambda data: _installed(data.decode(errors="replace")),
)


def _installed(text: str) -> Mapping[str, Package]:
    native, _, lines = text.partition("\n")
    return dpkg.parse_query(lines, native=native)


LISTS: Section[frozenset[str]] = Section(
    key="packages.lists",
    command="ls -1 /var/lib/apt/lists",
    parse=lambda data: frozenset(data.decode(errors="replace").splitlines()),
)

# Updates that dpkg had not merged when it was interrupted have names of digits only (dpkg's lib/dpkg/dbmodify.c).
INTERRUPTED: Section[bool] = Section(
    key="packages.interrupted",
    command="ls -1 /var/lib/dpkg/updates | grep -c '^[0-9][0-9]*$'; true",
    parse=lambda data: int(data) > 0,
)

LOCKS: Section[tuple[Lock, ...]] = Section(
    key="packages.locks",
    command=r"""for f in /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock; do
  [ -e "$f" ] || continue
  inode=$(stat -c %i "$f")
  sed -n "s/^.* \([0-9][0-9]*\) [0-9a-f]*:[0-9a-f]*:$inode 0 EOF.*/\1/p" /proc/locks | while read -r pid; do
    echo "$f $pid $(cat "/proc/$pid/comm" 2>/dev/null)"
  done
done; true""",
    parse=lambda data: locks.parse(data.decode(errors="replace")),
)


def conffiles(package: str) -> Section[frozenset[str]]:
    """The configuration files that purging `package` would remove; absent when dpkg does not know it."""
    return Section(
        key=f"packages.conffiles:{package}",
        command=f"dpkg-query -W -f='${{Conffiles}}\\n' {shlex.quote(package)}",
        parse=lambda data: frozenset(line.split()[0] for line in data.decode().splitlines() if line.strip()),
        absent=(1,),
    )


def damaged(packages: Sequence[str]) -> Section[Verify]:
    """Files of `packages` that are missing or not as they were shipped. Reads them all: ask only when in doubt.

    dpkg does not look at modes: a program that lost its own is found beside.
    """
    names = " ".join(map(shlex.quote, packages))
    return Section(
        key="packages.damaged:" + ",".join(packages),
        command=f"""dpkg --verify {names}
dpkg-query -L {names} | grep '/bin/[^/.]*$' | sort -u | while IFS= read -r f; do
  [ -f "$f" ] && [ ! -x "$f" ] && printf '.M.......   %s\\n' "$f"
done; true""",
        parse=lambda data: dpkg_verify.parse(data.decode(errors="replace")),
        timeout_s=300,
    )


def owners(paths: Sequence[str]) -> Section[Mapping[str, str]]:
    """Path -> the package that owns it."""
    return Section(
        key="packages.owners:" + ",".join(paths),
        command="dpkg-query -S " + " ".join(map(shlex.quote, paths)) + "; true",
        parse=lambda data: {
            path: owner.split(",")[0].partition(":")[0]
            for owner, separator, path in (line.partition(": ") for line in data.decode().splitlines())
            if separator
        },
    )


def fetched(url: str, proxy: str | None) -> Section[bytes]:
    """The content of `url`, fetched by the node with apt's own downloader: no curl needed, apt's proxy applies."""
    return Section(
        key=_key("packages.fetched", url, proxy),
        command=f"""{_private(proxy)}
/usr/lib/apt/apt-helper -c "$p/apt.conf" download-file {shlex.quote(url)} "$p/fetched" >&2 && cat "$p/fetched" """,
        parse=lambda data: data,
        timeout_s=60,
        elsewhere=True,
    )


def _key(name: str, *arguments: object) -> str:
    return f"{name}:{hashlib.sha256(repr(arguments).encode()).hexdigest()}"


def _proxy_lines(proxy: str | None) -> str:
    return "".join(f'Acquire::{method}::Proxy "{proxy}";\n' for method in ("http", "https")) if proxy else ""


def _private(proxy: str | None) -> str:
    # The host's own hooks (Post-Invoke and the like) would act outside the folder: they are cleared.
    conf = f"""#clear APT::Update;
#clear DPkg;
#clear Dir::Etc::Trusted;
Dir::State::Lists "P/lists";
Dir::Cache "P/cache";
Dir::Etc::SourceList "P/sources.list";
Dir::Etc::SourceParts "P/sources.list.d";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "P/preferences.d";
Dir::Etc::Trusted "/dev/null";
Dir::Etc::TrustedParts "P/trusted.d";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "15";
Acquire::https::Timeout "15";
APT::Get::List-Cleanup "0";
APT::Sandbox::User "root";
{_proxy_lines(proxy)}"""
    return f"""umask 022
p=$(mktemp -d /run/rackwright-apt.XXXXXXXX) || exit 97
trap 'rm -rf "$p"' EXIT
mkdir -p "$p/lists/partial" "$p/cache/archives/partial" "$p/sources.list.d" "$p/preferences.d" "$p/trusted.d" || exit 97
printf %s {shlex.quote(conf)} | sed "s#\\"P/#\\"$p/#" >"$p/apt.conf"
"""


def _refresh(request: Request | None, *, everything: bool = False) -> str:
    if request is None:
        own = "-o Dir::Etc::TrustedParts=/etc/apt/trusted.gpg.d"
        return f'apt-get -c "$p/apt.conf" update -qq -o APT::Update::Error-Mode=any {own} >&2 || exit\n'
    key = base64.b64encode(request.key).decode()
    source = " ".join(("deb [signed-by=KEY]", request.uri, request.suite, *request.components))
    parts = "" if everything else "-o Dir::Etc::SourceParts=/dev/null"
    return f"""printf %s {key} | base64 -d >"$p/key.gpg"
printf '%s\\n' {shlex.quote(source)} | sed "s#KEY#$p/key.gpg#" >"$p/sources.list"
apt-get -c "$p/apt.conf" update -qq -o APT::Update::Error-Mode=any {parts} >&2 || exit
"""


def index(
    request: Request | None, names: Sequence[str], *, sources: Mapping[str, bytes] | None = None
) -> Section[Repository]:
    """What the repository offers of the packages whose names match one of the extended regular expressions `names`.

    Without a `request` the node's own `sources` (file name -> content) are asked instead, keyrings included. The
    reading is an error when the node cannot fetch them, or when a signature is not by the key.
    """
    pattern = "|".join(f"({name})" for name in names)
    fields = "Package|Version|Architecture|Depends|Pre-Depends|Installed-Size|Size"
    private = _private(request.proxy if request else None)
    before = private + _put("sources.list.d", sources or {}) + _refresh(request)
    return Section(
        key=_key("packages.index", request, names, sorted((sources or {}).items())),
        command=f"""{before}
cat "$p"/lists/*Release 2>/dev/null | sed -n 's/^Label: *//p' | head -n 1
for f in "$p"/lists/*_Packages*; do
  [ -e "$f" ] && /usr/lib/apt/apt-helper cat-file "$f"
done | awk -v want={shlex.quote(f"^({pattern})$")} '
  /^$/ {{ if (keep) printf "%s\\n", text; text = ""; keep = 0; next }}
  /^Package: / {{ keep = ($2 ~ want) }}
  /^({fields}): / {{ text = text $0 "\\n" }}
  END {{ if (keep) printf "%s\\n", text }}'""",
        parse=_repository,
        timeout_s=120,
        elsewhere=True,
    )


def _repository(data: bytes) -> Repository:
    label, _, text = data.decode(errors="replace").partition("\n")
    return Repository(label=label, packages=apt_index.parse_packages(text))


def _put(folder: str, files: Mapping[str, bytes]) -> str:
    return "".join(
        f'printf %s {base64.b64encode(content).decode()} | base64 -d >"$p/{folder}/"{shlex.quote(name)}\n'
        for name, content in files.items()
    )


def simulate(
    request: Request | None,
    *,
    sources: Mapping[str, bytes],
    preferences: Mapping[str, bytes],
    install: Sequence[str],
    purge: Sequence[str] = (),
    reinstall: bool = False,
    refresh_all: bool = False,
) -> Section[Simulation]:
    """What apt would do, with `sources` and `preferences` (name -> content) beside the requested repository, if any.

    `install` holds `name=version`, or names alone. The host's own lists stand beside the requested repository's fresh
    ones; with `refresh_all` (a host that has no lists yet) the other sources are fetched too.
    """
    files = _put("sources.list.d", sources) + _put("preferences.d", preferences)
    wanted = " ".join([*map(shlex.quote, install), *(shlex.quote(f"{name}-") for name in purge)])
    options = "--reinstall" if reinstall else ""
    return Section(
        key=_key(
            "packages.simulate",
            request,
            sorted(sources.items()),
            sorted(preferences.items()),
            tuple(install),
            tuple(purge),
            reinstall,
            refresh_all,
        ),
        command=f"""{_private(request.proxy if request else None)}{files}{_refresh(request, everything=refresh_all)}
ln -s /var/lib/apt/lists/*_* "$p/lists/" 2>/dev/null
apt-get -c "$p/apt.conf" -s -V -q install --no-install-recommends --allow-downgrades \
  --allow-change-held-packages {options} {wanted} 2>&1; true""",
        parse=lambda data: apt_simulate.parse(data.decode(errors="replace")),
        timeout_s=180,
    )


class Installed(SectionFact):
    """Reading of name -> `Package` for all that dpkg knows."""

    def command(self) -> str:
        """One section, no arguments."""
        return self.ask(INSTALLED)


class Apt(SectionFact):
    """Reading of the node's `AptConfiguration`."""

    def command(self) -> str:
        """One section, no arguments."""
        return self.ask(APT)


class Locks(SectionFact):
    """Reading of who holds the locks of dpkg and apt."""

    def command(self) -> str:
        """One section, no arguments."""
        return self.ask(LOCKS)
