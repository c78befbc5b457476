"""OpenAI's Python package against the Responses API."""

import asyncio
import json
import re
import time
from pathlib import Path

import openai
import pytest
from openai.types.responses import Response, ResponseCompactionItem, ResponseStreamEvent
from pydantic import TypeAdapter
from test_extra_fields import extra_fields

from visit import GREETING, QUESTION, UNKNOWN_MODEL, Visit

VISIT = {
    "type": "function",
    "name": "visit",
    "description": "Look at a place.",
    "parameters": Visit.model_json_schema(),
    "strict": True,
}
PATCH = (Path(__file__).parents[1] / "fixtures" / "apply_patch.lark").read_text()
MOUNTS = ["/v1", "/openai/v1"]


@pytest.fixture(params=MOUNTS)
def responses(server, request):
    return server.client(request.param).responses


@pytest.fixture
def arguments(server):
    return {"model": server.chat_model, "input": GREETING, "temperature": 0, "max_output_tokens": 24}


def strictly(response):
    """The response, validated against the package's types, which the package itself does not do."""
    return Response.model_validate(response.model_dump(mode="json"), strict=False)


def test_a_response_has_the_text_and_usage_of_a_chat_completion(responses, client, arguments):
    response = strictly(responses.create(**arguments, instructions="Be kind."))
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": GREETING}]
    chat = client.chat.completions.create(model=arguments["model"], messages=messages, temperature=0, max_tokens=24)
    assert response.output_text == chat.choices[0].message.content != ""
    assert (response.object, response.model, response.instructions) == ("response", arguments["model"], "Be kind.")
    assert response.status == {"length": "incomplete", "stop": "completed"}[chat.choices[0].finish_reason]
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == (chat.usage.prompt_tokens, chat.usage.completion_tokens)


