"""lm-eval: loglikelihood, perplexity and generation tasks give what transformers gives for the same weights."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT, run_server

TASKS = ROOT / "tests/fixtures/lm_eval"
BIN = ROOT / "target/clients-lm-eval/bin"
sys.path.append(str(TASKS))
from run_tasks import run_tasks  # noqa: E402

TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def exact_server(tmp_path_factory):
    """A server with the starter model's weights as F32: nothing is rounded to fewer bits while it computes."""
    folder = tmp_path_factory.mktemp("lm-eval")
    model = folder / "models/smollm2/model.gguf"
    model.parent.mkdir(parents=True)
    [source] = (ROOT / "models/smollm2-135m-instruct").glob("*.gguf")
    subprocess.run([BIN / "python", ROOT / "tests/fixtures/widen_gguf.py", source, model], check=True)
    with run_server(folder / "data", ["--models", str(folder / "models"), "--kv-type", "f32"]) as server:
        yield server
    model.unlink()


def run(server, mount, output, **options):
    """The tokenizer is that of the server, and the model is the only one, so lm-eval needs no files."""
    arguments = {
        "model": "smollm2",
        "base_url": f"{server.url}{mount}/completions",
        "tokenizer_backend": "remote",
        "auth_token": server.admin_key,
        # Two more than that of transformers: lm-eval takes them off for servers, in windows of long texts.
        "max_length": 129,
        **options.pop("arguments", {}),
    }
    environment = {"OPENAI_API_KEY": server.admin_key}
    return run_tasks(BIN / "lm_eval", "local-completions", arguments, output, environment=environment, **options)


def close_to(value):
    """Texts are equal. The log-likelihood of a long text is a sum of hundreds."""
    return value if isinstance(value, str) else pytest.approx(value, abs=TOLERANCE, rel=1e-5)


def assert_equal(found, expected):
    for task, results in found.items():
        assert results["metrics"] == pytest.approx(expected[task]["metrics"], abs=TOLERANCE, rel=TOLERANCE), task
        assert len(results["responses"]) == len(expected[task]["responses"])
        for own, other in zip(results["responses"], expected[task]["responses"]):
            assert own == [close_to(value) for value in other], task


def test_tasks_give_the_same_as_transformers(exact_server, tmp_path):
    expected = json.loads((TASKS / "reference.json").read_text())["tasks"]
    found = run(exact_server, "/v1", tmp_path, batch=4)
    assert set(found) == set(expected)
    assert_equal(found, expected)
