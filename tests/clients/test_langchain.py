"""LangChain: `langchain-openai`."""

import openai
import pytest
from langchain_core.exceptions import ModelNotFoundError
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from visit import GREETING, QUESTION, UNKNOWN_MODEL, VISIT, Visit, cosine


@pytest.fixture(scope="module")
def connection(server):
    return {"base_url": server.url + "/openai/v1", "api_key": server.admin_key, "max_retries": 0}


@pytest.fixture(scope="module")
def chat(server, connection):
    return ChatOpenAI(**connection, model=server.chat_model, temperature=0, max_tokens=80, stream_usage=True)


def added(chunks):
    first, *rest = chunks
    return sum(rest, start=first)


def test_a_stream_adds_up_to_the_whole_response(chat):
    whole = chat.invoke(GREETING)
    chunks = list(chat.stream(GREETING))
    streamed = added(chunks)
    assert len(chunks) > 3 and streamed.content == whole.content != ""
    assert streamed.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"] > 0
    assert streamed.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"]


def test_tool_calls(chat):
    bound = chat.bind_tools([VISIT], tool_choice="visit")
    [whole] = bound.invoke(QUESTION).tool_calls
    [streamed] = added(bound.stream(QUESTION)).tool_calls
    assert whole["name"] == streamed["name"] == "visit"
    assert Visit.model_validate(whole["args"]) == Visit.model_validate(streamed["args"])


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat, method):
    structured = chat.with_structured_output(Visit, method=method)
    visit = structured.invoke(QUESTION)
    assert isinstance(visit, Visit)
    assert list(structured.stream(QUESTION))[-1] == visit


def test_embeddings(server, connection, plain_vector):
    embeddings = OpenAIEmbeddings(**connection, model=server.embed_model, check_embedding_ctx_length=False)
    [vector, other] = embeddings.embed_documents(["the sea", "interest rates"])
    assert cosine(vector, plain_vector("the sea")) > 0.9999
    assert cosine(other, plain_vector("interest rates")) > 0.9999
    assert cosine(embeddings.embed_query("the sea"), vector) > 0.9999


def test_an_unknown_model(connection):
    with pytest.raises(ModelNotFoundError, match=UNKNOWN_MODEL) as refused:
        ChatOpenAI(**connection, model="nobody").invoke(GREETING)
    assert isinstance(refused.value, openai.NotFoundError)
