"""Imports run one way (CONTRIBUTING.md, "The house"), and a file is one thing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_FILES = sorted(
    path for folder in ("src", "facts", "deploys", "inventories") for path in (_ROOT / folder).rglob("*.py")
)

# Who may not be imported, by the beginning of the importer's name; the longest beginning that fits counts.
_FORBIDDEN = {
    "rackwright_facts._parse": ("pyinfra", "rackwright.", "rackwright_facts.look"),
    "rackwright_facts": ("rackwright.",),
    "rackwright.errors": ("rackwright.", "rackwright_facts", "pyinfra"),
    "rackwright.change": (
        "pyinfra",
        "rackwright.runtime",
        "rackwright.operations",
        "rackwright.plan",
        "rackwright.lab",
    ),
    "rackwright.config": ("pyinfra", "rackwright.operations", "rackwright.lab", "rackwright.plan", "rackwright_facts"),
    "rackwright.settings": ("pyinfra", "rackwright.operations", "rackwright.lab", "rackwright.plan"),
    "rackwright.inventory": ("pyinfra", "rackwright.operations", "rackwright.lab", "rackwright.plan"),
    "rackwright.sources": ("pyinfra", "rackwright.operations", "rackwright.lab", "rackwright.plan"),
    "rackwright.operations": ("rackwright.plan", "rackwright.lab", "rackwright.report", "rackwright.inventory"),
    "rackwright.lab": ("pyinfra", "rackwright.operations", "rackwright.plan", "rackwright.runtime"),
    "rackwright.report_table": ("pyinfra", "rackwright.plan"),
}
_NOBODY_IMPORTS = ("deploys", "inventories", "rackwright.cli")


def _name(path: Path) -> str:
    parts = path.relative_to(_ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] in ("src", "facts") else parts).removesuffix(".__init__")


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", _FILES, ids=_name)
def test_imports_run_one_way(path: Path) -> None:
    name = _name(path)
    fitting = [prefix for prefix in _FORBIDDEN if name == prefix or name.startswith(f"{prefix}.")]
    forbidden = _FORBIDDEN[max(fitting, key=len)] if fitting else ()
    bad = {one for one in _imports(path) if one.startswith(forbidden)} if forbidden else set()
    # A package's own parts, and the entry point, may be imported from within.
    bad |= {
        one for one in _imports(path)
        if one.startswith(_NOBODY_IMPORTS) and not name.startswith(("rackwright.cli", "rackwright.__main__"))
    }  # fmt: skip
    assert not bad


@pytest.mark.parametrize("path", _FILES, ids=_name)
def test_a_file_is_one_thing(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 450


@pytest.mark.parametrize("path", [path for path in _FILES if path.parts[-2] == "deploys"], ids=_name)
def test_a_deploy_is_plain(path: Path) -> None:
    """No ifs, no loops, no facts: an if by host puts one host's step under another's name in pyinfra's order."""
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, (ast.If, ast.For, ast.While, ast.IfExp, ast.Try, ast.FunctionDef)), ast.dump(node)
    assert "get_fact" not in path.read_text()