def test_a_stream_makes_the_same_response(responses, arguments):
    whole = responses.create(**arguments)
    events = list(responses.create(**arguments, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    final = strictly(events[-1].response)
    assert text == final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens
    with responses.stream(**arguments) as stream:
        types = [event.type for event in stream]
        assert stream.get_final_response().output_text == text
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[-1] == f"response.{whole.status}"


def test_custom_tools_have_an_input_of_their_grammar(responses, arguments):
    format = {"type": "grammar", "syntax": "lark", "definition": "start: row~1..3\nrow: /[a-c\"]{1,3}/ \"\\n\""}
    tools = [VISIT, {"type": "custom", "name": "rows", "description": "Writes rows.", "format": format}]
    arguments |= {"tools": tools, "tool_choice": {"type": "custom", "name": "rows"}, "max_output_tokens": 200}
    whole = strictly(responses.create(**arguments))
    call = whole.output[-1]
    assert (whole.status, call.type, call.name, call.status) == ("completed", "custom_tool_call", "rows", "completed")
    assert re.fullmatch(r'([a-c"]{1,3}\n){1,3}', call.input)
    with responses.stream(**arguments) as stream:
        events = list(stream)
    types = TypeAdapter(ResponseStreamEvent)
    for event in events:
        types.validate_python(event.model_dump(mode="json"))
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == call.input == events[-1].response.output[-1].input
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "written"}
    more = {"model": arguments["model"], "tools": tools, "tool_choice": "none", "max_output_tokens": 8, "temperature": 0}
    chained = responses.create(**more, input=[result], previous_response_id=whole.id)
    items = [{"role": "user", "content": arguments["input"]}, *(item.model_dump() for item in whole.output), result]
    assert responses.create(**more, input=items).output_text == chained.output_text


def test_the_async_client_streams(server, arguments):
    async def run():
        async with server.async_client() as client:
            return [event.type async for event in await client.responses.create(**arguments, stream=True)]

    assert asyncio.run(run())[0] == "response.created"


def test_output_is_parsed(responses, arguments):
    arguments |= {"input": QUESTION, "max_output_tokens": 80, "text_format": Visit}
    parsed = responses.parse(**arguments)
    assert isinstance(parsed.output_parsed, Visit)
    with responses.stream(**arguments) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed


def test_a_loop_of_function_calls(responses, arguments):
    arguments |= {"tools": [VISIT], "max_output_tokens": 80}
    first = strictly(responses.create(**arguments | {"input": QUESTION}, tool_choice="required"))
    call = first.output[-1]
    assert call.type == "function_call" and call.name == "visit"
    Visit.model_validate_json(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps({"sea": "calm"})}
    by_hand = [{"role": "user", "content": QUESTION}, *[item.model_dump() for item in first.output], result]
    answers = [
        responses.create(**arguments | {"input": by_hand}, tool_choice="none"),
        responses.create(**arguments | {"input": [result]}, tool_choice="none", previous_response_id=first.id),
    ]
    assert answers[0].output_text == answers[1].output_text != ""
    with responses.stream(**arguments | {"input": QUESTION}, tool_choice={"type": "function", "name": "visit"}) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        assert "".join(pieces) == stream.get_final_response().output[-1].arguments == call.arguments


def test_responses_are_stored(responses, arguments):
    first = responses.create(**arguments, metadata={"topic": "greetings"})
    assert strictly(responses.retrieve(first.id)) == strictly(first)
    second = responses.create(**arguments | {"input": "And again?"}, previous_response_id=first.id)
    assert second.previous_response_id == first.id and second.usage.input_tokens > first.usage.input_tokens
    items = list(responses.input_items.list(second.id))
    assert [item.content[0].text for item in items] == ["And again?"]
    many = responses.create(**arguments | {"input": [{"role": "user", "content": f"{number}"} for number in range(5)]})
    pages = responses.input_items.list(many.id, limit=2, order="asc")
    assert [item.content[0].text for item in pages] == ["0", "1", "2", "3", "4"]
    responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as raised:
        responses.create(**arguments, previous_response_id=first.id)
    assert (raised.value.code, raised.value.param) == ("previous_response_not_found", "previous_response_id")
    with pytest.raises(openai.BadRequestError):
        responses.cancel(second.id)


def ended(responses, response):
    while response.status in ("queued", "in_progress"):
        time.sleep(0.05)
        response = responses.retrieve(response.id)
    return strictly(response)


def test_responses_in_the_background(responses, arguments):
    whole = responses.create(**arguments)
    queued = responses.create(**arguments, background=True)
    assert (strictly(queued).status, queued.background, queued.output_text) == ("queued", True, "")
    response = ended(responses, queued)
    assert (response.id, response.output_text, response.status) == (queued.id, whole.output_text, whole.status)
    assert responses.cancel(response.id) == responses.retrieve(response.id)
    long = responses.create(**arguments | {"max_output_tokens": 2000}, background=True, extra_body={"ignore_eos": True})
    assert strictly(responses.cancel(long.id)).status == "cancelled"
    assert responses.retrieve(long.id).status == "cancelled"


def test_a_stream_in_the_background_goes_on_where_it_was_lost(responses, arguments):
    stream = responses.create(**arguments, background=True, stream=True)
    seen = []
    for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    stream.close()
    response = seen[0].response
    rest = list(responses.retrieve(response.id, stream=True, starting_after=seen[-1].sequence_number))
    events = seen + rest
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == strictly(events[-1].response).output_text == responses.retrieve(response.id).output_text
    assert list(responses.retrieve(response.id, stream=True))[-1].response == events[-1].response
    with responses.stream(response_id=response.id, starting_after=3) as again:
        assert again.get_final_response().output_text == text


def test_a_conversation_is_compacted(responses, arguments):
    first = responses.create(**arguments)
    compacted = responses.compact(model=arguments["model"], input="And the land?", previous_response_id=first.id)
    assert compacted.object == "response.compaction" and compacted.usage.output_tokens > 0
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    # The package has no type for the user's messages in an output.
    TypeAdapter(ResponseCompactionItem).validate_python(compacted.output[-1].model_dump(mode="json"))
    items = [item.model_dump(mode="json", exclude_none=True) for item in compacted.output]
    response = responses.create(**arguments | {"input": [*items, {"role": "user", "content": "Go on."}]})
    assert response.output_text


def test_a_response_that_is_not_stored(responses, arguments):
    response = responses.create(**arguments, store=False)
    with pytest.raises(openai.NotFoundError):
        responses.retrieve(response.id)


def test_log_probabilities(responses, arguments):
    response = responses.create(**arguments, include=["message.output_text.logprobs"], top_logprobs=2)
    [part] = response.output[0].content
    assert "".join(token.token for token in part.logprobs).startswith(part.text[:3])
    assert all(len(token.top_logprobs) >= 2 for token in part.logprobs)


def test_input_tokens_are_counted(responses, arguments):
    counted = {"model": arguments["model"], "input": GREETING, "instructions": "Be kind.", "tools": [VISIT]}
    count = responses.input_tokens.count(**counted)
    response = responses.create(**counted, max_output_tokens=1)
    assert count.input_tokens == response.usage.input_tokens


@pytest.mark.parametrize(
    ("change", "error", "param"),
    [
        ({"model": "nobody"}, openai.NotFoundError, "model"),
        ({"input": []}, openai.BadRequestError, "input"),
        ({"background": True, "store": False}, openai.BadRequestError, "background"),
        ({"conversation": "conv_1"}, openai.NotFoundError, "conversation"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "tools[0].name"),
    ],
)
def test_errors_name_the_field(responses, arguments, change, error, param):
    with pytest.raises(error) as raised:
        responses.create(**arguments | change)
    assert raised.value.param == param
    if change.get("model"):
        assert UNKNOWN_MODEL in str(raised.value)


# OpenAI's own responses have them, but the package's types do not.
UNTYPED = {"store", "presence_penalty", "frequency_penalty"}


def test_bodies_have_openais_fields_and_types(http, arguments):
    tools = {"tools": [VISIT], "tool_choice": "required", "max_output_tokens": 80}
    logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    for change in ({}, logprobs, tools, {"reasoning": {"effort": "low"}, "user": "u", "metadata": {"a": "b"}}):
        body = http.post("/openai/v1/responses", json=arguments | change).json()
        TypeAdapter(Response).validate_python(body, strict=True)
        assert extra_fields(body, Response) <= UNTYPED | {"output[].content[].logprobs[].bytes"}
        assert http.get(f"/openai/v1/responses/{body['id']}").json() == body
        text = http.post("/v1/responses", json=arguments | change | {"stream": True}).text
        events = [json.loads(data) for data in re.findall(r"^data: (\{.*)$", text, re.MULTILINE)]
        for event in events:
            TypeAdapter(ResponseStreamEvent).validate_python(event, strict=True)
            known = {f"response.{field}" for field in UNTYPED} | {"name", "logprobs[].bytes", "logprobs[].top_logprobs[].bytes"}
            assert extra_fields(event, ResponseStreamEvent) <= known, event["type"]


def test_a_request_of_codex_is_taken(server, http):
    """The fields and items that Codex sends."""

    def message(role, *texts):
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text} for text in texts]}

    parameters = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"], "additionalProperties": False}
    body = {
        "model": server.chat_model,
        "instructions": "You are Codex.",
        "input": [
            message("developer", "<permissions instructions>"),
            message("user", "# AGENTS.md", "<environment_context>"),
            message("user", GREETING),
            {"type": "reasoning", "summary": [], "encrypted_content": None},
        ],
        "tools": [
            {"type": "function", "name": "exec_command", "description": "Runs.", "strict": False, "parameters": parameters},
            {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": {"type": "grammar", "syntax": "lark", "definition": PATCH}},
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
        "text": {"verbosity": "low"},
        "client_metadata": {"x": "y"},
        "max_output_tokens": 8,
    }
    with http.stream("POST", "/v1/responses", json=body, timeout=300) as response:
        text = response.read().decode()
        assert response.status_code == 200, text
        assert response.headers["x-outpost-ignored"] == "tools[2] web_search"
    assert text.startswith("event: response.created")
