#!/usr/bin/env python3
"""Writes a software bill of materials in CycloneDX 1.6 (JSON): crates, libraries of the dashboard, models.

The same commit makes the same document: its time is SOURCE_DATE_EPOCH, and it has no random serial number.
"""

import argparse
import json
import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import tomllib
from crates import PROGRAM, REPOSITORY, Crate, linked_crates

# In the program itself; others are only in the bundle.
EMBEDDED_MODEL = "pictogram"


def component(crate: Crate) -> dict:
    found = {"type": "library", "bom-ref": crate.purl, "name": crate.name, "version": crate.version}
    if crate.description:
        found["description"] = crate.description
    if crate.checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": crate.checksum}]
    if crate.license:
        found["licenses"] = [{"expression": crate.license}]
    if not crate.is_ours:
        found["purl"] = crate.purl
        found["externalReferences"] = [{"type": "distribution", "url": f"https://crates.io/crates/{crate.name}/{crate.version}"}]
    return found


def standard_library() -> dict:
    version = subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    return {
        "type": "library",
        "bom-ref": f"rust-std@{version}",
        "name": "rust-std",
        "version": version,
        "description": "Rust standard library",
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
        "externalReferences": [{"type": "vcs", "url": "https://github.com/rust-lang/rust"}],
    }


def dashboard_libraries() -> list[dict]:
    """The rows of the table in assets/vendor/README.md; a package may be in several files."""
    rows = re.findall(r"^\| `[^`]+` \| (\S+) \| (\S+) \| .* \| (\S+) \|$", (REPOSITORY / "assets/vendor/README.md").read_text(), re.M)
    found = {}
    for name, version, license in rows:
        purl = f"pkg:npm/{name}@{version}"
        found[purl] = {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": version,
            "licenses": [{"expression": license}],
            "purl": purl,
        }
    return list(found.values())


def models(names: list[str]) -> list[dict]:
    """Models of the catalog, with the sha256 of each of their files."""
    catalog = {model["name"]: model for model in tomllib.loads((REPOSITORY / "models/catalog.toml").read_text())["model"]}
    return [model_component(catalog[name]) for name in names]


def model_component(model: dict) -> dict:
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model:{model['name']}",
        "name": model["name"],
        "description": model["description"],
        # The catalog has SPDX identifiers in lower case.
        "licenses": [{"license": {"name": model["license"]}}],
        "components": [
            {
                "type": "file",
                "bom-ref": f"model:{model['name']}/{file['name']}",
                "name": file["name"],
                "hashes": [{"alg": "SHA-256", "content": file["sha256"]}],
            }
            for file in model["files"]
        ],
    }


def document(target: str, model_names: list[str]) -> dict:
    crates = linked_crates(target)
    program = next(crate for crate in crates if crate.name == PROGRAM)
    extra = [standard_library(), *dashboard_libraries(), *models(sorted({EMBEDDED_MODEL, *model_names}))]
    dependencies = [{"ref": crate.purl, "dependsOn": list(crate.dependencies)} for crate in crates if crate is not program]
    own = {"ref": program.purl, "dependsOn": sorted([*program.dependencies, *(other["bom-ref"] for other in extra)])}
    time = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {**component(program), "type": "application", "properties": [{"name": "target", "value": target}]},
        },
        "components": [component(crate) for crate in crates if crate is not program] + extra,
        "dependencies": [own, *dependencies],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="x86_64-unknown-linux-gnu")
    parser.add_argument("--model", action="append", default=[], help="a model of the catalog that is delivered, too")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    arguments.to.write_text(json.dumps(document(arguments.target, arguments.model), indent=1) + "\n")


if __name__ == "__main__":
    main()
