#!/usr/bin/env python3
"""Validates a CycloneDX document against the published schema and checks that its references are consistent.

Needs the Python package cyclonedx-python-lib[validation].
"""

import json
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator


def references(components: list[dict]) -> list[str]:
    return [ref for c in components for ref in [c["bom-ref"], *references(c.get("components", []))]]


def main() -> None:
    text = Path(sys.argv[1]).read_text()
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"not valid: {error}")
    document = json.loads(text)
    known = references([document["metadata"]["component"], *document["components"]])
    assert len(known) == len(set(known)), "a reference is used twice"
    for entry in document["dependencies"]:
        unknown = {entry["ref"], *entry["dependsOn"]} - set(known)
        assert not unknown, f"unknown references: {unknown}"
    crates = [c for c in document["components"] if c["bom-ref"].startswith("pkg:cargo/")]
    unlicensed = [c["name"] for c in document["components"] if not c.get("licenses")]
    assert not unlicensed, f"without a license: {unlicensed}"
    print(f"{sys.argv[1]}: valid; {len(document['components'])} components, {len(crates)} of them crates")


if __name__ == "__main__":
    main()
