"""OpenAI's Agents SDK with its default model, which uses the Responses API, and with its chat completions model."""

import asyncio

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

from visit import GREETING, QUESTION, UNKNOWN_MODEL, Visit

set_tracing_disabled(True)


@pytest.fixture(params=[OpenAIResponsesModel, OpenAIChatCompletionsModel])
def agent(server, request):
    """A function that makes an agent."""

    def agent(model=server.chat_model, settings=None, **more):
        chat = request.param(model, server.async_client("/openai/v1"))
        settings = ModelSettings(temperature=0, max_tokens=80, include_usage=True, **settings or {})
        return Agent(name="suite", model=chat, model_settings=settings, **more)

    return agent


def run(agent, text):
    result = asyncio.run(Runner.run(agent, text))
    return result.final_output, result.context_wrapper.usage


def stream(agent, text):
    async def events():
        result = Runner.run_streamed(agent, text)
        raw = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
        return result.final_output, result.context_wrapper.usage, raw

    return asyncio.run(events())


def deltas(events, kind):
    return [event.delta for event in events if event.type == kind]


def test_a_stream_adds_up_to_the_whole_response(agent):
    text, usage = run(agent(), GREETING)
    final, streamed_usage, events = stream(agent(), GREETING)
    pieces = deltas(events, "response.output_text.delta")
    assert len(pieces) > 3 and "".join(pieces) == final == text != ""
    assert streamed_usage.output_tokens == usage.output_tokens > 0


def test_tool_calls(agent):
    visits = []

    @function_tool
    def visit(place: str, minutes: int) -> str:
        visits.append((place, minutes))
        return "calm"

    visit.params_json_schema = Visit.model_json_schema()
    options = {"tools": [visit], "tool_use_behavior": "stop_on_first_tool", "settings": {"tool_choice": "visit"}}
    output, _ = run(agent(**options), QUESTION)
    streamed, _, events = stream(agent(**options), QUESTION)
    assert output == streamed == "calm"
    whole, again = [Visit(place=place, minutes=minutes) for place, minutes in visits]
    assert whole == again
    pieces = deltas(events, "response.function_call_arguments.delta")
    assert len(pieces) > 1 and Visit.model_validate_json("".join(pieces)) == whole


def test_structured_output(agent):
    output, _ = run(agent(output_type=Visit), QUESTION)
    streamed, _, _ = stream(agent(output_type=Visit), QUESTION)
    assert isinstance(output, Visit) and streamed == output


def test_an_unknown_model(agent):
    with pytest.raises(openai.NotFoundError, match=UNKNOWN_MODEL):
        run(agent(model="nobody"), GREETING)


@function_tool
def look(place: str) -> str:
    """Look at a place."""
    return f"The {place} is calm."


@pytest.fixture
def turns(server):
    """Two agents, the first of which calls a tool, each with its question."""
    model = OpenAIResponsesModel(server.chat_model, server.async_client("/openai/v1"))
    settings = {"temperature": 0, "max_tokens": 80}
    calling = Agent(name="suite", model=model, model_settings=ModelSettings(**settings, tool_choice="look"), tools=[look])
    return [(calling, QUESTION), (Agent(name="suite", model=model, model_settings=ModelSettings(**settings)), GREETING)]


KINDS = ["message", "function_call", "function_call_output", "message", "message", "message"]


def test_a_session_is_a_conversation(server, turns):
    async def run():
        session = OpenAIConversationsSession(openai_client=server.async_client("/openai/v1"))
        outputs = [(await Runner.run(agent, text, session=session)).final_output for agent, text in turns]
        items = await session.get_items()
        last = await session.pop_item()
        left = await session.get_items()
        await session.clear_session()
        return outputs, items, last, left

    outputs, items, last, left = asyncio.run(run())
    assert [item["type"] for item in items] == KINDS
    assert [items[index]["content"][0]["text"] for index in (3, 5)] == outputs
    assert (last, left) == (items[-1], items[:-1])


def test_turns_of_a_conversation(client, turns):
    conversation = client.conversations.create().id

    async def run():
        return [(await Runner.run(agent, text, conversation_id=conversation)).final_output for agent, text in turns]

    outputs = asyncio.run(run())
    items = list(client.conversations.items.list(conversation, order="asc"))
    assert [item.type for item in items] == KINDS
    assert [items[index].content[0].text for index in (3, 5)] == outputs
