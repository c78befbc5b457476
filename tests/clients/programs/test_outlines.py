"""Outlines with its models for servers: OpenAI, vLLM, SGLang and Ollama."""

from typing import Literal

import ollama
import outlines
import pytest
from openai import OpenAI
from outlines.types import CFG, Regex

from visit import QUESTION, Visit

SEA = Regex("(calm|rough) sea, [0-9]{2} waves")


@pytest.fixture
def model(server):
    """A function that returns a model of a kind."""

    def model(kind, mount="/openai/v1"):
        if kind == "ollama":
            client = ollama.Client(host=server.url, headers={"Authorization": f"Bearer {server.admin_key}"})
        else:
            client = OpenAI(base_url=server.url + mount, api_key=server.admin_key, max_retries=0)
        return getattr(outlines, f"from_{kind}")(client, server.chat_model)

    return model


@pytest.mark.parametrize("kind", ["openai", "vllm", "sglang", "ollama"])
def test_a_type_is_enforced(model, kind):
    limit = {"options": {"num_predict": 200}} if kind == "ollama" else {"max_tokens": 200}
    assert Visit.model_validate_json(model(kind)(QUESTION, Visit, **limit))


@pytest.mark.parametrize("mount", ["/openai/v1", "/v1"])
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_regular_expression_is_enforced(model, kind, mount):
    text = model(kind, mount)("How is the sea?", SEA, max_tokens=40)
    assert SEA.matches(text), text


def test_a_choice_is_enforced(model):
    assert model("vllm")("How is the sea?", Literal["calm", "rough"], max_tokens=20) in ("calm", "rough")


@pytest.mark.parametrize("grammar", ['root ::= "calm" | "rough"', 'start: "calm" | "rough"'], ids=["GBNF", "Lark"])
def test_a_grammar_is_enforced(model, grammar):
    assert model("vllm")("How is the sea?", CFG(grammar), max_tokens=20) in ("calm", "rough")


def test_a_stream_is_enforced(model):
    pieces = list(model("vllm").stream("How is the sea?", SEA, max_tokens=40))
    assert len(pieces) > 3 and SEA.matches("".join(pieces))
