"""Guidance with its models for servers: OpenAI and vLLM."""

import re

import guidance
import pytest
from guidance import assistant, gen, select, user
from guidance.models.experimental import VLLMModel

from visit import QUESTION, Visit


@pytest.fixture
def model(server):
    """A function that returns a model of a class."""
    return lambda kind: kind(server.chat_model, api_key=server.admin_key, base_url=server.url + "/openai/v1", echo=False)


def answer(model, question, program):
    with user():
        model += question
    with assistant():
        model += program
    return model


def test_a_chat(model):
    assert answer(model(guidance.models.OpenAI), "How is the sea?", gen("answer", max_tokens=8))["answer"]


def test_a_schema_is_enforced(model):
    found = answer(model(guidance.models.OpenAI), QUESTION, guidance.json("visit", schema=Visit))
    assert Visit.model_validate_json(found["visit"])


def test_a_grammar_is_enforced(model):
    program = select(["calm", "rough"], name="weather") + " sea, " + gen("waves", regex="[0-9]{3}")
    found = answer(model(VLLMModel), "How is the sea?", program)
    assert found["weather"] in ("calm", "rough") and re.fullmatch("[0-9]{3}", found["waves"])
