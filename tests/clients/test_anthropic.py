"""Anthropic's Python package against the Messages API."""

import asyncio
import json
from pathlib import Path

import anthropic
import httpx
import pytest
from pydantic import BaseModel

QUESTION = [{"role": "user", "content": "Name a colour of the sea."}]
WEATHER = {
    "name": "get_weather",
    "description": "Returns the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Riga"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def claude(server):
    return anthropic.Anthropic(base_url=server.url, api_key=server.admin_key, max_retries=0)


@pytest.fixture
def arguments(server):
    # The package has no argument for the temperature.
    return {"model": server.chat_model, "max_tokens": 24, "messages": QUESTION, "extra_body": {"temperature": 0}}


def test_a_message_has_the_text_and_usage_of_a_chat_completion(claude, client, arguments):
    message = claude.messages.create(**arguments)
    chat = client.chat.completions.create(**arguments)
    [block] = message.content
    assert (block.type, block.text) == ("text", chat.choices[0].message.content)
    assert (message.role, message.type, message.model) == ("assistant", "message", arguments["model"])
    assert message.stop_reason in ("end_turn", "max_tokens")
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == chat.usage.prompt_tokens
    assert usage.output_tokens == chat.usage.completion_tokens


def test_a_stream_makes_the_same_message(claude, arguments):
    whole = claude.messages.create(**arguments)
    with claude.messages.stream(**arguments) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert (final.content[0].text, final.stop_reason) == (text, whole.stop_reason)
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_the_async_client_streams(server, arguments):
    async def run():
        async with anthropic.AsyncAnthropic(base_url=server.url, auth_token=server.admin_key, api_key=None) as client:
            async with client.messages.stream(**arguments) as stream:
                return [event.type async for event in stream]

    events = asyncio.run(run())
    assert events[0] == "message_start" and events[-1] == "message_stop" and "content_block_stop" in events


def test_a_required_tool_is_called_with_valid_input(claude, arguments):
    arguments |= {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "get_weather"}, "max_tokens": 60}
    message = claude.messages.create(**arguments)
    call = message.content[-1]
    assert (call.type, call.name, message.stop_reason) == ("tool_use", "get_weather", "tool_use")
    assert call.input["city"] in ("Oslo", "Riga")
    with claude.messages.stream(**arguments) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[-1].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Rain, 4 degrees."}]}
    turns = [*QUESTION, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    answer = claude.messages.create(**arguments | {"messages": turns, "tool_choice": {"type": "none"}})
    assert answer.content[0].type == "text"


def test_the_tool_runner_calls_a_function(claude, arguments):
    called = []

    @anthropic.beta_tool
    def add(a: int, b: int) -> str:
        """Adds two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        called.append((a, b))
        return str(a + b)

    turn = {"type": "tool", "name": "add"}
    runner = claude.beta.messages.tool_runner(**arguments | {"tools": [add], "tool_choice": turn, "max_tokens": 80}, max_iterations=1)
    messages = list(runner)
    assert messages[0].content[-1].name == "add"
    assert len(called) <= 1


def test_output_is_parsed(claude, arguments):
    class Colour(BaseModel):
        name: str
        is_dark: bool

    schema = Colour.model_json_schema() | {"additionalProperties": False}
    schema["properties"]["name"]["maxLength"] = 8
    format = {"type": "json_schema", "schema": schema}
    message = claude.messages.create(**arguments | {"output_config": {"format": format}, "max_tokens": 80})
    Colour.model_validate(json.loads(message.content[0].text))


def test_tokens_are_counted(claude, arguments):
    del arguments["max_tokens"], arguments["extra_body"]
    arguments |= {"system": "Be brief.", "tools": [WEATHER]}
    count = claude.messages.count_tokens(**arguments)
    message = claude.messages.create(**arguments, max_tokens=1)
    assert count.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens
    again = claude.messages.create(**arguments, max_tokens=1)
    assert again.usage.cache_read_input_tokens > 0


def test_models_are_listed(claude, server):
    models = {model.id: model for model in claude.models.list(limit=1000)}
    assert models[server.chat_model].type == "model"
    assert claude.models.retrieve(server.chat_model).id == server.chat_model


@pytest.mark.parametrize(
    ("change", "error", "kind"),
    [
        ({"model": "claude-opus"}, anthropic.NotFoundError, "not_found_error"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error"),
    ],
)
def test_errors_have_the_packages_types(claude, arguments, change, error, kind):
    with pytest.raises(error) as raised:
        claude.messages.create(**arguments | change)
    assert raised.value.body["error"]["type"] == kind
    assert raised.value.request_id == raised.value.body["request_id"]


def test_a_wrong_key_is_an_authentication_error(server, arguments):
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=server.url, api_key="opk_wrong", max_retries=0).messages.create(**arguments)


def test_a_request_of_claude_code_is_taken(server, arguments):
    """The fields, headers and system blocks that Claude Code sends."""
    tools = json.loads((Path(__file__).parent / "tool_schemas/claude_code.json").read_text())
    functions = [tool["function"] for tool in tools[:4]]
    tools = [{"name": f["name"], "description": f.get("description", ""), "input_schema": f["parameters"]} for f in functions]
    del arguments["extra_body"]
    body = arguments | {
        "temperature": 0,
        "max_tokens": 32000,
        "stream": True,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch=1a2b3;"},
            {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
        ],
        "tools": [*tools, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "metadata": {"user_id": "user_1"},
        "stop_sequences": ["."],
    }
    headers = {"authorization": f"Bearer {server.admin_key}", "anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"}
    with httpx.stream("POST", f"{server.url}/v1/messages?beta=true", json=body, headers=headers, timeout=300) as response:
        text = response.read().decode()
        assert response.status_code == 200, text
        assert response.headers["x-outpost-ignored"] == "tools[4] web_search_20250305"
    assert text.startswith("event: message_start") and text.rstrip().endswith('data: {"type":"message_stop"}')
