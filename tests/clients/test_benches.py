"""Every benchmark runs with `--smoke`: with few requests, the models of CI, and the peers that are installed here."""

import os
import subprocess
import sys

import pytest

from tiny_models import ROOT

BINARY = os.environ.get("OUTPOST_BIN", str(ROOT / "target/debug/outpost"))
FILES = sorted([*(ROOT / "benches").glob("*.py"), *(ROOT / "benches/peers").glob("*.py")])
# The other files are modules of these.
SCRIPTS = [file for file in FILES if "__main__" in file.read_text()]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_benchmark_runs(script):
    command = [sys.executable, str(script), "--smoke"]
    done = subprocess.run(command, env=os.environ | {"OUTPOST_BIN": BINARY}, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "smoke run: done", done.stdout
