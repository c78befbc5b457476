//! A safetensors file and its `config.json`, which the listing reads in the server's own process. The input is the
//! length of the config (two bytes, little endian), the config, and the file.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use outpost_fuzz::Models;

static MODELS: LazyLock<Models> = LazyLock::new(|| Models::new(false));

fuzz_target!(|data: &[u8]| {
    let Some(([low, high], rest)) = data.split_first_chunk::<2>().map(|(head, rest)| (*head, rest)) else { return };
    let (config, file) = rest.split_at(usize::from(u16::from_le_bytes([low, high])).min(rest.len()));
    MODELS.write("m/config.json", config);
    MODELS.write("m/tokenizer.json", br#"{"decoder":{"type":"ByteLevel"}}"#);
    MODELS.write("m/chat_template.jinja", b"{{ messages }}");
    MODELS.write("m/model.safetensors", file);
    assert_eq!(MODELS.list().len(), 1);
});
