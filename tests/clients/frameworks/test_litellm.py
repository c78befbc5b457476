"""LiteLLM with its provider `openai/`."""

import os

import pytest

# Otherwise, the package downloads its table of models.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm  # noqa: E402

from visit import GREETING, QUESTION, UNKNOWN_MODEL, VISIT, Visit, cosine  # noqa: E402

FORCED = {"tools": [VISIT], "tool_choice": {"type": "function", "function": {"name": "visit"}}}


@pytest.fixture
def complete(server):
    """A function that calls `litellm.completion`."""

    def complete(text, model=server.chat_model, **more):
        connection = {"api_base": server.url + "/openai/v1", "api_key": server.admin_key, "num_retries": 0}
        messages = [{"role": "user", "content": text}]
        options = {"temperature": 0, "max_tokens": 80, **more}
        return litellm.completion(model=f"openai/{model}", messages=messages, **connection, **options)

    return complete


def joined(chunks):
    return litellm.stream_chunk_builder(list(chunks))


def test_a_stream_adds_up_to_the_whole_response(complete):
    whole = complete(GREETING)
    chunks = list(complete(GREETING, stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert len(pieces) > 3 and "".join(pieces) == whole.choices[0].message.content != ""
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens > 0


def test_tool_calls(complete):
    calls = [response.choices[0].message.tool_calls[0].function
             for response in (complete(QUESTION, **FORCED), joined(complete(QUESTION, **FORCED, stream=True)))]
    assert [call.name for call in calls] == ["visit", "visit"]
    assert calls[0].arguments == calls[1].arguments
    Visit.model_validate_json(calls[0].arguments)


def test_structured_output(complete):
    whole = complete(QUESTION, response_format=Visit)
    streamed = joined(complete(QUESTION, response_format=Visit, stream=True))
    text = whole.choices[0].message.content
    Visit.model_validate_json(text)
    assert streamed.choices[0].message.content == text


def test_embeddings(server, plain_vector):
    connection = {"api_base": server.url + "/openai/v1", "api_key": server.admin_key}
    response = litellm.embedding(model=f"openai/{server.embed_model}", input=["the sea"], **connection)
    assert cosine(response.data[0]["embedding"], plain_vector("the sea")) > 0.9999
    assert response.usage.prompt_tokens > 0


def test_an_unknown_model(complete):
    with pytest.raises(litellm.NotFoundError, match=UNKNOWN_MODEL):
        complete(GREETING, model="nobody")


def test_a_prompt_that_is_too_long_is_recognized(complete):
    with pytest.raises(litellm.ContextWindowExceededError, match="maximum context length is 8192 tokens"):
        complete("sea " * 9000)
