"""OpenAI's Python package against conversations, their items, and responses that continue them."""

import json

import openai
import pytest
from openai.types import conversations as types
from openai.types.conversations import ConversationItem
from pydantic import TypeAdapter
from test_extra_fields import extra_fields
from test_responses import VISIT, strictly

from visit import GREETING, QUESTION

# OpenAI's conversations do not have these fields.
OWN = {"project_id", "version", "message_count", "updated_at", "messages"}
PATH = "/openai/v1/conversations"


@pytest.fixture
def client(server):
    return server.client("/openai/v1")


@pytest.fixture
def arguments(server):
    return {"model": server.chat_model, "temperature": 0, "max_output_tokens": 24}


def user(text):
    return {"type": "message", "role": "user", "content": text}


def texts(client, conversation):
    items = client.conversations.items.list(conversation, order="asc", limit=2)
    return [item.content[0].text for item in items if item.type == "message"]


def checked(body, kind):
    """The body, which has OpenAI's fields with their types."""
    TypeAdapter(kind).validate_python(body, strict=True)
    assert extra_fields(body, kind) <= OWN
    return body


def test_a_conversation_is_created_read_changed_and_deleted(client):
    created = client.conversations.create(metadata={"topic": "demo"}, items=[user(GREETING), user(QUESTION)])
    assert (created.object, created.metadata) == ("conversation", {"topic": "demo"})
    read = client.conversations.retrieve(created.id)
    assert (read.id, read.created_at, read.metadata) == (created.id, created.created_at, created.metadata)
    updated = client.conversations.update(created.id, metadata={"topic": "other"})
    assert updated.metadata == {"topic": "other"}
    assert texts(client, created.id) == [GREETING, QUESTION]
    deleted = client.conversations.delete(created.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (created.id, True, "conversation.deleted")
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(created.id)
    assert client.conversations.create().object == "conversation"


def test_items_are_added_read_listed_and_deleted(client):
    conversation = client.conversations.create().id
    call = {"type": "function_call", "call_id": "call_1", "name": "visit", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "calm"}
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    added = client.conversations.items.create(conversation, items=[user("a"), reasoning, call, output, user("b")], include=[])
    assert [item.type for item in added.data] == ["message", "reasoning", "function_call", "function_call_output", "message"]
    assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[-1].id, False)
    for item in added.data:
        assert client.conversations.items.retrieve(item.id, conversation_id=conversation) == item
    newest = client.conversations.items.list(conversation, limit=2)
    assert [item.id for item in newest.data] == [item.id for item in reversed(added.data[3:])]
    assert [item.id for item in newest] == [item.id for item in reversed(added.data)]
    left = client.conversations.items.delete(added.data[2].id, conversation_id=conversation)
    assert (left.id, left.object) == (conversation, "conversation")
    listed = client.conversations.items.list(conversation, order="asc", include=["message.input_image.image_url"])
    assert [item.id for item in listed] == [item.id for index, item in enumerate(added.data) if index != 2]
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(added.data[2].id, conversation_id=conversation)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_responses_continue_a_conversation(client, arguments, is_streamed):
    conversation = client.conversations.create(items=[user(GREETING)])
    said = [GREETING]
    for text in ("And you?", "Why?"):
        request = arguments | {"input": text, "conversation": conversation.id, "instructions": "Be kind."}
        if is_streamed:
            events = list(client.responses.create(**request, stream=True))
            response = strictly(events[-1].response)
        else:
            response = strictly(client.responses.create(**request))
        assert response.conversation.id == conversation.id
        said += [text, response.output_text]
        assert texts(client, conversation.id) == said
    by_hand = client.responses.create(**arguments, instructions="Be kind.", input=[user("\n".join(said[:2]))])
    assert by_hand.output_text == said[2]
    assert client.responses.retrieve(response.id).conversation.id == conversation.id


def test_a_loop_of_function_calls(client, arguments):
    conversation = client.conversations.create()
    arguments |= {"tools": [VISIT], "max_output_tokens": 80, "conversation": {"id": conversation.id}}
    first = client.responses.create(**arguments, input=QUESTION, tool_choice="required")
    call = first.output[-1]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps({"sea": "calm"})}
    answer = client.responses.create(**arguments, input=[result], tool_choice="none")
    items = list(client.conversations.items.list(conversation.id, order="asc"))
    assert [item.type for item in items][-3:] == ["function_call", "function_call_output", "message"]
    assert (items[-3].call_id, items[-3].arguments) == (call.call_id, call.arguments)
    assert items[-1].content[0].text == answer.output_text


def test_errors_name_the_field(client, arguments):
    conversation = client.conversations.create().id
    first = client.responses.create(**arguments, input=GREETING)
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(**arguments, input=GREETING, conversation=conversation, previous_response_id=first.id)
    assert raised.value.param == "conversation"
    with pytest.raises(openai.NotFoundError) as raised:
        client.responses.create(**arguments, input=GREETING, conversation="conv_none")
    assert raised.value.param == "conversation"
    with pytest.raises(openai.BadRequestError) as raised:
        client.conversations.items.create(conversation, items=[{"type": "message", "role": "user", "content": 1}])
    assert raised.value.param == "items[0].content"


def test_bodies_have_openais_fields_and_types(http, arguments):
    conversation = checked(http.post(PATH, json={"metadata": {"a": "b"}}).json(), types.Conversation)["id"]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    image = {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"}
    items = [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": [{"type": "input_text", "text": "b"}, image]},
        reasoning,
        {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        call,
        {"type": "function_call_output", "call_id": "c", "output": "d"},
    ]
    added = http.post(f"{PATH}/{conversation}/items", json={"items": items}).json()
    assert len(checked(added, types.ConversationItemList)["data"]) == len(items)
    checked(http.get(f"{PATH}/{conversation}/items").json(), types.ConversationItemList)
    for item in added["data"]:
        checked(http.get(f"{PATH}/{conversation}/items/{item['id']}").json(), ConversationItem)
    for path in ("", f"/items/{added['data'][1]['id']}"):
        body = http.get(f"{PATH}/{conversation}").json() if not path else http.delete(f"{PATH}/{conversation}{path}").json()
        checked(body, types.Conversation)
    checked(http.post(f"{PATH}/{conversation}", json={"metadata": {}}).json(), types.Conversation)
    http.post("/openai/v1/responses", json=arguments | {"input": "e", "conversation": conversation}).raise_for_status()
    checked(http.get(f"{PATH}/{conversation}/items").json(), types.ConversationItemList)
    checked(http.delete(f"{PATH}/{conversation}").json(), types.ConversationDeletedResource)
