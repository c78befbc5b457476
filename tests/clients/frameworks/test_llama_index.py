"""LlamaIndex: `llama-index-llms-openai-like` and `llama-index-embeddings-openai-like`."""

import openai
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

from visit import GREETING, QUESTION, UNKNOWN_MODEL, Visit, cosine


@pytest.fixture(scope="module")
def connection(server):
    return {"api_base": server.url + "/openai/v1", "api_key": server.admin_key, "max_retries": 0}


@pytest.fixture(scope="module")
def make_llm(server, connection):
    """A function that makes an `OpenAILike`."""

    def make_llm(model=server.chat_model):
        kind = {"is_chat_model": True, "is_function_calling_model": True, "should_use_structured_outputs": True}
        return OpenAILike(**connection, **kind, model=model, context_window=8192, max_tokens=80, temperature=0)

    return make_llm


def test_a_stream_adds_up_to_the_whole_response(make_llm):
    whole = make_llm().complete(GREETING)
    pieces = [chunk.delta for chunk in make_llm().stream_complete(GREETING)]
    assert len(pieces) > 3 and "".join(pieces) == whole.text != ""
    assert whole.raw.usage.completion_tokens > 0


def test_tool_calls(make_llm):
    tool = FunctionTool.from_defaults(lambda place, minutes: "calm", name="visit", fn_schema=Visit)
    options = {"tools": [tool], "user_msg": QUESTION, "tool_required": True}
    whole = make_llm().chat_with_tools(**options)
    *_, streamed = make_llm().stream_chat_with_tools(**options)
    calls = [make_llm().get_tool_calls_from_response(response)[0] for response in (whole, streamed)]
    assert [call.tool_name for call in calls] == ["visit", "visit"]
    first, second = [Visit.model_validate(call.tool_kwargs) for call in calls]
    assert first == second


def test_structured_output(make_llm):
    structured = make_llm().as_structured_llm(Visit)
    visit = structured.complete(QUESTION).raw
    assert isinstance(visit, Visit)
    *_, last = structured.stream_chat([ChatMessage(role="user", content=QUESTION)])
    assert last.raw == visit


def test_embeddings(server, connection, plain_vector):
    embeddings = OpenAILikeEmbedding(**connection, model_name=server.embed_model)
    texts = ["the sea", "interest rates"]
    for text, vector in zip(texts, embeddings.get_text_embedding_batch(texts), strict=True):
        assert cosine(vector, plain_vector(text)) > 0.9999
    assert cosine(embeddings.get_query_embedding("the sea"), plain_vector("the sea")) > 0.9999


def test_an_unknown_model(make_llm):
    with pytest.raises(openai.NotFoundError, match=UNKNOWN_MODEL):
        make_llm(model="nobody").complete(GREETING)
