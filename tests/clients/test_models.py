import openai
import pytest


def test_list_pages_through_all_models(client, server):
    models = list(client.models.list())
    names = [model.id for model in models]
    assert server.chat_model in names
    assert len(names) == len(set(names))
    assert all(model.object == "model" and model.owned_by and model.created > 0 for model in models)


def test_retrieve_tells_what_a_model_can(client, server):
    model = client.models.retrieve(server.chat_model, extra_query={"include_limits": "true"})
    assert model.id == server.chat_model
    assert model.limits["context_window"] > 0


def test_strict_list_and_retrieve(strict, server):
    page = strict.models.list()
    assert page.object == "list"
    assert server.chat_model in [model.id for model in page]
    assert strict.models.retrieve(server.chat_model).object == "model"


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no-such-model")
    assert caught.value.code == "model_not_found"


def test_the_envelope_around_models(http, server):
    for path in ["/v1/models", f"/v1/models/{server.chat_model}"]:
        body = http.get(path).json()
        assert (body["object"], body["status"]) == ("service.resource", "succeeded")
        assert body["id"]


def test_embeddings_in_both_encodings_agree(client, server):
    if server.embed_model not in [model.id for model in client.models.list()]:
        pytest.skip(f"{server.embed_model} is not in the models folder")
    texts = ["the cat sat on the mat", "le chat"]
    # Without encoding_format the client asks for base64 and decodes it itself.
    packed = client.embeddings.create(model=server.embed_model, input=texts)
    plain = client.embeddings.create(model=server.embed_model, input=texts, encoding_format="float")
    assert [item.index for item in packed.data] == [0, 1]
    for one, other in zip(packed.data, plain.data):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-5)
        assert sum(x * x for x in one.embedding) == pytest.approx(1, abs=1e-3)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0
