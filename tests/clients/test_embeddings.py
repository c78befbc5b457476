"""Embeddings with the openai package, langchain and plain HTTP."""

import asyncio
import base64
import math
from array import array

import openai
import pytest
from langchain_openai import OpenAIEmbeddings

from visit import cosine

TEXTS = [
    "A dog runs across the field.",
    "Interest rates rose again this month.",
    "море",
    "A puppy is playing in the meadow. " * 6,
    "  spaces\n\nand lines  ",
    "🙂",
]
# "hello world" in the model's vocabulary. The server adds the special tokens.
HELLO = [7592, 2088]


@pytest.fixture
def embed(client, server):
    """A function that returns the vectors of the input, and the response."""

    def embed(input, **more):
        response = client.embeddings.create(model=server.embed_model, input=input, **more)
        return [item.embedding for item in response.data], response

    return embed


def floats(vector):
    """The vector as 32-bit floats, because JSON may have fewer digits of the same number."""
    return array("f", vector).tolist()


def close(a, b):
    return len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) < 1e-4


def test_one_text(embed, server):
    [vector], response = embed("A lighthouse stands at the end of the pier.")
    assert response.model == server.embed_model
    assert (response.data[0].object, response.data[0].index) == ("embedding", 0)
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-4)


def test_a_response_passes_strict_validation(strict, server):
    # The client's response type does not include base64, so validation would always fail for it.
    response = strict.embeddings.create(model=server.embed_model, input=TEXTS, encoding_format="float")
    assert len(response.data) == len(TEXTS)


def test_both_formats_give_the_same_vectors(embed):
    default, _ = embed(TEXTS)
    plain, _ = embed(TEXTS, encoding_format="float")
    assert [floats(vector) for vector in default] == [floats(vector) for vector in plain]


def test_encoding_formats_over_http(http, mount, server):
    def embedding(**more):
        response = http.post(mount + "/embeddings", json={"model": server.embed_model, "input": "sea", **more})
        assert response.status_code == 200, response.text
        return response.json()["data"][0]["embedding"]

    plain, packed = embedding(), embedding(encoding_format="base64")
    assert isinstance(plain, list) and isinstance(packed, str)
    assert array("f", base64.b64decode(packed)).tolist() == floats(plain)


def test_vectors_are_in_the_order_of_the_texts(embed):
    together, response = embed(TEXTS)
    assert [each.index for each in response.data] == list(range(len(TEXTS)))
    for text, vector in zip(TEXTS, together):
        assert close(embed(text)[0][0], vector), text


def test_a_list_of_one_text_equals_the_text(embed):
    assert embed(["sea"])[0] == embed("sea")[0]


def test_many_texts_in_one_request(embed):
    texts = [f"number {number}" for number in range(300)]
    vectors, _ = embed(texts + texts[:3])
    assert all(close(a, b) for a, b in zip(vectors[300:], vectors))
    assert len({tuple(vector) for vector in vectors}) == 300


def test_token_input_equals_text_input(embed):
    (text, other), response = embed(["hello world", "hello"])
    for tokens, vectors in [(HELLO, [text]), ([HELLO], [text]), ([HELLO, HELLO[:1]], [text, other])]:
        found, of_tokens = embed(tokens, extra_body={"token_ids": "model"})
        assert len(found) == len(vectors) and all(close(a, b) for a, b in zip(found, vectors))
    assert of_tokens.usage == response.usage


def test_similar_texts_have_similar_vectors(embed):
    (dog, rates, puppy), _ = embed([TEXTS[0], TEXTS[1], "A puppy is running through the grass."])
    assert cosine(dog, puppy) > cosine(dog, rates) + 0.2


def test_usage_is_counted(embed):
    counts = []
    for input in ("sea", "hello world", ["sea", "hello world"]):
        usage = embed(input)[1].usage
        assert usage.prompt_tokens == usage.total_tokens > 0
        counts.append(usage.prompt_tokens)
    assert counts[1] == counts[0] + 1
    assert counts[2] == counts[0] + counts[1]


