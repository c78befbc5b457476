"""A folder with the models that a machine of CI has: the pulled ones, and tiny ones of the fixtures. Needs no package."""

import json
import shutil
import struct
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def write_tiny_kokoro(folder):
    """A tiny speech model with random weights, two voices and a few words."""
    if folder.exists():
        return
    for name in ("voices", "lexicon"):
        (folder / name).mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(ROOT / "tests/fixtures/kokoro" / name, folder / name)
    for number, voice in enumerate(("af_heart", "am_adam")):
        values = [(at * 7 + number * 31) % 23 / 23 - 0.5 for at in range(510 * 20)]
        (folder / f"voices/{voice}.bin").write_bytes(struct.pack(f"<{len(values)}f", *values))
    words = {"ba": "bˈa", "sha": "ʃˈa"}
    (folder / "lexicon/us_gold.json").write_text(json.dumps(words), encoding="utf-8")


def write_tiny_whisper(folder):
    """A tiny multilingual Whisper model with random weights: that of the browser tests."""
    module = (ROOT / "tests/browser/tiny-whisper.mjs").as_uri()
    script = f"import {{ writeTinyWhisper }} from {json.dumps(module)}; writeTinyWhisper(...process.argv.slice(1))"
    subprocess.run(["node", "--input-type=module", "-e", script, folder.parent, folder.name], check=True)


def link_models(folder):
    """Links the pulled models and small models of the fixtures into a folder."""
    folder.mkdir(exist_ok=True)
    write_tiny_kokoro(folder / "tiny-kokoro")
    write_tiny_whisper(folder / "tiny-whisper")
    fixtures = [ROOT / "tests/fixtures" / name for name in ("pipelines/sd1", "classifiers/toxic-bert")]
    for model in [*(ROOT / "models").iterdir(), *fixtures]:
        if model.is_dir() and not (folder / model.name).exists():
            (folder / model.name).symlink_to(model)
    return str(folder)
