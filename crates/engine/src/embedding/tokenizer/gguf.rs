//! Builds a `tokenizers` tokenizer from a GGUF vocabulary: BERT's WordPiece (`tokenizer.ggml.model = bert`),
//! SentencePiece unigram (`t5`), SentencePiece BPE (`llama`) or byte-level BPE (`gpt2`).

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, PostProcessorWrapper, Tokenizer};

use crate::tokenizer::{self, GgufVocabulary, META_SPACE};
use outpost_models::gguf::Metadata;

/// The error for a tokenizer that the library refuses.
pub fn unusable(error: impl std::fmt::Display) -> String {
    format!("its tokenizer cannot be used: {error}")
}

/// Checks that the kind of vocabulary is supported. Cheap.
pub fn check(metadata: &Metadata) -> Result<(), String> {
    match metadata.text("tokenizer.ggml.model") {
        Some("bert" | "t5") => Ok(()),
        Some("gpt2" | "llama") => tokenizer::check(metadata).map(drop),
        other => Err(format!("the tokenizer {} is not supported for embeddings", other.unwrap_or("without a name"))),
    }
}

pub fn read(metadata: &Metadata) -> Result<Tokenizer, String> {
    check(metadata)?;
    let table = GgufVocabulary::new(metadata, "")?;
    match metadata.text("tokenizer.ggml.model") {
        Some("bert") => word_piece(&table),
        Some("t5") => unigram(&table),
        Some("llama") => sentencepiece_bpe(&table),
        _ => byte_level_bpe(&table),
    }
}

/// The post-processor that adds special tokens to single texts and pairs. In the templates the first text is `$A` and
/// the second `$B`.
fn template_processor(
    single: &str,
    pair: &str,
    special_tokens: Vec<(String, u32)>,
) -> Result<PostProcessorWrapper, String> {
    let mut builder = TemplateProcessing::builder();
    builder.try_single(single).map_err(unusable)?.try_pair(pair).map_err(unusable)?.special_tokens(special_tokens);
    builder.build().map(PostProcessorWrapper::Template).map_err(unusable)
}

/// An entry of `added_tokens`, which are matched before pre-tokenization.
fn added_token(id: usize, text: &str) -> Value {
    json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true})
}

/// BERT's WordPiece. GGUF files mark the pieces that begin a word, `tokenizers` those that continue one.
fn word_piece(table: &GgufVocabulary<'_>) -> Result<Tokenizer, String> {
    let word = |text: &String| match text.strip_prefix('\u{2581}') {
        Some(start) => start.to_owned(),
        None if text.starts_with('[') && text.ends_with(']') => text.clone(),
        None => format!("##{text}"),
    };
    let vocabulary: Map<String, Value> = table.each().map(|(id, text)| (word(text), json!(id))).collect();
    let id = |text: &str| vocabulary.get(text).and_then(Value::as_u64);
    let specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let added: Vec<_> = specials.iter().filter_map(|text| Some(added_token(id(text)? as usize, text))).collect();
    let special_token = |text: &str| match id(text) {
        Some(id) => Ok((text.to_owned(), id as u32)),
        None => Err(format!("the vocabulary has no {text}")),
    };
    let special_tokens = vec![special_token("[CLS]")?, special_token("[SEP]")?];
    let mut tokenizer: Tokenizer = serde_json::from_value(json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary},
    }))
    .map_err(unusable)?;
    tokenizer.with_post_processor(Some(template_processor(
        "[CLS] $A [SEP]",
        "[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens,
    )?));
    Ok(tokenizer)
}

/// XLM-RoBERTa's unigram model (Kudo 2018, <https://arxiv.org/abs/1804.10959>), with the file's own character
/// normalization table.
fn unigram(table: &GgufVocabulary<'_>) -> Result<Tokenizer, String> {
    let id = |name: &str| table.required_id(&format!("tokenizer.ggml.{name}_token_id"));
    let (bos, eos, unknown) = (id("bos")?, id("eos")?, id("unknown")?);
    let text = |id: u32| table.texts.get(id as usize).cloned().unwrap_or_default();
    let charsmap = table.metadata.numbers("tokenizer.ggml.precompiled_charsmap");
    let normalizer = charsmap.filter(|bytes| !bytes.is_empty()).map(|bytes| {
        // Stored as signed or unsigned bytes.
        let bytes: Vec<u8> = bytes.into_iter().map(|byte| byte as u8).collect();
        json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(bytes)})
    });
    let pieces: Vec<_> = table.texts.iter().zip(table.scores()?).collect();
    let added: Vec<_> = table.added_tokens().map(|(id, text)| added_token(id, text)).collect();
    let mut tokenizer: Tokenizer = serde_json::from_value(json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true}]},
        "model": {"type": "Unigram", "unk_id": unknown, "vocab": pieces, "byte_fallback": false},
    }))
    .map_err(unusable)?;
    let (begin, end) = (text(bos), text(eos));
    let (single, pair) = (format!("{begin} $A {end}"), format!("{begin} $A {end} {end} $B {end}"));
    tokenizer.with_post_processor(Some(template_processor(&single, &pair, vec![(begin, bos), (end, eos)])?));
    Ok(tokenizer)
}