def test_project_usage_equals_the_reported_usage(server, http, project, project_key):
    client = server.client(key=project_key["secret"])
    summary = [client.embeddings.create(model=server.embed_model, input=input).usage for input in ("sea", TEXTS)]
    usage = http.get(f"/v1/projects/{project}/usage", params={"group_by": "model"}).json()
    assert usage["requests"] == 2
    assert (usage["tokens"]["input"], usage["tokens"]["output"]) == (sum(each.prompt_tokens for each in summary), 0)
    assert [group["model"] for group in usage["groups"]] == [server.embed_model]


def test_unsupported_dimensions_are_refused(embed, client, server):
    model = client.models.retrieve(server.embed_model, extra_query={"include_limits": "true"})
    own = model.limits["embedding_dimensions"]
    assert embed("sea", dimensions=own)[0] == embed("sea")[0]
    assert len(embed("sea")[0][0]) == own
    for other in (0, 1, own - 1, own + 1, 10**6):
        with pytest.raises(openai.BadRequestError) as caught:
            embed("sea", dimensions=other)
        assert (caught.value.code, caught.value.param) == ("invalid_parameter", "dimensions")


BAD = [
    ("", "input"),
    ([], "input"),
    (["sea", ""], "input[1]"),
    ([HELLO, []], "input[1]"),
    ([[]], "input[0]"),
    (["sea"] * 2049, "input"),
    ([HELLO, [2**31 - 1]], "input"),
    (["sea", 7], "input"),
    ({"text": "sea"}, "input"),
]


@pytest.mark.parametrize("input,param", BAD, ids=[f"{param}-{i}" for i, (_, param) in enumerate(BAD)])
def test_an_invalid_input_is_named(embed, input, param):
    with pytest.raises(openai.BadRequestError) as caught:
        embed(input, extra_body={"token_ids": "model"})
    error = caught.value
    assert (error.type, error.code) == ("invalid_request_error", "invalid_parameter")
    assert error.param and error.param.startswith(param), error.param


def test_token_ids_of_an_unknown_tokenizer_are_refused(embed):
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False") as caught:
        embed(HELLO)
    assert caught.value.param == "input"


def test_an_unknown_encoding_format_is_refused(embed):
    with pytest.raises(openai.BadRequestError) as caught:
        embed("sea", encoding_format="hex")
    assert caught.value.param == "encoding_format"


def test_a_chat_model_cannot_embed(client, server):
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=server.chat_model, input="sea")
    assert caught.value.param == "model"


def test_an_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="no-such-model", input="sea")
    assert caught.value.code == "model_not_found"


def test_the_model_lists_its_capabilities(client, server):
    model = client.models.retrieve(server.embed_model)
    assert model.capabilities["embeddings"] is True
    assert model.capabilities["chat_completions"] is False


def test_concurrent_requests_get_their_own_vectors(embed, server):
    texts = [f"{word} {number}" for number in range(16) for word in ("sea", "море")]
    alone = [vectors[0] for vectors, _ in map(embed, texts)]

    async def together():
        async with server.async_client() as client:
            asked = [client.embeddings.create(model=server.embed_model, input=text) for text in texts]
            return [response.data[0].embedding for response in await asyncio.gather(*asked)]

    assert all(close(a, b) for a, b in zip(asyncio.run(together()), alone))


def test_langchain(embed, server):
    # The length check would download a tiktoken vocabulary, which belongs to another model.
    model = OpenAIEmbeddings(
        model=server.embed_model, base_url=server.url + "/v1", api_key=server.admin_key, check_embedding_ctx_length=False)
    vectors, _ = embed(TEXTS)
    assert all(close(a, b) for a, b in zip(model.embed_documents(TEXTS), vectors))
    assert close(model.embed_query(TEXTS[0]), vectors[0])
    assert all(close(a, b) for a, b in zip(asyncio.run(model.aembed_documents(TEXTS)), vectors))
