//! The header of a GGUF file, which the listing reads in the server's own process.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use outpost_fuzz::Models;

static MODELS: LazyLock<Models> = LazyLock::new(|| Models::new(false));

fuzz_target!(|data: &[u8]| {
    MODELS.write("m.gguf", data);
    assert_eq!(MODELS.list().len(), 1);
});
