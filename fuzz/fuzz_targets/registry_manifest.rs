//! The manifest of a registry, which lists the files of a model.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outpost::hub::Manifest;

fuzz_target!(|data: &[u8]| {
    if let Ok(manifest) = Manifest::parse(data) {
        let _digest_or_refusal = manifest.entry();
        let _files_or_refusal = manifest.artifact("model");
    }
});
