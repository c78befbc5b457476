//! Writes a chat model as a Hugging Face folder, with the random weights of a fixture.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::fixtures::fixture;

/// The chat template of the model.
pub const TEMPLATE: &str =
    "{{ bos_token }}{% for m in messages %}<u>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}";

/// A tokenizer with one token for each letter and four special tokens.
fn tokenizer() -> Value {
    let letters: Vec<String> =
        ('a'..='z').map(|one| one.to_string()).chain(["Ġ", "<", ">", "/"].map(str::to_owned)).collect();
    let vocabulary: serde_json::Map<String, Value> = letters.into_iter().zip((0..).map(|id| json!(id))).collect();
    let special = |(id, text): (usize, &str)| json!({"id": 30 + id, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false});
    let added: Vec<Value> = ["<s>", "</s>", "<u>", "<a>"].into_iter().enumerate().map(special).collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "pre_tokenizer": level, "decoder": level,
        "added_tokens": added,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    })
}

fn write(folder: &Path, name: &str, value: &Value) {
    fs::write(folder.join(name), value.to_string()).unwrap();
}

/// Writes the weights of `tests/fixtures/families/<of>` as the chat model `name` in the folder `root`.
pub fn model(root: &Path, name: &str, of: &str) -> PathBuf {
    let folder = root.join(name);
    fs::create_dir_all(&folder).unwrap();
    for entry in fs::read_dir(fixture("families").join(of)).unwrap().map(|entry| entry.unwrap()) {
        if entry.path().extension().is_none_or(|ending| ending != "gguf") {
            fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
    write(&folder, "tokenizer.json", &tokenizer());
    let templates = json!([{"name": "tool_use", "template": "no"}, {"name": "default", "template": TEMPLATE}]);
    write(
        &folder,
        "tokenizer_config.json",
        &json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": templates}),
    );
    folder
}
