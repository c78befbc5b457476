"""Programs for local servers that send a placeholder for a key, with `--keyless-project`."""

import asyncio

import anthropic
import ollama
import openai
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.ollama import OllamaProvider

from conftest import run_server
from tiny_models import link_models

QUESTION = [{"role": "user", "content": "Name a colour of the sea."}]


@pytest.fixture(scope="module")
def keyless(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keyless")
    arguments = ["--models", link_models(folder / "models"), "--keyless-project", "default"]
    with run_server(folder / "data", arguments) as server:
        yield server


@pytest.mark.parametrize("mount", ["/v1", "/openai/v1"])
def test_openai(keyless, mount):
    client = openai.OpenAI(base_url=keyless.url + mount, api_key="ollama", max_retries=0)
    assert keyless.chat_model in [model.id for model in client.models.list()]
    chat = client.chat.completions.create(model=keyless.chat_model, messages=QUESTION, max_tokens=8)
    assert chat.usage.completion_tokens > 0
    response = client.responses.create(model=keyless.chat_model, input="Name a colour.", max_output_tokens=8)
    assert response.usage.output_tokens > 0
    assert len(client.embeddings.create(model=keyless.embed_model, input="the sea").data[0].embedding) == 384
    with pytest.raises(openai.AuthenticationError):
        client.files.list()
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="opk_wrong").models.list()


def test_anthropic(keyless):
    client = anthropic.Anthropic(base_url=keyless.url, api_key="ollama", max_retries=0)
    message = client.messages.create(model=keyless.chat_model, messages=QUESTION, max_tokens=8)
    assert message.usage.output_tokens > 0


def test_ollama(keyless):
    client = ollama.Client(host=keyless.url, headers={"Authorization": "Bearer ollama"})
    assert any(model.model.startswith(keyless.chat_model) for model in client.list().models)
    assert client.chat(keyless.chat_model, QUESTION, options={"num_predict": 8}).eval_count > 0


def test_pydantic_ai_with_its_provider_of_ollama(keyless):
    provider = OllamaProvider(base_url=keyless.url + "/openai/v1")
    agent = Agent(OpenAIChatModel(keyless.chat_model, provider=provider), model_settings={"max_tokens": 8})
    assert asyncio.run(agent.run("Name a colour.")).usage.output_tokens > 0
