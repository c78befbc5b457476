"""Pydantic AI with its provider `openai-chat`."""

import asyncio

import pytest
from pydantic_ai import Agent, Embedder, NativeOutput, ToolOutput
from pydantic_ai.exceptions import ModelNotFoundError

from visit import GREETING, QUESTION, UNKNOWN_MODEL, Visit, cosine


@pytest.fixture(autouse=True)
def environment(server, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", server.url + "/openai/v1")
    monkeypatch.setenv("OPENAI_API_KEY", server.admin_key)


@pytest.fixture
def agent(server):
    """A function that makes an agent."""

    def agent(model=server.chat_model, **more):
        return Agent(f"openai-chat:{model}", model_settings={"temperature": 0, "max_tokens": 80}, **more)

    return agent


def stream(agent, text, read):
    async def stream():
        async with agent.run_stream(text) as result:
            return [piece async for piece in read(result)], result.usage

    return asyncio.run(stream())


def test_a_stream_adds_up_to_the_whole_response(agent):
    whole = agent().run_sync(GREETING)
    pieces, usage = stream(agent(), GREETING, lambda result: result.stream_text(delta=True, debounce_by=None))
    assert len(pieces) > 3 and "".join(pieces) == whole.output != ""
    assert usage.output_tokens == whole.usage.output_tokens > 0


@pytest.mark.parametrize("output", [ToolOutput(Visit, name="visit"), NativeOutput(Visit)], ids=["tool call", "JSON schema"])
def test_tool_calls_and_structured_output(agent, output):
    visit = agent(output_type=output).run_sync(QUESTION).output
    assert isinstance(visit, Visit)
    pieces, _ = stream(agent(output_type=output), QUESTION, lambda result: result.stream_output(debounce_by=None))
    assert pieces[-1] == visit


def test_embeddings(server, plain_vector):
    [vector] = Embedder(f"openai:{server.embed_model}").embed_query_sync("the sea").embeddings
    assert cosine(vector, plain_vector("the sea")) > 0.9999


def test_an_unknown_model(agent):
    with pytest.raises(ModelNotFoundError, match=UNKNOWN_MODEL):
        agent(model="nobody").run_sync(GREETING)


@pytest.mark.parametrize("mount", ["/openai/v1", "/v1"])
@pytest.mark.parametrize("output", [str, ToolOutput(Visit, name="visit"), NativeOutput(Visit)], ids=["text", "tool call", "JSON schema"])
def test_the_provider_for_ollama(server, monkeypatch, mount, output):
    monkeypatch.setenv("OLLAMA_BASE_URL", server.url + mount)
    monkeypatch.setenv("OLLAMA_API_KEY", server.admin_key)
    agent = Agent(f"ollama:{server.chat_model}", output_type=output, model_settings={"temperature": 0, "max_tokens": 80})
    assert agent.run_sync(QUESTION).output
