"""The schemas that pydantic, zod and coding agents write for tools: none is refused, and the output matches what the
server claims to enforce."""

import copy
import datetime
import ipaddress
import json
import uuid
from typing import Annotated, Literal, Optional, Union

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from pydantic import AnyUrl, BaseModel, Field, SecretStr

ARGUMENTS = "tools[0].function.parameters"


class Point(BaseModel):
    x: float
    y: float = 0.0


class Circle(BaseModel):
    kind: Literal["circle"]
    centre: Point
    radius: Annotated[float, Field(gt=0, le=10)]


class Square(BaseModel):
    kind: Literal["square"]
    corners: tuple[Point, Point]


class Node(BaseModel):
    value: Annotated[int, Field(ge=0, le=9)]
    next: Optional["Node"] = None


class Shapes(BaseModel):
    shape: Annotated[Union[Circle, Square], Field(discriminator="kind")]
    tags: Annotated[set[Literal["a", "b"]], Field(max_length=2)] = set()


class Times(BaseModel):
    id: uuid.UUID
    day: datetime.date
    at: datetime.datetime
    host: ipaddress.IPv4Address


class Account(BaseModel):
    secret: SecretStr
    home: AnyUrl
    counts: dict[str, int] = {}


def closed(properties, **more):
    """An object schema as zod writes it."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False, **more}


UUID_PATTERN = (
    "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
    "|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$"
)
EMAIL_PATTERN = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
IPV4_PATTERN = r"^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])$"

# Name, schema, and the paths that are left open.
CASES = [
    ("pydantic: recursion", Node.model_json_schema(), []),
    ("pydantic: discriminated union, set", Shapes.model_json_schema(), [".properties.tags.uniqueItems"]),
    ("pydantic: dates, ids", Times.model_json_schema(), []),
    ("pydantic: secrets, URLs, dictionaries", Account.model_json_schema(), [".properties.secret.format"]),
    ("zod: uuid", closed({"id": {"type": "string", "format": "uuid", "pattern": UUID_PATTERN}}), []),
    ("zod: email", closed({"to": {"type": "string", "format": "email", "pattern": EMAIL_PATTERN}}), [".properties.to.pattern"]),
    ("zod: IPv4", closed({"ip": {"type": "string", "format": "ipv4", "pattern": IPV4_PATTERN}}), []),
    ("zod: record", closed({"by": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "boolean"}}}), []),
    ("zod: record of an enum", closed({"by": {
        "type": "object", "propertyNames": {"type": "string", "enum": ["north", "south"]},
        "additionalProperties": {"type": "number"}, "required": ["north", "south"],
    }}), []),
    ("zod: base64, jwt", closed({"a": {"type": "string", "format": "base64", "contentEncoding": "base64"},
        "b": {"type": "string", "format": "jwt"}}), [".properties.a.format", ".properties.b.format"]),
    ("zod: never", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"not": {}}}, "required": ["a"]}, []),
    ("zod: safe integer", closed({"n": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}}), []),
    ("an overlapping oneOf", closed({"v": {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "number", "maximum": 9}]}}), [".properties.v.oneOf"]),
    ("a condition", closed({"a": {"type": "boolean"}}, **{"if": {"properties": {"a": {"const": True}}}, "then": {"minProperties": 1}}), [".if"]),
    ("dependencies", closed({"a": {"type": "integer"}}, dependentRequired={"a": ["a"]}), [".dependentRequired"]),
    ("a long text", closed({"text": {"enum": ["short"]}, "file": {"type": "string", "maxLength": 2, "format": "path"},
        "note": {"const": "x", "maxLength": 200000}}), [".properties.file.format", ".properties.note.maxLength"]),
    ("another document", closed({"a": {"$ref": "https://example.org/a.json"}}), [".properties.a.$ref"]),
    ("draft-07 with an id", closed({"a": {"$ref": "#/definitions/a"}}, **{
        "$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://example.org/tool.json",
        "definitions": {"a": {"type": "integer", "exclusiveMinimum": 0, "format": "int32"}},
    }), []),
    ("free-form arguments", {"type": "object"}, []),
]


def without(schema, paths):
    """The schema without the keywords at the paths."""
    schema = copy.deepcopy(schema)
    for path in paths:
        *parents, keyword = path.strip(".").split(".")
        part = schema
        for name in parents:
            part = part[name]
        if keyword == "oneOf":
            part["anyOf"] = part.pop("oneOf")
        else:
            del part[keyword]
    return schema


@pytest.mark.parametrize("schema,paths", [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_tool_is_accepted_and_its_arguments_match(http, chat_arguments, schema, paths):
    tool = {"type": "function", "function": {"name": "tool", "parameters": schema}}
    arguments = chat_arguments("Call the tool.", tools=[tool], tool_choice="required", temperature=1, max_completion_tokens=300)
    checker = Draft202012Validator(without(schema, paths), format_checker=FormatChecker())
    for seed in range(3):
        response = http.post("/openai/v1/chat/completions", json={**arguments, "seed": seed})
        assert response.status_code == 200, response.text
        header = response.headers.get("x-outpost-unenforced", "")
        assert header == ", ".join(ARGUMENTS + path for path in paths)
        choice = response.json()["choices"][0]
        assert len(choice["message"]["tool_calls"]) == 1
        if choice["finish_reason"] != "length":
            checker.validate(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]))


@pytest.mark.parametrize("schema,paths", [case[1:] for case in CASES if case[2]], ids=[case[0] for case in CASES if case[2]])
def test_strict_tools_are_refused_by_the_path(http, chat_arguments, schema, paths):
    tool = {"type": "function", "function": {"name": "tool", "parameters": schema, "strict": True}}
    response = http.post("/openai/v1/chat/completions", json=chat_arguments("Call the tool.", tools=[tool]))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(ARGUMENTS)
