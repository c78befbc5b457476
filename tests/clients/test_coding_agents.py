"""Tool lists with the schema shapes of Claude Code's and Codex's tools, as gateways send them in chat completions."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, FormatChecker

# Tool list, and the paths in it that are left open.
LISTS = {"claude_code": [], "codex": []}


def read(name):
    return json.loads((Path(__file__).parent / "tool_schemas" / f"{name}.json").read_text())


@pytest.mark.parametrize("name", LISTS)
def test_all_tools_are_accepted_in_one_request(http, chat_arguments, name):
    tools = read(name)
    parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    arguments = chat_arguments("List the files.", tools=tools, tool_choice="required", max_completion_tokens=60)
    response = http.post("/openai/v1/chat/completions", json=arguments, timeout=300)
    assert response.status_code == 200, response.text
    assert response.headers.get("x-outpost-unenforced", "") == ", ".join(LISTS[name])
    choice = response.json()["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] in parameters
    if choice["finish_reason"] == "tool_calls":
        checker = Draft202012Validator(parameters[call["function"]["name"]], format_checker=FormatChecker())
        checker.validate(json.loads(call["function"]["arguments"]))


@pytest.mark.parametrize("name", LISTS)
def test_each_tool_can_be_forced(http, chat_arguments, name):
    complete = 0
    for tool in read(name):
        function = tool["function"]
        forced = {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": function["name"]}}}
        arguments = chat_arguments("Call the tool.", **forced, temperature=1, seed=1, max_completion_tokens=48)
        response = http.post("/openai/v1/chat/completions", json=arguments)
        assert response.status_code == 200, response.text
        choice = response.json()["choices"][0]
        [call] = choice["message"]["tool_calls"]
        assert call["function"]["name"] == function["name"]
        if choice["finish_reason"] == "tool_calls":
            complete += 1
            checker = Draft202012Validator(function["parameters"], format_checker=FormatChecker())
            checker.validate(json.loads(call["function"]["arguments"]))
    assert complete > 3
