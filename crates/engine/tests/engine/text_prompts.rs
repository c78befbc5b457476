//! Prompts without a chat template: special tokens, and fill-in-the-middle prompts.

use outpost_engine::{InfillTexts, SpecialTokenOptions, TextModel, TokenizeLimits};

use crate::harness::rig;
use crate::tiny_model::{DEFAULT, TinyModel};

const MARKERS: &[(&str, i32)] = &[("<fim_prefix>", 3), ("<fim_suffix>", 3), ("<fim_middle>", 3), ("<before>", 3)];

fn infill(model: &TextModel, prefix: &str, suffix: &str) -> Option<Vec<u32>> {
    let (prefix, suffix) = (prefix.to_owned(), suffix.to_owned());
    let texts = InfillTexts { files: Vec::new(), prefix, suffix, middle: String::new(), max_tokens: None };
    model.infill_prompt(&texts, &TokenizeLimits::default()).unwrap().map(|prompt| prompt.ids)
}

fn text(model: &TextModel, text: &str, parse: bool) -> Vec<u32> {
    let special = SpecialTokenOptions { add: true, parse };
    model.text_prompt(text, special, &TokenizeLimits::default()).unwrap().ids
}

#[test]
fn tokens_for_filling_in_the_middle_are_found_by_text_or_by_metadata() {
    let by_text = rig(&TinyModel { markers: MARKERS, ..DEFAULT }, |_| ());
    let model = &by_text.model;
    let expected = [
        text(model, "<fim_prefix>", true),
        model.encode("the <fim_suffix>").unwrap(),
        text(model, "<fim_suffix>", true),
        model.encode("on").unwrap(),
        text(model, "<fim_middle>", true),
    ];
    assert!([0, 2, 4].iter().all(|part| expected[*part].len() == 1) && expected[1].len() > 5);
    assert_eq!(infill(model, "the <fim_suffix>", "on"), Some(expected.concat()));

    // The file's own names take precedence.
    let named_tokens = &[
        ("tokenizer.ggml.prefix_token_id", "<before>"),
        ("tokenizer.ggml.fim_suf_token_id", "<fim_suffix>"),
        ("tokenizer.ggml.fim_mid_token_id", "<fim_middle>"),
    ];
    let named = rig(&TinyModel { markers: MARKERS, named_tokens, ..DEFAULT }, |_| ());
    let mut renamed = expected;
    renamed[0] = text(&named.model, "<before>", true);
    assert_eq!(infill(&named.model, "the <fim_suffix>", "on"), Some(renamed.concat()));

    let none = rig(&DEFAULT, |_| ());
    assert_eq!(infill(&none.model, "a", "b"), None);
}

#[test]
fn decoding_reverses_a_text_prompt() {
    let rig = rig(&DEFAULT, |_| ());
    for sample in ["hello the world", " x", "<|im_start|>user\n🦀<|im_end|>", ""] {
        for parse in [false, true] {
            assert_eq!(rig.model.decode(&text(&rig.model, sample, parse)), sample);
        }
    }
    assert_eq!(text(&rig.model, "<|im_end|>", true).len(), 1);
    assert!(text(&rig.model, "<|im_end|>", false).len() > 5);
    assert_eq!(rig.model.decode(&[u32::MAX]), "");
}
