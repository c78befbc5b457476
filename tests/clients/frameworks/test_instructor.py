"""Instructor: structured output by tool calls and by JSON schema."""

import instructor
import pytest
from instructor.core import InstructorRetryException

from visit import GREETING, QUESTION, UNKNOWN_MODEL, Visit

MODES = [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA]


@pytest.fixture
def ask(server):
    """A function that calls a method of the patched client."""

    def ask(mode, method="create", response_model=Visit, text=QUESTION, **more):
        patched = instructor.from_openai(server.client("/openai/v1"), mode=mode)
        arguments = {"model": server.chat_model, "temperature": 0, "max_tokens": 120, "max_retries": 0, **more}
        messages = [{"role": "user", "content": text}]
        return getattr(patched, method)(response_model=response_model, messages=messages, **arguments)

    return ask


def test_text(ask):
    response = ask(instructor.Mode.TOOLS, response_model=None, text=GREETING)
    assert response.choices[0].message.content and response.usage.completion_tokens > 0


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_ends_with_the_whole_response(ask, mode):
    visit = ask(mode)
    partial = list(ask(mode, "create_partial"))
    assert isinstance(visit, Visit) and len(partial) > 3
    assert partial[-1].model_dump() == visit.model_dump()


@pytest.mark.parametrize("mode", MODES)
def test_the_raw_response_has_usage(ask, mode):
    visit, response = ask(mode, "create_with_completion")
    assert isinstance(visit, Visit) and response.usage.completion_tokens > 0


@pytest.mark.parametrize("mode", MODES)
def test_an_unknown_model(ask, mode):
    with pytest.raises(InstructorRetryException, match=UNKNOWN_MODEL):
        ask(mode, model="nobody")
