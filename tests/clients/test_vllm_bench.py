"""Replays the requests of `vllm bench serve` 0.33, field by field, and reads the responses as it does. vLLM itself is too large to install."""

import json

import pytest

PROMPT, TOKENS = "How is the sea?", 8
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
COMPLETION = {"prompt": PROMPT, "repetition_penalty": 1.0, "max_tokens": TOKENS, "logprobs": None, **USAGE}
PARTS = [{"type": "text", "text": PROMPT}]
CHAT = {"messages": [{"role": "user", "content": PARTS}], "max_completion_tokens": TOKENS, **USAGE}
RESPONSE = {"input": PROMPT, "max_output_tokens": TOKENS, "stream": True, "store": False}


@pytest.fixture
def events(server, http, mount):
    """A function that returns the JSON of each event of a stream. Events are separated by blank lines."""

    def events(path, body):
        response = http.post(mount + path, json={"model": server.chat_model, **body}, headers={"x-request-id": "bench-0"})
        assert response.status_code == 200, response.text
        messages = [message.strip() for message in response.text.split("\n\n")]
        lines = [line for message in messages for line in message.splitlines() if line.startswith("data: ")]
        return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]

    return events


@pytest.mark.parametrize("path,body", [("/completions", COMPLETION), ("/chat/completions", CHAT)])
def test_a_stream_has_a_chunk_per_token_and_the_usage_apart(events, path, body):
    found = events(path, {**body, "ignore_eos": True})
    generated = [event for event in found if event.get("choices")]
    [usage] = [event["usage"] for event in found if not event.get("choices")]
    assert usage["completion_tokens"] == TOKENS and usage["prompt_tokens"] > 0
    choices = [event["choices"][0] for event in generated]
    texts = [choice.get("text") or choice.get("delta", {}).get("content") for choice in choices]
    assert sum(map(bool, texts)) == TOKENS


def test_a_response_of_the_responses_api_ends_with_its_usage(events):
    found = events("/responses", RESPONSE)
    assert sum(event["type"] == "response.output_text.delta" for event in found) > 0
    assert found[-1]["response"]["usage"]["output_tokens"] == TOKENS


def test_the_first_model_of_the_list_is_used_if_none_is_named(http, mount):
    [first, *_] = http.get(mount + "/models").json()["data"]
    assert first["id"]


def test_embeddings_are_requested_with_truncation(server, http, mount):
    body = {"model": server.embed_model, "input": PROMPT, "truncate_prompt_tokens": -1}
    response = http.post(mount + "/embeddings", json=body)
    assert response.status_code == 200 and response.json()["usage"]["prompt_tokens"] > 0, response.text
