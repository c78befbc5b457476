"""Command line clients: curl, llm and aider. docs/clients.md, which `test_clients_page.py` runs, has opencode, too."""

import json
import os
import subprocess
import sys

import pytest

from conftest import ROOT
from visit import GREETING, QUESTION, UNKNOWN_MODEL, VISIT, Visit, cosine

FORCED = {"tools": [VISIT], "tool_choice": {"type": "function", "function": {"name": "visit"}}}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "visit", "schema": Visit.model_json_schema()}}}


def run(*command, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "LLM_"))}
    return subprocess.run(command, env=kept | environment, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)


@pytest.fixture
def curl(server):
    """A function that posts a body and returns the response's text."""

    def curl(path, body, *options):
        headers = ["-H", f"Authorization: Bearer {server.admin_key}", "-H", "Content-Type: application/json"]
        done = run("curl", "-sN", server.url + "/openai/v1" + path, *headers, *options, "-d", json.dumps(body))
        return done.stdout

    return curl


@pytest.fixture
def ask(curl, chat_arguments):
    """A function that returns the message of a chat, or the deltas of a streamed one."""

    def ask(text, stream=False, **more):
        answer = curl("/chat/completions", chat_arguments(text, max_completion_tokens=80, stream=stream, **more))
        if not stream:
            return json.loads(answer)["choices"][0]["message"]
        *chunks, done = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: ")]
        assert done == "[DONE]"
        return [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks]

    return ask


def test_curl_streams(ask):
    deltas = ask(GREETING, stream=True)
    assert len(deltas) > 3
    assert "".join(delta.get("content") or "" for delta in deltas) == ask(GREETING)["content"] != ""


def test_curl_calls_tools(ask):
    [whole] = ask(QUESTION, **FORCED)["tool_calls"]
    lists = [delta["tool_calls"] for delta in ask(QUESTION, stream=True, **FORCED) if delta.get("tool_calls")]
    # Clients that read one entry of each chunk must not lose text.
    assert all(len(entries) == 1 for entries in lists)
    assert "".join(entries[0]["function"].get("arguments", "") for entries in lists) == whole["function"]["arguments"]
    Visit.model_validate_json(whole["function"]["arguments"])


def test_curl_gets_structured_output(ask):
    text = ask(QUESTION, **FORMAT)["content"]
    Visit.model_validate_json(text)
    assert "".join(delta.get("content") or "" for delta in ask(QUESTION, stream=True, **FORMAT)) == text


def test_curl_gets_vectors(server, curl, plain_vector):
    [item] = json.loads(curl("/embeddings", {"model": server.embed_model, "input": "the sea"}))["data"]
    assert cosine(item["embedding"], plain_vector("the sea")) > 0.9999


def test_curl_fails_with_an_unknown_model(curl, chat_arguments):
    answer = curl("/chat/completions", chat_arguments(model="nobody"), "-w", "%{http_code}")
    assert answer.endswith("404") and UNKNOWN_MODEL in answer


@pytest.fixture(scope="module")
def llm(server, tmp_path_factory):
    """A function that runs llm with the model `outpost` and the unknown model `nobody`."""
    folder = tmp_path_factory.mktemp("llm")
    common = {"api_base": server.url + "/openai/v1", "api_key_name": "outpost", "supports_schema": True, "supports_tools": True}
    names = {"outpost": server.chat_model, "nobody": "nobody"}
    models = [{"model_id": name, "model_name": model, **common} for name, model in names.items()]
    # JSON is YAML.
    (folder / "extra-openai-models.yaml").write_text(json.dumps(models))
    program = str(ROOT / "target/clients-llm/bin/llm")

    def llm(model, text, *options):
        settings = ["-m", model, "--key", server.admin_key, "-o", "temperature", "0", "-o", "max_tokens", "80"]
        return run(program, text, *settings, *options, LLM_USER_PATH=str(folder))

    return llm


def test_llm_streams(llm):
    streamed, whole = llm("outpost", GREETING, "--usage"), llm("outpost", GREETING, "--no-stream")
    assert streamed.returncode == whole.returncode == 0, streamed.stderr + whole.stderr
    assert streamed.stdout.strip() == whole.stdout.strip() != ""
    assert "Token usage" in streamed.stderr and "output" in streamed.stderr


@pytest.mark.parametrize("options", [[], ["--no-stream"]], ids=["streamed", "whole"])
def test_llm_gets_structured_output(llm, options):
    done = llm("outpost", QUESTION, "--schema", json.dumps(Visit.model_json_schema()), *options)
    assert done.returncode == 0, done.stderr
    Visit.model_validate_json(done.stdout)


def test_llm_sends_tools(llm):
    done = llm("outpost", GREETING, "--functions", "def visit(place: str) -> str:\n    return 'calm'")
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_llm_fails_with_an_unknown_model(llm):
    done = llm("nobody", GREETING)
    assert done.returncode == 1 and UNKNOWN_MODEL in done.stderr


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="aider does not support this version of Python")
def test_aider_chats_without_a_stream_and_names_an_unknown_model(server, tmp_path):
    program = str(ROOT / "target/clients-aider/bin/aider")
    environment = {"HOME": str(tmp_path), "OPENAI_API_BASE": server.url + "/openai/v1", "OPENAI_API_KEY": server.admin_key}
    environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    plain = ["--no-show-model-warnings", "--no-git", "--map-tokens", "0", "--no-pretty", "--no-check-update", "--analytics-disable"]
    history = ["--chat-history-file", str(tmp_path / "chat"), "--input-history-file", str(tmp_path / "input")]
    settings = tmp_path / "settings.yml"
    names = ["openai/" + server.chat_model, "openai/nobody"]
    settings.write_text(json.dumps([{"name": name, "extra_params": {"max_tokens": 16}} for name in names]))
    for name, expected in zip(names, ["tokens: ", UNKNOWN_MODEL.lower()]):
        done = run(program, "--model", name, "--model-settings-file", str(settings), *plain, *history, "--no-stream", "--message", GREETING, **environment)
        output = done.stdout + done.stderr
        assert done.returncode == 0 and expected in output.lower(), output
