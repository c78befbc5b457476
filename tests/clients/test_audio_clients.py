"""Replays the audio requests of Open WebUI and wyoming-openai, field by field.

Open WebUI 0.12 sends plain HTTP. Its forms have a file of unknown length, so the body is chunked, the file comes last and
has no useful content type. Lists of voices and models are requested without a key. wyoming-openai 0.8 connects Home
Assistant: it uses the openai package, transcribes a WAV file of 16 kHz, and speaks up to three sentences at once as WAV
whose length may be unknown.

By default the models are tiny, and have random weights. `OUTPOST_TEST_WHISPER` and `OUTPOST_TEST_SPEECH` name real models in
the models folder, of which the words and the lengths are tested, too.
"""

import concurrent.futures
import io
import json
import os
import struct
import uuid
import wave
from pathlib import Path

import httpx
import pytest
import soundfile

SPEECH = Path(__file__).resolve().parents[1] / "fixtures/speech"
HEARS_WORDS = "OUTPOST_TEST_WHISPER" in os.environ
SPEAKS_WORDS = "OUTPOST_TEST_SPEECH" in os.environ
# The tiny model has a lexicon of two words.
SENTENCE = "The museum opens at nine in the morning." if SPEAKS_WORDS else "Ba sha ba sha."
# What both clients offer if the server lists no voices.
OPENAI_VOICES = ["alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse"]
USER_HEADERS = {
    "X-OpenWebUI-User-Name": "Ada",
    "X-OpenWebUI-User-Id": str(uuid.UUID(int=1)),
    "X-OpenWebUI-User-Email": "ada@example.org",
    "X-OpenWebUI-User-Role": "admin",
}



def assert_heard(text, words):
    assert text and (not HEARS_WORDS or words in text.lower()), text


def open_webui_form(fields, path, boundary):
    """The parts of the form in the order and with the headers of aiohttp, in chunks."""
    for name, value in fields.items():
        head = f'Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        yield f"--{boundary}\r\n{head}{value}\r\n".encode()
    name = f"{uuid.uuid4()}{path.suffix}"
    yield f'--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
    data = path.read_bytes()
    yield from (data[start : start + 65536] for start in range(0, len(data), 65536))
    yield f"\r\n--{boundary}--\r\n".encode()


@pytest.fixture
def open_webui_transcribes(server, http, mount):
    """A function that sends the form of Open WebUI and returns the response."""

    def transcribe(path, **fields):
        boundary = uuid.uuid4().hex
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}", **USER_HEADERS}
        body = open_webui_form({"model": server.whisper_model, **fields}, path, boundary)
        return http.post(mount + "/audio/transcriptions", content=body, headers=headers)

    return transcribe


@pytest.mark.parametrize("name", ["jfk.flac", "librivox-0880.flac", "librivox-0880.mp3", "librivox-0890.opus"])
def test_open_webui_transcribes(open_webui_transcribes, name):
    response = open_webui_transcribes(SPEECH / name)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("application/json")
    words = {"jfk": "americans", "librivox-0880": "young man", "librivox-0890": "selfish"}
    assert_heard(response.json()["text"], words[name.rsplit(".", 1)[0]])


def test_open_webui_names_a_language(open_webui_transcribes):
    response = open_webui_transcribes(SPEECH / "jfk.flac", language="en")
    assert response.status_code == 200, response.text
    assert_heard(response.json()["text"], "country")


def test_open_webui_shows_the_message_of_an_error(open_webui_transcribes, tmp_path):
    path = tmp_path / "recording.webm"
    path.write_bytes(b"this is not audio" * 100)
    response = open_webui_transcribes(path)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_open_webui_may_send_json_with_audio_in_it(server, http, mount):
    """A setting of Open WebUI that few servers support. A refusal has to be clear."""
    body = {"model": server.whisper_model, "input_audio": {"data": "UklGRg==", "format": "wav"}}
    response = http.post(mount + "/audio/transcriptions", json=body, headers=USER_HEADERS)
    assert response.status_code in (400, 415), response.text
    assert "multipart/form-data" in response.json()["error"]["message"]


def test_open_webui_speaks(server, http, mount):
    body = {"input": SENTENCE, "voice": "af_heart", "model": server.speech_model}
    response = http.post(mount + "/audio/speech", json=body, headers=USER_HEADERS)
    assert response.status_code == 200, response.text
    # Without a format, OpenAI sends MP3. Open WebUI stores the file by this type.
    assert response.headers["content-type"] == "audio/mpeg"
    assert response.content[:3] == b"ID3" or (response.content[0] == 0xFF and response.content[1] >= 0xE0)


def test_open_webui_adds_parameters_from_its_settings(server, http, mount):
    body = {"input": SENTENCE, "voice": "af_heart", "model": server.speech_model, "speed": 1.25, "response_format": "wav"}
    response = http.post(mount + "/audio/speech", json=body, headers=USER_HEADERS)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "audio/wav" and response.content.startswith(b"RIFF")


def test_open_webui_lists_voices(http, mount):
    response = http.get(mount + "/audio/voices")
    assert response.status_code == 200, response.text
    voices = {voice["id"]: voice["name"] for voice in response.json()["voices"]}
    assert "af_heart" in voices and all(isinstance(name, str) and name for name in voices.values())


