"""Runs the blocks of docs/clients.md as they stand, with the address of the test server, and checks the lists of what is not served."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

PAGE = (ROOT / "docs/clients.md").read_text()
ADDRESS = "http://127.0.0.1:8080"
TARGET = ROOT / "target"
NODE = ROOT / "tests/clients/node"
# The other Python packages share the environment of this suite.
ENVIRONMENTS = {name: "clients-frameworks" for name in ("LlamaIndex", "Instructor", "LiteLLM", "DSPy")}
ENVIRONMENTS |= {name: "clients-programs" for name in ("Outlines", "Guidance", "any-llm", "Inspect")}
TOO_LARGE = {"Open WebUI", "Home Assistant", "Claude Code", "Codex", "GuideLLM", "vllm bench"}
VECTOR_LENGTH = re.compile(r"\b384\b")


def sections():
    """The name and text of each section."""
    _, *rest = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    return {name: text for name, text in (section.split("\n", 1) for section in rest)}


CLIENTS = {name: text for name, text in sections().items() if name != "What is not served"}


def blocks(text):
    """The language and code of each block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


BLOCKS = [(name, language, code) for name, text in CLIENTS.items() for language, code in blocks(text) if language in ("python", "js", "sh")]


def command(name, language, code):
    """The program that runs a block, its standard input and its folder, if it matters."""
    if language == "python":
        python = TARGET / ENVIRONMENTS[name] / "bin/python" if name in ENVIRONMENTS else sys.executable
        return [str(python), "-c", code], None, None
    if language == "js":
        return ["node", "--input-type=module", "-"], code, NODE
    return ["bash", "-euo", "pipefail", "-c", code], None, None


@pytest.mark.parametrize("name,language,code", BLOCKS, ids=[f"{name} ({language})" for name, language, _ in BLOCKS])
def test_a_block_runs(server, tmp_path, name, language, code):
    if name == "aider" and sys.version_info >= (3, 13):
        pytest.skip("aider does not support this version of Python")
    assert ADDRESS in code
    program, text, folder = command(name, language, code.replace(ADDRESS, server.url))
    folders = [TARGET / "clients-lm-eval/bin", TARGET / "clients-llm/bin", TARGET / "clients-aider/bin", NODE / "node_modules/.bin"]
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    own = {"HOME": str(tmp_path), "PATH": path, "OUTPOST_KEY": server.admin_key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "XDG_", "LLM_"))}
    done = subprocess.run(program, input=text, cwd=folder or tmp_path, env=kept | own, capture_output=True, text=True, timeout=300)
    output = done.stdout + done.stderr
    assert done.returncode == 0 and done.stdout.strip(), output
    assert "Traceback" not in output, output
    if "all-minilm" in code and language != "sh":
        assert VECTOR_LENGTH.search(done.stdout), output


def test_every_client_has_a_block():
    assert {name for name, _, _ in BLOCKS} == set(CLIENTS) - TOO_LARGE - {"async-openai"}


def pins():
    """The packages that the suites install, with the first two numbers of their versions."""
    folder = Path(__file__).parent
    found = set(json.loads((folder / "node/package.json").read_text())["dependencies"].items())
    found |= set(re.findall(r'^([\w-]+) = .*version = "=([\d.]+)"', (folder / "rust/Cargo.toml").read_text(), re.MULTILINE))
    for file in folder.glob("requirements*.txt"):
        found |= set(re.findall(r"^([\w-]+)(?:\[\w+\])?==([\d.]+)", file.read_text(), re.MULTILINE))
    return {(package, ".".join(version.split(".")[:2])) for package, version in found}


def test_the_table_lists_the_pinned_versions():
    [table] = re.findall(r"^\| client \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    _, _, *rows = [[cell.strip() for cell in row.split("|")] for row in table.strip().splitlines()]
    assert [re.search(r"\[(.*)\]", row[1])[1] for row in rows] == list(CLIENTS)
    listed = {tuple(pin.split(" ")) for row in rows if row[2] and row[2] != "not tested" for pin in row[2].split(", ")}
    assert len(listed) > 15 and listed <= pins()


def test_what_is_not_served(http):
    paths = re.findall(r"`(/[\w/]+)`", sections()["What is not served"])
    served = {"/conversations"}
    assert len(paths) >= 8
    for path in sorted(set(paths) - served):
        # A path may have the form of a resource's, which has other methods.
        assert http.post("/openai/v1" + path, json={}).status_code in (404, 405), path
