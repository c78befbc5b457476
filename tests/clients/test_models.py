import openai
import pytest


def test_list_pages_through_all_models(client, server):
    models = list(client.models.list())
    names = [model.id for model in models]
    assert server.chat_model in names
    assert len(names) == len(set(names))
    assert all(model.object == "model" and model.owned_by and model.created > 0 for model in models)


def test_retrieve_lists_a_models_capabilities(client, server):
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
