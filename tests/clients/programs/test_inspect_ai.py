"""Inspect with its providers `openai-api/` and `ollama/`."""

import asyncio

import pytest
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, ResponseSchema, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate
from inspect_ai.tool import ToolFunction, ToolInfo
from inspect_ai.util import json_schema

from visit import GREETING, QUESTION, UNKNOWN_MODEL, VISIT, Visit

FUNCTION = VISIT["function"]


@pytest.fixture(params=["openai-api/outpost", "ollama"])
def model(request, server):
    """A function that returns a model of a provider."""

    def model(name=server.chat_model, mount="/openai/v1", **more):
        config = GenerateConfig(temperature=0, max_tokens=80, max_retries=0, **more)
        return get_model(f"{request.param}/{name}", base_url=server.url + mount, api_key=server.admin_key, config=config)

    return model


def answer(model, text, **more):
    return asyncio.run(model.generate(text, **more))


@pytest.mark.parametrize("mount", ["/openai/v1", "/v1"])
def test_a_chat(model, mount):
    output = answer(model(mount=mount), GREETING)
    assert output.completion and output.usage.output_tokens > 0


def test_log_probabilities(model):
    output = answer(model(logprobs=True, top_logprobs=2), GREETING)
    tokens = output.choices[0].logprobs.content
    assert len(tokens) >= output.usage.output_tokens - 1 > 0
    assert all(len(token.top_logprobs) == 2 for token in tokens)


def test_a_forced_tool_call(model):
    tool = ToolInfo(name="visit", description=FUNCTION["description"], parameters=FUNCTION["parameters"])
    [call] = answer(model(), QUESTION, tools=[tool], tool_choice=ToolFunction("visit")).message.tool_calls
    assert call.function == "visit" and Visit.model_validate(call.arguments)


def test_a_json_schema_is_enforced(model):
    schema = ResponseSchema(name="visit", json_schema=json_schema(Visit), strict=True)
    assert Visit.model_validate_json(answer(model(response_schema=schema), QUESTION).completion)


def test_an_evaluation(model, tmp_path):
    task = Task(dataset=[Sample(input=GREETING, target="")], solver=generate(), scorer=includes())
    [log] = eval(task, model=model(), display="none", log_dir=str(tmp_path))
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1


def test_an_unknown_model(model):
    with pytest.raises(Exception, match=UNKNOWN_MODEL):
        answer(model("nobody"), GREETING)
