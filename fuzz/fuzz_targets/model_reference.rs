//! The name of a model, which a user or a client of the API gives.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outpost::hub::ModelReference;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(reference) = text.parse::<ModelReference>() {
        // Not always the same one: the query of a URL is not displayed.
        let shown = reference.to_string();
        let again: ModelReference = shown.parse().expect("what is displayed is a reference");
        assert_eq!(again.to_string(), shown);
    }
});
