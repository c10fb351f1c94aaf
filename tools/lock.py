"""The lock: hashes of every file of each version that `constraints.txt` pins, from the package index that pip uses.

``python tools/lock.py`` writes `lock.txt`; ``python tools/lock.py audit`` lists the pins that are not the newest. Each
line of the lock ends with the extras that need the package; `make` installs the lines of those that it wants.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# pip's own, so that its configuration decides which index is read.
from pip._internal.commands import create_command
from pip._internal.index.collector import parse_links
from pip._internal.models.link import Link
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from pip._vendor.packaging.version import Version

ROOT = Path(__file__).parents[1]
PINS, LOCK = ROOT / "constraints.txt", ROOT / "lock.txt"
ALWAYS = "view"  # the extra that `make setup` installs
PLATFORMS = (("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"), ("darwin", "Darwin", "arm64"))


def pins() -> dict[str, Version]:
    """The pinned version of each package."""
    lines = [line.split("==") for line in PINS.read_text().splitlines() if "==" in line]
    return {name: Version(version) for name, version in lines}


def listed(names: list[str]) -> dict[str, dict[str, tuple[Version, Link]]]:
    """The files that the index has of each package, by name."""
    command = create_command("download")
    options, _ = command.parse_args([])

    def files(name: str) -> dict[str, tuple[Version, Link]]:
        found = {}
        for address in finder.search_scope.get_index_urls_locations(name):
            page = finder._link_collector.fetch_response(Link(address))
            for link in parse_links(page) if page else ():
                parse = parse_wheel_filename if link.is_wheel else parse_sdist_filename
                try:
                    found[link.filename] = (parse(link.filename)[1], link)
                except ValueError:  # an installer of another kind, or of long ago
                    continue
        return found

    with command._build_session(options) as session, ThreadPoolExecutor(8) as threads:
        finder = command._build_package_finder(options, session)
        return dict(zip(names, threads.map(files, names), strict=True))


def fits(name: str) -> bool:
    """The wheel is for Python 3.11 on Linux or macOS."""
    return any(
        (tag.interpreter in ("py3", "py311", "cp311") or (tag.abi == "abi3" and int(tag.interpreter[3:] or 0) <= 11))
        and (tag.platform == "any" or tag.platform.startswith(("manylinux", "macosx")))
        and tag.platform.endswith(("any", "x86_64", "aarch64", "arm64", "universal2"))
        for tag in parse_wheel_filename(name)[3]
    )


def hashes(files: dict[str, tuple[Version, Link]], version: Version) -> list[str]:
    """The hashes of a version's wheels, or of its source where there is no wheel."""
    links = [link for found, link in files.values() if found == version]
    fitting = [link for link in links if link.is_wheel and fits(link.filename)] or links
    return sorted({f"--hash=sha256:{link.hash}" for link in fitting if link.hash_name == "sha256"})


def needed(extras: list[str]) -> dict[str, set[str]]:
    """The extras that need each package; `ALWAYS` alone where that one does."""
    words = ["install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-", "--constraint", str(PINS)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, f"{ROOT}[{','.join(extras)}]"], stdout=subprocess.PIPE, check=True
    )
    reported = [entry["metadata"] for entry in json.loads(done.stdout)["install"]]
    needs = {canonicalize_name(m["name"]): [*map(Requirement, m.get("requires_dist", ()))] for m in reported}

    def closure(extra: str) -> set[str]:
        seen: set[tuple[str, str]] = set()
        todo = [("qdhuac", ""), ("qdhuac", extra), ("setuptools", "")]  # setuptools builds the package
        while todo:
            if (one := todo.pop()) in seen:
                continue
            seen.add(one)
            for requirement in needs.get(one[0], ()):
                if any(wanted(requirement, one[1], platform) for platform in PLATFORMS):
                    name = canonicalize_name(requirement.name)
                    todo += [(name, ""), *((name, inner) for inner in requirement.extras)]
        return {name for name, _ in seen} - {"qdhuac"}

    packages = {extra: closure(extra) for extra in extras}
    return {
        name: {ALWAYS} if name in packages[ALWAYS] else {extra for extra in extras if name in packages[extra]}
        for name in sorted(set().union(*packages.values()))
    }


def wanted(requirement: Requirement, extra: str, platform: tuple[str, str, str]) -> bool:
    """The requirement holds on the platform."""
    environment: dict[str, Any] = dict(
        zip(("sys_platform", "platform_system", "platform_machine"), platform, strict=True)
    )
    return requirement.marker is None or requirement.marker.evaluate({**environment, "extra": extra})


def main() -> int:
    pinned = pins()
    files = listed(list(pinned))
    if sys.argv[1:] == ["audit"]:
        for name, version in pinned.items():
            newest = max((v for v, _ in files[name].values() if not v.is_prerelease), default=version)
            if newest > version:
                print(f"{name:40} {version!s:16} newest {newest}")
        return 0
    extras = list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    lines = [
        "# Written by `make lock` from constraints.txt: hashes of every file, and the extras that need each package."
    ]
    for name, those in needed(extras).items():
        if name not in pinned:
            print(f"not pinned, needed by {', '.join(sorted(those))}: {name}", file=sys.stderr)
            continue
        found = hashes(files[name], pinned[name])
        if not found:
            raise SystemExit(f"{name}=={pinned[name]}: the index lists no file with a hash")
        lines.append(f"{name}=={pinned[name]} {' '.join(found)}  # {' '.join(sorted(those))}")
    LOCK.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
