"""An example site: the deploy and inventory files that this package carries, for `rackwright init`.

One source: a checkout has them at its top, a wheel under `rackwright/_site` (pyproject.toml, force-include).
"""

from __future__ import annotations

from pathlib import Path

from rackwright.errors import HostFailure, Problem, UsageMistake

# What a site starts with, by the path that it has there.
FILES = (
    "inventories/cluster.yaml",
    "inventories/cluster.schema.json",
    "inventories/cluster.py",
    "deploys/cuda.py",
)


def source() -> Path:
    """Return the folder that holds `deploys` and `inventories`."""
    package = Path(__file__).parent
    for folder in (package / "_site", package.parents[1]):
        if (folder / "deploys").is_dir():
            return folder
    raise HostFailure(Problem("the example site is not in this installation", str(package), "install the wheel again"))


def write(folder: Path) -> list[Path]:
    """Write the example site into `folder` and return its files; nothing that is there is touched."""
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise UsageMistake(
            *(
                Problem("this file is there already", str(folder / name), "name another folder, or move it")
                for name in there
            )
        )
    contents = {name: (source() / name).read_bytes() for name in FILES}
    written = []
    try:
        for name, content in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)
            written.append(path)
    except OSError as error:
        for path in written:
            path.unlink()
        where = str(error.filename or folder)
        raise UsageMistake(
            Problem(f"the site cannot be written: {error.strerror}", where, "name a folder of yours")
        ) from None
    return written
