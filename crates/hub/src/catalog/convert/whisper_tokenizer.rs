//! Makes a `tokenizer.json` from the ranks of Whisper's vocabulary, as transformers' `WhisperTokenizer` has it.

use serde_json::{Map, Value, json};

use super::tiktoken::Ranks;
use outpost_models::whisper::{SpecialTokens, timestamp_texts};

/// The tokenizer: byte-level byte pair encoding, and the special tokens after the tokens of text.
///
/// # Errors
/// If the ranks do not fit the special tokens.
pub fn tokenizer(ranks: &Ranks, special: SpecialTokens) -> Result<Value, String> {
    let count = ranks.tokens().len() as u64;
    if count != special.end_of_text {
        return Err(format!("has {count} tokens instead of {}", special.end_of_text));
    }
    let alphabet = alphabet();
    let text = |bytes: &[u8]| bytes.iter().filter_map(|byte| alphabet.get(usize::from(*byte))).collect::<String>();
    let mut vocabulary: Map<String, Value> =
        ranks.tokens().iter().zip(0_u64..).map(|(token, id)| (text(token), id.into())).collect();
    vocabulary.insert("<|endoftext|>".into(), special.end_of_text.into());
    let merges: Vec<String> =
        ranks.merges()?.into_iter().map(|(left, right)| format!("{} {}", text(left), text(right))).collect();
    let byte_level =
        |space: bool| json!({"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": true, "use_regex": true});
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(special),
        "normalizer": null,
        "pre_tokenizer": byte_level(false),
        "post_processor": post_processor(special),
        "decoder": byte_level(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": false,
            "byte_fallback": false,
            "vocab": vocabulary,
            "merges": merges,
        },
    }))
}

/// The character that stands for each byte in byte-level vocabularies: itself if it is printable Latin-1, else one of
/// those from U+0100 on, in order.
fn alphabet() -> Vec<char> {
    let mut next = (0x100_u32..).filter_map(char::from_u32);
    (0..=u8::MAX)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => next.next().unwrap_or_default(),
        })
        .collect()
}

fn added_tokens(special: SpecialTokens) -> Vec<Value> {
    let controls = special.control_texts().into_iter().map(|text| (text, true));
    let timestamps = timestamp_texts().map(|text| (text, false));
    let tokens = (special.end_of_text..).zip(controls.chain(timestamps));
    let token = |(id, (text, special)): (u64, (String, bool))| {
        json!({
            "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": !special, "special": special,
        })
    };
    tokens.map(token).collect()
}

/// Wraps a text as a transcript without timestamps.
fn post_processor(special: SpecialTokens) -> Value {
    let named = [
        ("<|startoftranscript|>", special.start_of_transcript()),
        ("<|notimestamps|>", special.no_timestamps()),
        ("<|endoftext|>", special.end_of_text),
    ];
    let token = |name: &str, kind: u32| json!({"SpecialToken": {"id": name, "type_id": kind}});
    let sequence = |name: &str, kind: u32| json!({"Sequence": {"id": name, "type_id": kind}});
    let details = named.map(|(name, id)| (name.to_owned(), json!({"id": name, "ids": [id], "tokens": [name]})));
    let [(start, _), (no_timestamps, _), (end, _)] = named;
    json!({
        "type": "TemplateProcessing",
        "single": [token(start, 0), token(no_timestamps, 0), sequence("A", 0), token(end, 0)],
        "pair": [
            token(start, 0), token(no_timestamps, 0), sequence("A", 0), sequence("B", 1), token(end, 1),
        ],
        "special_tokens": Map::from_iter(details),
    })
}
