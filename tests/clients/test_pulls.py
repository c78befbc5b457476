"""Ollama's package pulls a model from a hub: the small one of the browser tests."""

import json
import os
import subprocess
from contextlib import contextmanager

import ollama
import pytest
from conftest import ROOT, run_server

HUB = """
import { readFileSync } from "node:fs";
import { startHub } from %(hub)s;
import { writeTinyModel } from %(model)s;
const [folder] = process.argv.slice(1);
writeTinyModel(folder, "tiny");
console.log((await startHub(readFileSync(`${folder}/tiny/tiny.gguf`))).url);
"""
MODEL = "hf.co/u/tiny-GGUF:F32"


@contextmanager
def run_hub(folder):
    """Runs the hub, and yields its address."""
    modules = {"hub": "fake-hub.mjs", "model": "tiny-model.mjs"}
    uris = {name: json.dumps((ROOT / "tests/browser" / file).as_uri()) for name, file in modules.items()}
    command = ["node", "--input-type=module", "-e", HUB % uris, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pulls")
    (folder / "models").mkdir()
    with run_hub(folder) as url:
        hub = {"HF_ENDPOINT": url, "HF_TOKEN": "", "HF_HUB_OFFLINE": "", "NO_PROXY": "*", "HOME": str(folder)}
        arguments = ["--no-pull", "--allow-pull", "--models", str(folder / "models")]
        with run_server(folder / "data", arguments, {**os.environ, **hub}) as server:
            headers = {"Authorization": f"Bearer {server.admin_key}"}
            yield ollama.Client(host=server.url, headers=headers)


def test_a_pull_reports_its_progress_and_the_model_answers(local):
    parts = list(local.pull(MODEL, stream=True))
    statuses = list(dict.fromkeys(part.status for part in parts))
    layer = statuses[1]
    assert layer.startswith("pulling ") and len(layer) == len("pulling ") + 12
    assert statuses == ["pulling manifest", layer, "verifying sha256 digest", "writing manifest", "success"]
    whole = [part for part in parts if part.status == layer][-1]
    assert whole.completed == whole.total > 100_000 and whole.digest.startswith("sha256:")
    assert [model.model for model in local.list().models] == ["tiny-f32:latest"]
    answer = local.chat("tiny-f32", [{"role": "user", "content": "hello"}], options={"num_predict": 4})
    assert answer.eval_count > 0


def test_a_pull_can_be_awaited_as_a_whole(local):
    assert local.pull(MODEL).status == "success"


def test_errors_are_those_of_the_hub(local):
    with pytest.raises(ollama.ResponseError, match="no repository 'u/none'"):
        local.pull("hf.co/u/none")
    with pytest.raises(ollama.ResponseError, match="no repository 'u/none'"):
        list(local.pull("hf.co/u/none", stream=True))
