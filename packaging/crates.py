"""The crates of which the program is made, as Cargo resolves them for one target."""

import json
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PROGRAM = "outpost"


@dataclass(frozen=True)
class Crate:
    """A package of the dependency graph."""

    name: str
    version: str
    # An SPDX expression; crates that only have a file with their own license have none.
    license: str | None
    license_file: str | None
    authors: tuple[str, ...]
    description: str
    repository: str | None
    # Where its sources are.
    folder: Path
    # sha256 of the archive in the registry; crates of this repository have none.
    checksum: str | None
    # The identifiers (`purl`) of its dependencies.
    dependencies: tuple[str, ...]

    @property
    def is_ours(self) -> bool:
        return self.checksum is None

    @property
    def purl(self) -> str:
        return purl(self.name, self.version)


def purl(name: str, version: str) -> str:
    return f"pkg:cargo/{name}@{version}"


def linked_crates(target: str) -> list[Crate]:
    """The program's crate and everything that it depends on, without dependencies of build scripts and tests, by name."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    edges = {node["id"]: normal_dependencies(node) for node in metadata["resolve"]["nodes"]}
    root = next(id for id, package in packages.items() if package["name"] == PROGRAM and package["source"] is None)
    checksums = locked_checksums()
    crates = [
        crate(packages[id], [packages[other] for other in edges[id]], checksums) for id in reachable(root, edges)
    ]
    return sorted(crates, key=lambda crate: (crate.name, crate.version))


def normal_dependencies(node: dict) -> list[str]:
    return [d["pkg"] for d in node["deps"] if any(kind["kind"] is None for kind in d["dep_kinds"])]


def reachable(root: str, edges: dict[str, list[str]]) -> set[str]:
    found, waiting = {root}, [root]
    while waiting:
        for other in edges[waiting.pop()]:
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def locked_checksums() -> dict[tuple[str, str], str]:
    lock = tomllib.loads((REPOSITORY / "Cargo.lock").read_text())
    return {(p["name"], p["version"]): p["checksum"] for p in lock["package"] if "checksum" in p}


def crate(package: dict, dependencies: list[dict], checksums: dict) -> Crate:
    name, version = package["name"], package["version"]
    return Crate(
        name=name,
        version=version,
        # Old crates separate alternatives with a slash.
        license=" OR ".join(part.strip() for part in package["license"].split("/")) if package["license"] else None,
        license_file=package["license_file"],
        authors=tuple(package["authors"]),
        description=" ".join((package["description"] or "").split()),
        repository=package["repository"],
        folder=Path(package["manifest_path"]).parent,
        checksum=checksums.get((name, version)) if package["source"] else None,
        dependencies=tuple(sorted({purl(d["name"], d["version"]) for d in dependencies})),
    )