@pytest.mark.parametrize("path", ["/audio/voices", "/audio/models"])
def test_open_webui_asks_for_lists_without_a_key(server, mount, path):
    """Open WebUI then offers OpenAI's names, so a 401 must come at once and not as a page or a redirect."""
    response = httpx.get(server.url + mount + path, timeout=5)
    assert response.status_code in (200, 401, 404)
    assert "application/json" in response.headers["content-type"]


@pytest.mark.parametrize("voice", OPENAI_VOICES)
def test_names_of_openai_voices_speak(server, http, mount, voice):
    body = {"input": SENTENCE, "voice": voice, "model": server.speech_model, "response_format": "pcm"}
    response = http.post(mount + "/audio/speech", json=body)
    assert response.status_code == 200, response.text
    assert len(response.content) > 1000


def home_assistant_recording(name="jfk.flac"):
    """The WAV file that wyoming-openai writes from the chunks of a microphone."""
    samples, rate = soundfile.read(SPEECH / name, dtype="int16")
    file = io.BytesIO()
    file.name = "recording.wav"
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1), writer.setsampwidth(2), writer.setframerate(rate)
        writer.writeframes(samples.tobytes())
    file.seek(0)
    return file


@pytest.mark.parametrize("more", [{}, {"language": "en"}, {"temperature": 0.0, "prompt": "A speech of a president."}])
def test_wyoming_transcribes(server, mount, more):
    client = server.client(mount)
    result = client.audio.transcriptions.create(file=home_assistant_recording(), model=server.whisper_model, response_format="json", **more)
    assert_heard(result.text, "country")


def test_wyoming_transcribes_as_a_stream(server, mount):
    stream = server.client(mount).audio.transcriptions.create(
        file=home_assistant_recording(), model=server.whisper_model, language="en", response_format="json", stream=True)
    text, kinds = "", []
    for event in stream:
        kinds.append(event.type)
        if event.type == "transcript.text.delta":
            text += event.delta
        elif event.type == "transcript.text.done":
            assert event.text.strip() == text.strip()
    assert kinds[-1] == "transcript.text.done" and kinds.count("transcript.text.done") == 1
    assert_heard(text, "country")


def wav_samples(data):
    """`(rate, samples)` by the rules of wyoming-openai: a length of 0 or of all ones is unknown."""
    assert data[:4] == b"RIFF" and data[8:12] == b"WAVE"
    rate, offset = None, 12
    while offset + 8 <= len(data):
        kind, size = data[offset : offset + 4], struct.unpack_from("<I", data, offset + 4)[0]
        if kind == b"fmt ":
            encoding, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", data, offset + 8)
            assert (encoding, channels, bits) == (1, 1, 16)
        if kind == b"data":
            rest = len(data) - offset - 8
            return rate, (rest if size in (0, 0xFFFFFFFF) else min(size, rest)) // 2
        offset += 8 + size + size % 2
    raise AssertionError("no data chunk")


def wyoming_speaks(server, client, text, **more):
    """The request of wyoming-openai, with its size of chunks."""
    with client.audio.speech.with_streaming_response.create(
        model=server.speech_model, voice="af_heart", input=text, response_format="wav", **more) as response:
        return b"".join(response.iter_bytes(chunk_size=2048))


def test_wyoming_speaks(server, mount):
    rate, samples = wav_samples(wyoming_speaks(server, server.client(mount), SENTENCE))
    assert rate == 24_000 and (1 < samples / rate < 10 if SPEAKS_WORDS else samples > 1000)


def test_wyoming_gives_a_speed_and_instructions(server, mount):
    client = server.client(mount)
    _, slow = wav_samples(wyoming_speaks(server, client, SENTENCE, speed=0.8, instructions="Speak calmly."))
    _, fast = wav_samples(wyoming_speaks(server, client, SENTENCE, speed=1.4))
    assert slow > 1.3 * fast


def test_wyoming_speaks_three_sentences_at_once(server):
    client = server.client()
    texts = ["One boat.", "Two boats are here.", "Three boats left the harbour at noon."] if SPEAKS_WORDS else ["Ba.", "Ba sha.", "Ba sha ba sha ba."]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        lengths = [wav_samples(data)[1] for data in pool.map(lambda text: wyoming_speaks(server, client, text), texts)]
    assert lengths == sorted(lengths)


def test_wyoming_does_not_take_the_server_for_another(server, http, mount):
    """It asks these paths to detect LocalAI and Kokoro-FastAPI, which have other voices. Both must fail."""
    for path in ("/readyz", "/test"):
        response = http.get(mount + path)
        assert not response.is_success, path


def test_wyoming_reads_voices_if_it_is_told_to(http, mount):
    """With the backend set to Kokoro-FastAPI. A voice is a string, or has an `id` or a `name`."""
    voices = http.get(mount + "/audio/voices").json()["voices"]
    names = [voice if isinstance(voice, str) else voice.get("id") or voice.get("name") for voice in voices]
    assert "af_heart" in names and json.dumps(names)
