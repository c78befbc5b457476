"""The benchmarks start the server, and the part of them that needs no other package runs."""

import os
import subprocess
import sys

import pytest

from conftest import ROOT

BINARY = os.environ.get("OUTPOST_BIN", str(ROOT / "target/debug/outpost"))
SCRIPTS = sorted([*(ROOT / "benches").glob("*.py"), *(ROOT / "benches/peers").glob("*.py")])
# Packages that the benchmarks compare with or measure with. They are not installed here.
PEERS = ("numpy", "soundfile", "psutil", "scipy", "aiohttp", "asyncpg")


def run(script, *arguments):
    return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=300, cwd=ROOT)


@pytest.mark.parametrize("measure", ["chat of 1 token", "GET /v1/me"])
def test_two_builds_are_compared(measure):
    compared = run(ROOT / "benches/compare_builds.py", BINARY, BINARY, "--rounds", "1", "--only", measure)
    assert compared.returncode == 0, compared.stderr
    assert compared.stdout.splitlines()[-1].startswith(f"| {measure}"), compared.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_each_benchmark_shows_its_options(script):
    if "argparse" not in script.read_text():
        pytest.skip("a module of other benchmarks")
    shown = run(script, "--help")
    missing = [name for name in PEERS if f"No module named '{name}'" in shown.stderr]
    if missing:
        pytest.skip(f"needs {missing[0]}")
    assert shown.returncode == 0 and "usage:" in shown.stdout, shown.stderr
