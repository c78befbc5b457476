"""GuideLLM: how it checks that a server is there, and the requests of its benchmark, with the times that it reads from streams."""

import asyncio

import pytest
from guidellm.backends.openai.http import OpenAIHTTPBackend
from guidellm.schemas import GenerationRequest, RequestInfo, UsageMetrics
from guidellm.schemas.backends import OpenAIHTTPBackendArgs

TOKENS = 8


@pytest.fixture
def send(server):
    """A function that sends one request of the benchmark, and returns the response and its information."""

    async def run(**more):
        options = {"target": server.url, "api_key": server.admin_key, "model": server.chat_model, **more}
        backend = OpenAIHTTPBackend(OpenAIHTTPBackendArgs(**options))
        await backend.process_startup()
        try:
            await backend.validate()
            request = GenerationRequest(columns={"text_column": ["How is the sea?"]}, output_metrics=UsageMetrics(text_tokens=TOKENS))
            return [result async for result in backend.resolve(request, RequestInfo())][-1]
        finally:
            await backend.process_shutdown()

    return lambda **more: asyncio.run(run(**more))


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("kind", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_a_request_generates_as_many_tokens_as_it_demands(send, kind, stream):
    # The benchmark sends `ignore_eos`, which the Responses API does not have.
    response, information = send(request_format=kind, stream=stream)
    assert response.text
    assert response.output_metrics.text_tokens == TOKENS
    assert response.input_metrics.text_tokens > 0
    if stream:
        assert information.timings.token_iterations > 1


def test_embeddings(server, send):
    response, _ = send(request_format="/v1/embeddings", model=server.embed_model, stream=False)
    assert response.input_metrics.text_tokens > 0


def test_the_model_is_found_if_none_is_named(server):
    async def models():
        backend = OpenAIHTTPBackend(OpenAIHTTPBackendArgs(target=server.url, api_key=server.admin_key))
        await backend.process_startup()
        try:
            return await backend.available_models()
        finally:
            await backend.process_shutdown()

    assert server.chat_model in asyncio.run(models())
