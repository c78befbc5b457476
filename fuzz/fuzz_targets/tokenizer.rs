//! A `tokenizer.json`, which is listed in the server's own process, and loaded and used in a child process.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use outpost_fuzz::Models;

static MODELS: LazyLock<Models> = LazyLock::new(|| {
    let models = Models::new(true);
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/families/llama-tied");
    for entry in std::fs::read_dir(fixture).expect("the fixture").filter_map(Result::ok) {
        let name = entry.file_name().into_string().expect("a name");
        if !name.ends_with(".gguf") {
            models.write(&format!("m/{name}"), &std::fs::read(entry.path()).expect("a file"));
        }
    }
    models.write("m/chat_template.jinja", b"{% for m in messages %}{{ m.content }}{% endfor %}");
    models
});

fuzz_target!(|data: &[u8]| {
    MODELS.write("m/tokenizer.json", data);
    MODELS.prompt("m");
});
