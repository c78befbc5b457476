"""Embeddings with the cohere package."""

import cohere
import pytest

from visit import cosine


@pytest.fixture
def cohere_client(server):
    return cohere.ClientV2(api_key=server.admin_key, base_url=server.url, timeout=60)


def test_vectors_of_each_type(cohere_client, client, server):
    texts = ["A dog runs across the field.", "A puppy is playing in the meadow.", "Interest rates rose again."]
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    response = cohere_client.embed(
        model=server.embed_model, input_type="search_document", texts=texts, embedding_types=types
    )
    assert response.response_type == "embeddings_by_type"
    assert response.texts == texts
    expected = client.embeddings.create(model=server.embed_model, input=texts)
    assert response.meta.tokens.input_tokens == expected.usage.prompt_tokens
    found = response.embeddings
    assert cosine(found.float_[0], expected.data[0].embedding) == pytest.approx(1, abs=1e-5)
    for vector, small in zip(found.float_, found.int8):
        assert cosine(vector, small) > 0.999
    assert [value - 128 for value in found.uint8[0]] == found.int8[0]
    assert [value - 128 for value in found.ubinary[0]] == found.binary[0]
    # Similar texts have similar signs.
    differ = [sum(bin(a ^ b).count("1") for a, b in zip(found.ubinary[0], other)) for other in found.ubinary[1:]]
    assert differ[0] < differ[1]
    assert len(found.base64) == len(texts)


def test_errors_are_those_of_the_package(cohere_client, server):
    with pytest.raises(cohere.NotFoundError) as caught:
        cohere_client.embed(model="none", input_type="search_query", texts=["a"])
    assert "none" in caught.value.body["message"]
    with pytest.raises(cohere.BadRequestError) as caught:
        cohere_client.embed(model=server.embed_model, input_type="search_query", texts=["a"], truncate="START")
    assert caught.value.body["param"] == "truncate"
    with pytest.raises(cohere.BadRequestError) as caught:
        cohere_client.rerank(model=server.embed_model, query="a", documents=["b"])
    assert caught.value.body["param"] == "model"
