"""Speech with the openai package and a tiny model of the fixtures, which knows two words."""

import base64
import json

import openai
import pytest

from conftest import MOUNTS

TEXT = "Ba sha."


@pytest.fixture
def model(http):
    """The model; the tests are skipped if the models folder is another one."""
    if http.get("/v1/models/tiny-kokoro").status_code != 200:
        pytest.skip("the model tiny-kokoro is not installed")
    return "tiny-kokoro"


@pytest.mark.parametrize("mount", MOUNTS)
@pytest.mark.parametrize(
    ("format", "kind", "begin"),
    [("mp3", "audio/mpeg", b"\xff"), ("opus", "audio/ogg", b"OggS"), ("flac", "audio/flac", b"fLaC"), ("wav", "audio/wav", b"RIFF")])
def test_speech_has_the_requested_format(server, mount, model, format, kind, begin):
    response = server.client(mount).audio.speech.create(model=model, voice="alloy", input=TEXT, response_format=format)
    assert response.response.headers["content-type"] == kind
    assert response.content.startswith(begin)


@pytest.mark.parametrize("mount", MOUNTS)
def test_speech_is_streamed_as_bytes_and_as_events(server, http, mount, model):
    client, body = server.client(mount), {"model": model, "voice": "af_heart", "input": TEXT, "response_format": "pcm"}
    with client.audio.speech.with_streaming_response.create(**body, speed=0.5, instructions="Calmly.") as response:
        slow = b"".join(response.iter_bytes())
    fast = client.audio.speech.create(**body, speed=2).content
    assert len(slow) > len(fast) > 0 and len(slow) % 2 == 0
    with http.stream("POST", mount + "/audio/speech", json={**body, "speed": 0.5, "stream_format": "sse"}) as response:
        events = [json_of(line) for line in response.iter_lines() if line.startswith("data: ")]
    assert [event["type"] for event in events] == ["speech.audio.delta"] * (len(events) - 1) + ["speech.audio.done"]
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == slow
    assert events[-1]["usage"]


def json_of(line):
    return json.loads(line.removeprefix("data: "))


def test_errors_name_the_field(server, model):
    for field, value in [("voice", "nobody"), ("input", "?"), ("speed", 9.0), ("response_format", "aac")]:
        body = {"model": model, "voice": "alloy", "input": TEXT, field: value}
        with pytest.raises(openai.BadRequestError) as caught:
            server.client().audio.speech.create(**body)
        assert caught.value.param == field, caught.value


@pytest.mark.parametrize("mount", MOUNTS)
def test_voices_are_listed(http, mount, model):
    voices = http.get(f"{mount}/audio/voices", params={"model": model}).json()["voices"]
    assert [voice["id"] for voice in voices] == ["af_heart", "am_adam"]
    assert voices[0] == {"id": "af_heart", "name": "af_heart", "language": "en-US", "model": model}
