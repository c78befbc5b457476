#!/usr/bin/env python3
"""Writes the license texts of everything in the program: THIRD-PARTY-LICENSES.

Fails if a crate has a license that is not in ALLOWED, or no license text.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from crates import REPOSITORY, Crate, linked_crates

# SPDX identifiers of licenses under which the program may contain code.
ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT",
    "MIT-0", "MPL-2.0", "Unicode-3.0", "Unlicense", "Zlib",
}  # fmt: skip
# Crates with another license, each with the reason why that is acceptable.
EXCEPTIONS = {
    ("shine-rs", "LGPL-2.0"): "the source of the whole program is published, so that it can be built with another version",
}
LICENSE_FILE = re.compile(r"^(licen[cs]e|copying|notice|unlicen[cs]e|copyright)", re.IGNORECASE)
MAX_TEXT_BYTES = 1 << 20

INTRODUCTION = """\
Outpost is under the Apache License 2.0. It contains the libraries below, each under its own license.
The source of a crate is at https://crates.io/crates/NAME/VERSION; this is also the source code that the Mozilla Public
License 2.0 and the GNU Library General Public License 2 require to be available.
"""


class LicenseError(Exception):
    """A library that must not be in the program, or cannot be attributed."""


def is_allowed(expression: str) -> bool:
    """Whether an SPDX expression can be met with licenses of ALLOWED alone."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression)

    def alternatives() -> bool:
        allowed = conditions()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            # Both sides are parsed, whatever the first one is.
            allowed = conditions() or allowed
        return allowed

    def conditions() -> bool:
        allowed = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            allowed = one() and allowed
        return allowed

    def one() -> bool:
        token = tokens.pop(0)
        if token == "(":
            allowed = alternatives()
            tokens.pop(0)
            return allowed
        if tokens and tokens[0] == "WITH":
            tokens.pop(0)
            token = f"{token} WITH {tokens.pop(0)}"
        return token in ALLOWED

    return alternatives()


def check(crate: Crate) -> None:
    """Raises LicenseError if the program must not contain a crate."""
    if crate.license is None:
        raise LicenseError(f"{crate.name} {crate.version} names no license")
    if not is_allowed(crate.license) and (crate.name, crate.license) not in EXCEPTIONS:
        raise LicenseError(f"{crate.name} {crate.version} is under {crate.license}, which is not in the list of licenses")


def own_texts(crate: Crate) -> list[str]:
    """The license files of a crate, and the one that its manifest names."""
    files = {file for file in crate.folder.iterdir() if LICENSE_FILE.match(file.name) and file.is_file()}
    if crate.license_file:
        files.add((crate.folder / crate.license_file).resolve())
    texts = [file.read_text(errors="replace") for file in sorted(files) if file.stat().st_size <= MAX_TEXT_BYTES]
    return [normalized for text in texts if (normalized := normalize(text))]


def normalize(text: str) -> str:
    """The same text from two crates differs in line ends and blank lines only."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def texts_of(crate: Crate, crates: list[Crate], texts: dict[str, list[str]]) -> list[str]:
    """The texts of a crate; without own ones, those of another crate of its repository, or the Apache License."""
    if found := texts[crate.purl]:
        return found
    siblings = [other for other in crates if crate.repository and same_repository(other, crate)]
    for other in siblings:
        if texts[other.purl] and other.license == crate.license:
            return texts[other.purl]
    if crate.is_ours or "Apache-2.0" in re.split(r" OR ", crate.license or ""):
        return [normalize((REPOSITORY / "LICENSE").read_text())]
    raise LicenseError(f"{crate.name} {crate.version} ({crate.license}) has no license text, nor has {crate.repository}")


def same_repository(a: Crate, b: Crate) -> bool:
    def plain(crate: Crate) -> str:
        return re.sub(r"(/tree/.*|\.git|/)$", "", crate.repository or "")

    return plain(a) == plain(b)


def standard_library() -> tuple[str, list[str]]:
    """Rust's standard library, of the toolchain that builds the program."""
    sysroot = Path(subprocess.run(["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True).stdout.strip())
    version = subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    folder = sysroot / "share/doc/rust/licenses"
    texts = [normalize((folder / name).read_text()) for name in ("Apache-2.0.txt", "MIT.txt")]
    return f"Rust standard library {version} (MIT OR Apache-2.0)", texts


def document(crates: list[Crate]) -> str:
    """All texts, each once, below the names of the libraries that have it."""
    texts = {crate.purl: own_texts(crate) for crate in crates}
    users: dict[str, list[str]] = {}
    entries = [(f"{c.name} {c.version} ({c.license})", texts_of(c, crates, texts)) for c in crates if not c.is_ours]
    entries.append(standard_library())
    entries.append(("preact and htm, in the dashboard", [normalize((REPOSITORY / "assets/vendor/LICENSES.txt").read_text())]))
    entries.append(("The image model pictogram", [normalize((REPOSITORY / "models/pictogram/NOTICE.md").read_text())]))
    for name, found in entries:
        for text in found:
            users.setdefault(text, []).append(name)
    sections = [INTRODUCTION]
    for (name, license), reason in EXCEPTIONS.items():
        sections.append(f"{name} is under {license}: {reason}.\n")
    for text, names in sorted(users.items(), key=lambda item: item[1]):
        sections.append("=" * 100 + "\n" + "\n".join(names) + "\n" + "-" * 100 + "\n" + text + "\n")
    return "\n".join(sections)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="x86_64-unknown-linux-gnu")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    crates = linked_crates(arguments.target)
    try:
        for crate in crates:
            check(crate)
        arguments.to.write_text(document(crates))
    except LicenseError as error:
        sys.exit(f"packaging/licenses.py: {error}")
    print(f"{arguments.to}: {len(crates)} crates", file=sys.stderr)


if __name__ == "__main__":
    main()