/// A pair of adjacent symbols that become one.
struct Merge<'a> {
    /// That of the result.
    score: f32,
    ids: [usize; 2],
    parts: [&'a str; 2],
}

/// A decoder's SentencePiece BPE, with BOS and EOS tokens if the file asks for them. Merges are those of transformers'
/// converter: each pair of pieces whose concatenation is a piece, the best score first, and of equal ones the longest parts.
fn sentencepiece_bpe(table: &GgufVocabulary<'_>) -> Result<Tokenizer, String> {
    // Files have the spaces of user-defined pieces as such.
    let defined: HashMap<usize, String> =
        table.user_defined().map(|(id, text)| (id, text.replace(' ', META_SPACE))).collect();
    let pieces = || table.each().map(|(id, text)| (id, defined.get(&id).unwrap_or(text).as_str()));
    let mut ids: HashMap<&str, usize> = HashMap::with_capacity(table.texts.len());
    pieces().for_each(|(id, text)| {
        ids.entry(text).or_insert(id);
    });
    let mut merges: Vec<Merge<'_>> = Vec::new();
    for ((id, text), score) in pieces().zip(table.scores()?) {
        // The converter to GGUF gives user-defined pieces the worst score.
        let score = if defined.contains_key(&id) { 0. } else { score };
        let splits = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
        let merge =
            |(left, right)| Some(Merge { score, ids: [*ids.get(left)?, *ids.get(right)?], parts: [left, right] });
        let first = merges.len();
        merges.extend(splits.filter_map(merge));
        if let Some(of_piece) = merges.get_mut(first..) {
            of_piece.sort_by_key(|merge| merge.ids);
        }
    }
    merges.sort_by(|one, other| {
        let lengths = |merge: &Merge<'_>| merge.parts.map(|part| part.chars().count());
        other.score.total_cmp(&one.score).then_with(|| lengths(other).cmp(&lengths(one)))
    });
    let merges = merges.into_iter().map(|merge| merge.parts.map(str::to_owned).into()).collect();
    let vocabulary = ids.into_iter().map(|(text, id)| (text.to_owned(), id as u32)).collect();
    let mut tokenizer = table.bpe_with_byte_fallback(vocabulary, merges)?;
    let adds_space = table.metadata.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let mut normalizers = vec![Replace::new(" ", META_SPACE).map_err(unusable)?.into()];
    if adds_space {
        normalizers.insert(0, Prepend::new(META_SPACE.to_owned()).into());
    }
    tokenizer.with_normalizer(Some(Sequence::new(normalizers))).map_err(unusable)?;
    let added = table.added_tokens().map(|(id, text)| defined.get(&id).unwrap_or(text).clone());
    let added: Vec<_> = added.map(|text| AddedToken::from(text, true).normalized(false)).collect();
    tokenizer.add_tokens(added).map_err(unusable)?;
    add_bos_and_eos(&mut tokenizer, table, true)?;
    Ok(tokenizer)
}

/// A decoder's byte-level BPE, with BOS and EOS tokens if the file asks for them.
fn byte_level_bpe(table: &GgufVocabulary<'_>) -> Result<Tokenizer, String> {
    let mut tokenizer = table.tokenizer()?;
    // Qwen's tokenizer.json normalizes to NFC; GGUF has no key for it.
    let uses_nfc = table.metadata.text("tokenizer.ggml.pre") == Some("qwen2");
    tokenizer.with_normalizer(uses_nfc.then_some(NFC)).map_err(unusable)?;
    add_bos_and_eos(&mut tokenizer, table, false)?;
    Ok(tokenizer)
}

/// `adds_bos`: whether the BOS token is added if the file does not say so.
fn add_bos_and_eos(tokenizer: &mut Tokenizer, table: &GgufVocabulary<'_>, adds_bos: bool) -> Result<(), String> {
    let special_token = |name: &str| -> Result<Option<(String, u32)>, String> {
        let adds = table.metadata.flag(&format!("tokenizer.ggml.add_{name}_token"));
        if !adds.unwrap_or(adds_bos && name == "bos") {
            return Ok(None);
        }
        let id = table.required_id(&format!("tokenizer.ggml.{name}_token_id"))?;
        Ok(table.texts.get(id as usize).map(|text| (text.clone(), id)))
    };
    let (bos, eos) = (special_token("bos")?, special_token("eos")?);
    let word = |special_token: &Option<(String, u32)>| special_token.as_ref().map(|(text, _)| text.clone());
    let single: Vec<_> = [word(&bos), Some("$A".to_owned()), word(&eos)].into_iter().flatten().collect();
    let pair: Vec<_> = single.iter().cloned().chain(Some("$B".to_owned())).chain(word(&eos)).collect();
    let special_tokens = bos.into_iter().chain(eos).collect();
    tokenizer.with_post_processor(Some(template_processor(&single.join(" "), &pair.join(" "), special_tokens)?));
    Ok(())
}
