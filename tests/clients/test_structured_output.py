"""Structured output and tools with the openai package and pydantic."""

import json
from typing import Literal, Union

import openai
import pytest
from jsonschema import Draft202012Validator, FormatChecker
from pydantic import BaseModel, ConfigDict, Field, conint, conlist, constr

from visit import VISIT, Visit


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Crab(Strict):
    kind: Literal["crab"]
    legs: conint(ge=0, le=10)


class Gull(Strict):
    kind: Literal["gull"]
    wings: Literal[2]


class Beach(Strict):
    name: constr(max_length=12)
    open: bool
    animals: conlist(Union[Crab, Gull], min_length=1, max_length=2)


QUESTION = "Describe a beach with its animals as JSON."


def validate(schema, text):
    value = json.loads(text)
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(value)
    return value


def test_parse_returns_the_pydantic_model(client, chat_arguments):
    response = client.chat.completions.parse(**chat_arguments(QUESTION, max_completion_tokens=200), response_format=Beach)
    beach = response.choices[0].message.parsed
    assert isinstance(beach, Beach) and 1 <= len(beach.animals) <= 2
    assert response.choices[0].finish_reason == "stop"


def test_a_stream_matches_the_schema(client, chat_arguments):
    with client.chat.completions.stream(**chat_arguments(QUESTION, max_completion_tokens=200), response_format=Beach) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    validate(Beach.model_json_schema(), "".join(pieces))
    assert isinstance(final.choices[0].message.parsed, Beach)


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_json_object(client, chat_arguments, temperature):
    arguments = chat_arguments(QUESTION, temperature=temperature, seed=3, max_completion_tokens=250)
    response = client.chat.completions.create(**arguments, response_format={"type": "json_object"})
    choice = response.choices[0]
    assert choice.message.content.lstrip().startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


class Entry(Strict):
    id: constr(pattern=r"^[A-Z]{2}-\d{3}$")
    score: float = Field(ge=0, le=1)
    day: constr(pattern=r"^\d{4}-\d{2}$") | None


def test_varied_schemas_on_a_real_model(client, chat_arguments):
    schemas = [
        Entry.model_json_schema(),
        {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 9}, "minItems": 3, "maxItems": 3},
        {"enum": ["red", "green", "blue"]},
        {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}, "id": {"type": "string", "format": "uuid"}},
         "required": ["at", "id"], "additionalProperties": False},
    ]
    for schema in schemas:
        form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
        response = client.chat.completions.create(**chat_arguments("Fill in the form.", max_completion_tokens=200), response_format=form)
        validate(schema, response.choices[0].message.content)


def test_unsupported_keywords_of_a_strict_schema_are_refused_by_name(client, chat_arguments):
    form = {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**chat_arguments(), response_format=form)
    assert refused.value.param == "response_format.json_schema.schema.uniqueItems"


@pytest.mark.parametrize("name", ["client", "strict"])
def test_a_tool_result_continues_the_chat(name, request, chat_arguments):
    client = request.getfixturevalue(name)
    arguments = chat_arguments("How is the sea today?", max_completion_tokens=80)
    choice = {"type": "function", "function": {"name": "visit"}}
    first = client.chat.completions.create(**arguments, tools=[VISIT], tool_choice=choice).choices[0]
    assert first.finish_reason == "tool_calls" and first.message.content is None
    [call] = first.message.tool_calls
    assert call.function.name == "visit" and call.id.startswith("call_")
    validate(Visit.model_json_schema(), call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "calm, 12 degrees"}
    more = [*arguments.pop("messages"), first.message.model_dump(exclude_none=True), result]
    last = client.chat.completions.create(**arguments, messages=more, tools=[VISIT], tool_choice="none").choices[0]
    assert last.message.content and not last.message.tool_calls


def test_pydantic_tool_arguments_are_parsed(client, chat_arguments):
    tool = openai.pydantic_function_tool(Visit, name="visit")
    arguments = chat_arguments("How is the sea?", max_completion_tokens=80)
    response = client.chat.completions.parse(**arguments, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    [call] = response.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Visit)


def test_a_streamed_tool_call(client, chat_arguments):
    arguments = chat_arguments("How is the sea?", max_completion_tokens=80)
    options = {"tools": [VISIT], "tool_choice": "required", "parallel_tool_calls": False}
    whole = client.chat.completions.create(**arguments, **options).choices[0].message.tool_calls[0].function
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**arguments, **options, stream=True)]
    deltas = [delta for chunk in chunks for delta in chunk.delta.tool_calls or []]
    assert deltas[0].function.name == "visit" and deltas[0].function.arguments is not None and deltas[0].id
    assert all(delta.id is None and delta.function.name is None for delta in deltas[1:])
    assert "".join(delta.function.arguments for delta in deltas) == whole.arguments
    assert all(not chunk.delta.content for chunk in chunks)
    assert chunks[-1].finish_reason == "tool_calls"
    with client.chat.completions.stream(**arguments, **options) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [json.loads(event.arguments) for event in done] == [json.loads(whole.arguments)]


def test_optional_tools_allow_text(client, chat_arguments):
    response = client.chat.completions.create(**chat_arguments("Say hello."), tools=[VISIT]).choices[0]
    assert response.message.content or response.message.tool_calls or response.finish_reason == "length"
