"""Transcriptions and translations with the openai package and a tiny model, whose texts are random letters."""

import asyncio
import re
from pathlib import Path

import openai
import pytest

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
# Eleven seconds.
RECORDING = FIXTURES / "speech/jfk.flac"
SECONDS = 11


@pytest.fixture
def transcriptions(server, mount):
    """A function that transcribes the recording. The client validates responses without the service envelope."""

    def create(**more):
        client = server.client(mount, _strict_response_validation=mount == "/openai/v1")
        options = {"model": server.whisper_model, "language": "en", "file": RECORDING, **more}
        return client.audio.transcriptions.create(**options)

    return create


def test_each_format_has_the_same_text(transcriptions):
    text = transcriptions().text
    assert text and text == text.strip()
    assert transcriptions(response_format="text").strip() == text
    verbose = transcriptions(response_format="verbose_json", timestamp_granularities=["word", "segment"])
    assert verbose.text == text and verbose.language == "english" and abs(float(verbose.duration) - SECONDS) < 0.1
    assert "".join(segment.text for segment in verbose.segments).strip() == text
    assert [word.word for word in verbose.words] == text.split()
    assert all(0 <= word.start <= word.end <= SECONDS + 0.1 for word in verbose.words)
    subtitles = transcriptions(response_format="srt")
    assert re.match(r"1\n00:00:\d\d,\d{3} --> 00:00:\d\d,\d{3}\n", subtitles)
    assert transcriptions(response_format="vtt").startswith("WEBVTT\n")


def test_a_stream_adds_up_to_the_text(transcriptions):
    events = list(transcriptions(stream=True, include=["logprobs"]))
    *deltas, done = events
    assert {event.type for event in deltas} == {"transcript.text.delta"} and done.type == "transcript.text.done"
    assert "".join(event.delta for event in deltas).strip() == done.text == transcriptions().text
    assert done.logprobs and all(entry.logprob <= 0 for entry in done.logprobs)


def test_a_language_is_detected_and_speech_is_translated(server, mount, transcriptions):
    assert transcriptions(language=openai.omit, response_format="verbose_json").language in ("english", "german")
    translated = server.client(mount).audio.translations.create(model=server.whisper_model, file=RECORDING, response_format="verbose_json")
    assert translated.language == "english" and translated.text


def test_the_async_client_and_file_like_objects(server, mount):
    async def run():
        with RECORDING.open("rb") as file:
            options = {"model": server.whisper_model, "file": ("speech.flac", file, "audio/flac"), "prompt": "A speech."}
            return await server.async_client(mount).audio.transcriptions.create(**options)

    result = asyncio.run(run())
    assert result.text and result.usage.seconds == pytest.approx(SECONDS, abs=0.1)


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"file": ("speech.mp3", b"this is not audio")}, "file", "WAV"),
        ({"file": ("speech.mp3", b"")}, "file", "empty"),
        ({"language": "klingon"}, "language", "german"),
        ({"response_format": "diarized_json"}, "response_format", "verbose_json"),
        ({"temperature": 3}, "temperature", "from 0 to 1"),
    ],
)
def test_errors_name_the_field(transcriptions, more, param, words):
    with pytest.raises(openai.BadRequestError) as caught:
        transcriptions(**more)
    assert caught.value.param == param and words in str(caught.value)
