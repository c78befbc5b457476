//! A chat template, which is loaded and rendered in a child process.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use outpost_fuzz::Models;
use outpost_fuzz::tiny_model::{TinyModel, bytes};

static MODELS: LazyLock<Models> = LazyLock::new(|| Models::new(true));
/// The space for the template in the file. It is padded with spaces.
const MAX_LENGTH: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let Ok(template) = std::str::from_utf8(data) else { return };
    if template.len() > MAX_LENGTH {
        return;
    }
    static FILE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let template = Some(&*"#".repeat(MAX_LENGTH).leak());
        bytes(&TinyModel { template, blocks: 1, ..TinyModel::default() })
    });
    let mut file = FILE.clone();
    let start =
        file.windows(MAX_LENGTH).position(|window| window.iter().all(|byte| *byte == b'#')).expect("the template");
    file[start..start + MAX_LENGTH].fill(b' ');
    file[start..start + template.len()].copy_from_slice(template.as_bytes());
    MODELS.write("m.gguf", &file);
    MODELS.prompt("m");
});
