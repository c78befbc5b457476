//! A configuration file.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tempfile::NamedTempFile;

static FILE: LazyLock<NamedTempFile> = LazyLock::new(|| NamedTempFile::new().expect("a file"));

fuzz_target!(|data: &[u8]| {
    std::fs::write(FILE.path(), data).expect("a file");
    if let Ok(Some(file)) = outpost::config::load(Some(FILE.path())) {
        assert!(file.settings.iter().all(|setting| setting.line > 0));
    }
});
