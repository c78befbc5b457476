"""any-llm with its providers for servers of one's own."""

import any_llm
import pytest

from visit import GREETING, QUESTION, VISIT, Visit


@pytest.fixture(params=["openai", "vllm", "llamacpp", "ollama"])
def connection(request, server):
    if request.param == "ollama":
        headers = {"Authorization": f"Bearer {server.admin_key}"}
        return {"provider": "ollama", "api_base": server.url, "client_args": {"headers": headers}}
    return {"provider": request.param, "api_base": server.url + "/openai/v1", "api_key": server.admin_key}


def complete(server, connection, text, **more):
    messages = [{"role": "user", "content": text}]
    return any_llm.completion(model=server.chat_model, messages=messages, temperature=0, max_tokens=80, **connection, **more)


def test_a_stream_adds_up_to_the_whole_response(server, connection):
    whole = complete(server, connection, GREETING)
    pieces = [chunk.choices[0].delta.content or "" for chunk in complete(server, connection, GREETING, stream=True) if chunk.choices]
    assert len(pieces) > 3 and "".join(pieces) == whole.choices[0].message.content != ""
    assert whole.usage.completion_tokens > 0


def test_models_are_listed(server, connection):
    assert server.chat_model in [model.id.removesuffix(":latest") for model in any_llm.list_models(**connection)]


@pytest.mark.parametrize("connection", ["openai", "vllm"], indirect=True)
def test_a_forced_tool_call(server, connection):
    choice = {"type": "function", "function": {"name": "visit"}}
    [call] = complete(server, connection, QUESTION, tools=[VISIT], tool_choice=choice).choices[0].message.tool_calls
    assert Visit.model_validate_json(call.function.arguments)
