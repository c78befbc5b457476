"""DSPy: `dspy.LM` through LiteLLM, and `dspy.Embedder`."""

import asyncio
import os

import pytest

# Otherwise, the package downloads its table of models.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy  # noqa: E402
import litellm  # noqa: E402

from visit import GREETING, QUESTION, UNKNOWN_MODEL, VISIT, Visit, cosine  # noqa: E402


class Plan(dspy.Signature):
    """Plan a visit."""

    text: str = dspy.InputField()
    visit: Visit = dspy.OutputField()


@pytest.fixture
def lm(server):
    """A function that makes a `dspy.LM` that may request JSON schemas and tools."""

    def lm(model=server.chat_model, **more):
        capabilities = {"supports_response_schema": True, "supports_function_calling": True}
        litellm.register_model({f"openai/{model}": {"litellm_provider": "openai", "mode": "chat", **capabilities}})
        connection = {"api_base": server.url + "/openai/v1", "api_key": server.admin_key, "num_retries": 0}
        return dspy.LM(f"openai/{model}", engine="litellm", cache=False, temperature=0, max_tokens=120, **connection, **more)

    return lm


def test_text(lm):
    chat = lm()
    [text] = chat(GREETING)
    assert text and chat.history[-1]["usage"]["completion_tokens"] > 0


def test_a_tool_call(lm):
    choice = {"type": "function", "function": {"name": "visit"}}
    [output] = lm()(QUESTION, tools=[VISIT], tool_choice=choice)
    [call] = output["tool_calls"]
    assert call.function.name == "visit"
    Visit.model_validate_json(call.function.arguments)


def test_structured_output(lm):
    chat = lm()
    with dspy.context(lm=chat, adapter=dspy.JSONAdapter()):
        assert isinstance(dspy.Predict(Plan)(text=QUESTION).visit, Visit)
    assert "visit" in chat.history[-1]["kwargs"]["response_format"].model_fields


def test_a_stream_ends_with_a_prediction(lm):
    async def pieces():
        with dspy.context(lm=lm(), adapter=dspy.JSONAdapter()):
            predict = dspy.streamify(dspy.Predict(Plan))
            return [piece async for piece in predict(text=QUESTION)]

    *chunks, prediction = asyncio.run(pieces())
    assert len(chunks) > 3 and isinstance(prediction.visit, Visit)


def test_embeddings(server, plain_vector):
    connection = {"api_base": server.url + "/openai/v1", "api_key": server.admin_key}
    embed = dspy.Embedder(f"openai/{server.embed_model}", caching=False, **connection)
    assert cosine(embed(["the sea"])[0].tolist(), plain_vector("the sea")) > 0.9999


def test_an_unknown_model(lm):
    with pytest.raises(dspy.LMUnsupportedModelError, match=UNKNOWN_MODEL):
        lm(model="nobody")(GREETING)
