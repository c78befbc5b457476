"""Moderation with the openai package, with a tiny random classifier that has the labels of unitary/toxic-bert."""

import json

import openai
import pytest

from conftest import ROOT

EXPECTED = json.loads((ROOT / "tests/fixtures/classifiers/toxic-bert/expected.json").read_text())
LABELS = EXPECTED["labels"]
TEXTS = [row["text"] for row in EXPECTED["rows"]]


def test_a_response_passes_strict_validation(strict, server):
    response = strict.moderations.create(model=server.moderation_model, input=TEXTS)
    assert response.id.startswith("modr-") and response.model == server.moderation_model
    for result, row in zip(response.results, EXPECTED["rows"], strict=True):
        own = dict(zip(LABELS, row["scores"]))
        assert result.category_scores.hate == pytest.approx(own["identity_hate"], abs=1e-5)
        assert result.categories.harassment_threatening == (own["threat"] >= 0.5)
        assert (result.category_scores.sexual, result.categories.illicit_violent) == (0, False)
        assert result.flagged == (max(own.values()) >= 0.5)
        assert result.category_applied_input_types.hate == ["text"]
        # The labels of the model are extra fields.
        assert {label: result.category_scores.model_extra[label] for label in LABELS} == pytest.approx(own, abs=1e-5)


def test_the_model_may_be_left_out(client, server):
    assert client.moderations.create(input="sea").model == server.moderation_model


def test_the_parts_of_a_message_have_one_result(client):
    parts = [{"type": "text", "text": text} for text in TEXTS[:2]]
    [result] = client.moderations.create(input=parts).results
    highest = max(row["scores"][0] for row in EXPECTED["rows"][:2])
    assert result.category_scores.model_extra["toxic"] == pytest.approx(highest, abs=1e-5)


def test_images_are_refused(client):
    with pytest.raises(openai.BadRequestError, match="moderation reads only text"):
        client.moderations.create(input=[{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}])
