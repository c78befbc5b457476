"""The cases of the Open Responses specification (openresponses.org), and the fields that it requires of bodies and events."""

import json
import re

import pytest

NULL = type(None)
NUMBER = (int, float)
RESPONSE = {
    "id": str,
    "object": str,
    "created_at": int,
    "completed_at": (int, NULL),
    "status": str,
    "incomplete_details": (dict, NULL),
    "model": str,
    "previous_response_id": (str, NULL),
    "instructions": (str, list, NULL),
    "output": list,
    "error": (dict, NULL),
    "tools": list,
    "tool_choice": (str, dict),
    "truncation": str,
    "parallel_tool_calls": bool,
    "text": dict,
    "top_p": NUMBER,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "top_logprobs": int,
    "temperature": NUMBER,
    "reasoning": (dict, NULL),
    "user": (str, NULL),
    "usage": (dict, NULL),
    "max_output_tokens": (int, NULL),
    "max_tool_calls": (int, NULL),
    "store": bool,
    "background": bool,
    "service_tier": str,
    "metadata": dict,
    "safety_identifier": (str, NULL),
    "prompt_cache_key": (str, NULL),
}
ITEMS = {
    "message": {"id": str, "status": str, "role": str, "content": list},
    "function_call": {"id": str, "call_id": str, "name": str, "arguments": str, "status": str},
}
TEXT = {"text": str, "annotations": list, "logprobs": list}
USAGE = {"input_tokens": int, "output_tokens": int, "total_tokens": int, "input_tokens_details": dict, "output_tokens_details": dict}
ITEM_EVENT = {"output_index": int, "item": dict}
PART_EVENT = {"item_id": str, "output_index": int, "content_index": int, "part": dict}
EVENTS = {
    "response.created": {"response": dict},
    "response.in_progress": {"response": dict},
    "response.output_item.added": ITEM_EVENT,
    "response.content_part.added": PART_EVENT,
    "response.output_text.delta": {"item_id": str, "output_index": int, "content_index": int, "delta": str},
    "response.output_text.done": {"item_id": str, "output_index": int, "content_index": int, "text": str},
    "response.content_part.done": PART_EVENT,
    "response.function_call_arguments.delta": {"item_id": str, "output_index": int, "delta": str},
    "response.function_call_arguments.done": {"item_id": str, "output_index": int, "arguments": str},
    "response.output_item.done": ITEM_EVENT,
    "response.completed": {"response": dict},
    "response.incomplete": {"response": dict},
}
STATUSES = {"in_progress", "completed", "incomplete"}


def check(value, fields):
    for name, kind in fields.items():
        assert name in value, f"{name} is missing in {value}"
        assert isinstance(value[name], kind), f"{name}: {value[name]!r}"
        assert kind is not int or not isinstance(value[name], bool)


def check_item(item):
    check(item, ITEMS[item["type"]])
    assert item["status"] in STATUSES
    for part in item.get("content", []):
        assert part["type"] == "output_text"
        check(part, TEXT)


def check_response(response):
    check(response, RESPONSE)
    assert response["object"] == "response" and response["status"] in STATUSES
    for item in response["output"]:
        check_item(item)
    for tool in response["tools"]:
        check(tool, {"name": str, "description": (str, NULL), "parameters": (dict, NULL), "strict": (bool, NULL)})
    if response["usage"]:
        check(response["usage"], USAGE)


def check_event(event):
    check(event, EVENTS[event["type"]] | {"sequence_number": int})
    if "response" in event:
        check_response(event["response"])
    if "item" in event:
        check_item(event["item"])


def message(role, content):
    return {"type": "message", "role": role, "content": content}


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather at a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
# A small model does not always call by itself.
CALLING = {"input": [message("user", "How is the weather in Rome?")], "tools": [WEATHER], "tool_choice": "required"}
CASES = {
    "basic response": {"input": [message("user", "Say hello in exactly 3 words.")]},
    "system prompt": {"input": [message("system", "You are a pirate."), message("user", "Say hello.")]},
    "multi-turn conversation": {
        "input": [message("user", "My name is Alice."), message("assistant", "Hello Alice!"), message("user", "What is my name?")]
    },
    "tool calling": CALLING,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_case_is_answered(server, http, name, stream):
    body = {"model": server.chat_model, "temperature": 0, "stream": stream, "max_output_tokens": 200} | CASES[name]
    reply = http.post("/v1/responses", json=body, timeout=300)
    assert reply.status_code == 200, reply.text
    if stream:
        events = [json.loads(data) for data in re.findall(r"^data: (\{.*)$", reply.text, re.MULTILINE)]
        for event in events:
            check_event(event)
        response = events[-1]["response"]
    else:
        response = reply.json()
    check_response(response)
    assert response["status"] == "completed" and response["usage"]
    [item] = response["output"]
    if name == "tool calling":
        assert (item["type"], item["name"]) == ("function_call", "get_weather")
        assert isinstance(json.loads(item["arguments"])["place"], str)
        if stream:
            kinds = {event["type"] for event in events}
            assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= kinds
    else:
        assert item["content"][0]["text"]


def test_compaction(server, http):
    """The case "POST /responses/compact"."""
    conversation = [message("user", "My name is Alice."), message("assistant", "Hello Alice!")]
    reply = http.post("/v1/responses/compact", json={"model": server.chat_model, "input": conversation}, timeout=300).json()
    assert reply["object"] == "response.compaction"
    check(reply, {"id": str, "created_at": int, "output": list, "usage": dict})
    check(reply["usage"], USAGE)
    check(reply["output"][-1], {"id": str, "type": str, "encrypted_content": str})
    body = {"model": server.chat_model, "input": [*reply["output"], message("user", "What is my name?")], "max_output_tokens": 20}
    check_response(http.post("/v1/responses", json=body, timeout=300).json())


def test_images_are_refused(server, http):
    """The case "image input" needs a model that sees."""
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}]
    reply = http.post("/v1/responses", json={"model": server.chat_model, "input": [message("user", parts)]})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "input[0].content[1].type"
