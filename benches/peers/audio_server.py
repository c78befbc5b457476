"""An `outpost serve` process with requests for the audio routes, and the word error rate that the comparisons report."""

import http.client
import json
import pathlib
import re
import time
import uuid

from chat import Outpost


def multipart(fields, name, data):
    """`(body, content type)` of a form with text fields and one file. A list of values repeats its field."""
    boundary, parts = uuid.uuid4().hex, []
    for key, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            parts.append(f'--{boundary}\r\ncontent-disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode())
    head = f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\ncontent-type: audio/wav\r\n\r\n'
    return b"".join([*parts, head.encode(), data, f"\r\n--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"


def transcription(host, port, key, path, fields):
    """The JSON response of POST /v1/audio/transcriptions for a file."""
    body, content_type = multipart(fields, path.name, path.read_bytes())
    connection = http.client.HTTPConnection(host, port, timeout=3600)
    connection.request("POST", "/v1/audio/transcriptions", body, {"authorization": f"Bearer {key}", "content-type": content_type})
    response = connection.getresponse()
    data = response.read()
    assert response.status == 200, f"{path.name}: {response.status} {data[:400]!r}"
    return json.loads(data)


class AudioServer(Outpost):
    """An Outpost server for one model folder. Its ID is the folder's name."""

    def __init__(self, folder, threads, arguments=(), binary=None):
        super().__init__(folder.name, threads, arguments, folder.parent, binary)

    def transcribe(self, path, **fields):
        fields = {"model": self.model, "response_format": "verbose_json", "language": "en"} | fields
        return transcription("127.0.0.1", self.port, self.key, path, fields)["text"].strip()

    def speak(self, text, voice, model=None):
        """`(seconds to the first bytes of sound, seconds to the end, samples as s16le)`."""
        body = {"model": model or self.model, "input": text, "voice": voice, "response_format": "pcm"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        began = time.perf_counter()
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        connection.request("POST", "/v1/audio/speech", json.dumps(body), headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()[:400]
        sound = response.read1(65536)
        first = time.perf_counter() - began
        sound += response.read()
        return first, time.perf_counter() - began, sound

    def peak_memory(self):
        return peak_memory(self.process.pid)


def peak_memory(pid):
    """The highest resident memory of a process, in MiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 1024


class WordErrors:
    """The word error rate over texts that Whisper's normalizer for English has made comparable."""

    def __init__(self, model):
        from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

        self.normalize = EnglishTextNormalizer(json.loads((model / "normalizer.json").read_text()))

    def rate(self, references, texts):
        import jiwer

        pairs = [(self.normalize(reference), self.normalize(text)) for reference, text in zip(references, texts)]
        return jiwer.wer([reference for reference, _ in pairs], [text for _, text in pairs])
