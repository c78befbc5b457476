//! An encoder's tokenizer: tokenizes single texts and pairs, with special tokens.

mod gguf;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{
    Encoding, ModelWrapper, PostProcessor as _, PostProcessorWrapper, Tokenizer, TruncationDirection, TruncationParams,
};

use super::pair_prompt::{PairPrompt, PairTemplate};
use crate::preprocessor::PairLengths;
use crate::preprocessor::tokenizer_info::EncoderTokenizerInfo;
use crate::tokenizer::checks::check_tokenizer_json;
use crate::tokenizer::files::{TextFiles, named_token};
use crate::tokenizer::vocabulary_files::{self, MERGES, TOKENS, WORDS};
use crate::tokenizer::{TokenizeLimits, chunks, tokenizer_json};
pub use gguf::check as check_gguf;
use gguf::unusable;
use outpost_common::clock_rng::ClockRng;
use outpost_models::encoder::Tokenized;
use outpost_models::gguf::Metadata;

/// An encoder's tokenizer.
pub struct EncoderTokenizer {
    tokenizer: Tokenizer,
    lower_case: bool,
    /// The token that is left out of texts.
    left_out: Option<u32>,
    /// The template of pairs, instead of the tokenizer's own.
    pair_template: Option<PairTemplate>,
    info: EncoderTokenizerInfo,
}

/// What [`EncoderTokenizer`] needs to know besides the files of the tokenizer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderTokenizerSpec {
    pub lower_case: bool,
    /// The number of rows of the token embedding. Tokens beyond it, which the files may have for images, do not exist.
    pub rows: usize,
    /// Texts get no special tokens, and unknown tokens are left out.
    pub is_bare: bool,
    /// The prompt of pairs, instead of the tokenizer's own template.
    pub pair_prompt: Option<PairPrompt>,
    /// Words whose tokens the server needs.
    pub words: Vec<String>,
}

impl EncoderTokenizer {
    pub fn from_folder(
        files: &TextFiles,
        spec: &EncoderTokenizerSpec,
        clock: &Arc<dyn ClockRng>,
    ) -> Result<Self, String> {
        let config = files.json("tokenizer_config.json")?;
        let tokenizer = match TokenizerFiles::choose(|name| files.has(name), &files.json("config.json")?) {
            TokenizerFiles::Whole => {
                let json = tokenizer_json::content(files)?;
                check_tokenizer_json(json)?;
                tokenizer_json::parse(&without_tokens_beyond(json, spec.rows)?)
            }
            of_vocabulary => {
                let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
                let class = class.trim_end_matches("Fast");
                // Others of these families split texts differently.
                if !["", "BertTokenizer", "DistilBertTokenizer", "RobertaTokenizer"].contains(&class) {
                    return Err(format!("its {class} is supported only with a tokenizer.json"));
                }
                let json = match of_vocabulary {
                    TokenizerFiles::Roberta => vocabulary_files::roberta(files),
                    _ => vocabulary_files::bert(files),
                };
                serde_json::from_value(json.map_err(unusable)?)
            }
        };
        let token = |key: &str| named_token(&config, key).unwrap_or_default();
        Self::new(tokenizer.map_err(unusable)?, spec, [token("bos_token"), token("eos_token")], clock)
    }

    /// Checks that a folder with this `config.json` has a tokenizer's files. Cheap enough for listings.
    pub fn check_folder(folder: &Path, config: &Value) -> Result<(), String> {
        match TokenizerFiles::choose(|name| folder.join(name).is_file(), config) {
            TokenizerFiles::Whole if !folder.join("tokenizer.json").is_file() => {
                Err("the folder has no tokenizer.json".to_owned())
            }
            _ => Ok(()),
        }
    }

    pub fn from_gguf(
        metadata: &Metadata,
        spec: &EncoderTokenizerSpec,
        clock: &Arc<dyn ClockRng>,
    ) -> Result<Self, String> {
        Self::new(gguf::read(metadata)?, spec, ["", ""], clock)
    }

    fn new(
        mut tokenizer: Tokenizer,
        spec: &EncoderTokenizerSpec,
        bos_and_eos: [&str; 2],
        clock: &Arc<dyn ClockRng>,
    ) -> Result<Self, String> {
        tokenizer.with_truncation(None).map_err(unusable)?;
        tokenizer.with_padding(None);
        let mut left_out = None;
        if spec.is_bare {
            tokenizer.with_post_processor(None::<PostProcessorWrapper>);
            left_out = unknown_token(&tokenizer);
        }
        let bare = tokenizer.encode_fast("a", false).map_err(unusable)?;
        let whole = tokenizer.encode_fast("a", true).map_err(unusable)?;
        let (bare, whole) = (bare.get_ids(), whole.get_ids());
        let at = whole.windows(bare.len().max(1)).position(|part| part == bare);
        let at = at.ok_or_else(|| unusable("its post-processor drops the text"))?;
        let (prefix, suffix) = (whole.get(..at), whole.get(at + bare.len()..));
        let (prefix, suffix) = (prefix.unwrap_or_default().to_vec(), suffix.unwrap_or_default().to_vec());
        let word = |word: &String| {
            tokenizer
                .token_to_id(word)
                .ok_or_else(|| format!("its tokenizer has no token {word}, which scores depend on"))
        };
        let words = spec.words.iter().map(word).collect::<Result<_, _>>()?;
        let info = EncoderTokenizerInfo { vocabulary: tokenizer.get_vocab_size(true), prefix, suffix, words };
        let pair_template = spec.pair_prompt.as_ref().map(|prompt| PairTemplate::new(prompt, bos_and_eos, clock));
        let pair_template = pair_template.transpose()?;
        Ok(Self { tokenizer, lower_case: spec.lower_case, left_out, pair_template, info })
    }

    pub fn info(&self) -> &EncoderTokenizerInfo {
        &self.info
    }

    /// Tokenizes each text with [`Self::encode`]. Unless `keep_going`, the first text over the limits is the last of
    /// the result.
    pub fn encode_all(
        &self,
        texts: &[Cow<'_, str>],
        keep_going: bool,
        limits: &TokenizeLimits,
    ) -> Result<Vec<(Tokenized, bool)>, String> {
        until_limits(texts.iter().map(|text| self.encode(text, limits)), keep_going, limits)
    }

    /// The text of these tokens, special tokens included.
    pub fn decode(&self, ids: &[u32]) -> Result<String, String> {
        self.tokenizer.decode(ids, false).map_err(|error| error.to_string())
    }

    /// These tokens as the tokenizer writes them; empty for unknown IDs.
    pub fn pieces(&self, ids: &[u32]) -> Vec<String> {
        ids.iter().map(|id| self.tokenizer.id_to_token(*id).unwrap_or_default()).collect()
    }

    /// Tokenizes the query with each document: as a prompt with the `instruction` ([`Self::encode_prompt`]), or else with the
    /// tokenizer's template ([`Self::encode_pair`]). Without a length of pairs in `max`, the first pair over the limits is the
    /// last of the result.
    pub fn encode_pairs(
        &self,
        query: &str,
        documents: &[String],
        instruction: Option<&str>,
        max: PairLengths,
        limits: &TokenizeLimits,
    ) -> Result<Vec<(Tokenized, bool)>, String> {
        let pairs = documents.iter().map(|document| match &self.pair_template {
            Some(template) => self.encode_prompt(template, [query, document], instruction, max, limits),
            None => self.encode_pair(query, document, max, limits),
        });
        until_limits(pairs, max.pair.is_some(), limits)
    }

    /// A text's tokens with special tokens, and whether they are complete: tokenizing stops at `limits`.
    fn encode(&self, text: &str, limits: &TokenizeLimits) -> Result<(Tokenized, bool), String> {
        let (encoding, complete) = self.tokenize(text, limits)?;
        let encoding = self.tokenizer.post_process(encoding, None, true).map_err(|error| error.to_string())?;
        let ids = encoding.get_ids().iter().copied().filter(|id| Some(*id) != self.left_out);
        Ok((Tokenized::new(ids.collect()), complete))
    }

    /// A text's tokens without special tokens.
    fn tokenize(&self, text: &str, limits: &TokenizeLimits) -> Result<(Encoding, bool), String> {
        let (mut parts, mut count) = (Vec::new(), 0);
        for chunk in chunks(text) {
            if limits.are_reached(count) {
                return Ok((Encoding::merge(parts, false), false));
            }
            let part = match self.lower_case {
                true => self.tokenizer.encode_fast(chunk.to_lowercase(), false),
                false => self.tokenizer.encode_fast(chunk, false),
            };
            let part = part.map_err(|error| error.to_string())?;
            count += part.len();
            parts.push(part);
        }
        Ok((Encoding::merge(parts, false), true))
    }

    /// The prompt of a query and a document, without the special tokens of single texts. If it is truncated, the part of the
    /// template after the document remains, as in sentence-transformers. Says whether the tokens are otherwise complete, as
    /// [`Self::encode`] does.
    fn encode_prompt(
        &self,
        template: &PairTemplate,
        [query, document]: [&str; 2],
        instruction: Option<&str>,
        max: PairLengths,
        limits: &TokenizeLimits,
    ) -> Result<(Tokenized, bool), String> {
        let tokens = |query: &str, document: &str, limits: &TokenizeLimits| {
            let (tokens, complete) = self.tokenize(&template.render(instruction, query, document)?, limits)?;
            Ok::<_, String>((tokens.get_ids().to_vec(), complete))
        };
        let (mut ids, complete) = tokens(query, document, limits)?;
        let mut length = max.pair.unwrap_or(ids.len());
        if let Some(document_length) = max.document {
            // A token may have text of the template and of the document, which counts as one of the document.
            let (without, _) = tokens(query, "", limits)?;
            length = length.min(without.len() + document_length);
        }
        if ids.len() > length {
            // What two pairs of texts have in common at the end is the template's.
            let unlimited = TokenizeLimits::default();
            let ((one, _), (other, _)) = (tokens("0", "0", &unlimited)?, tokens("1 2 3 4", "1 2 3 4", &unlimited)?);
            let common = one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count();
            let end = one.get(one.len() - common.min(length)..).unwrap_or_default();
            ids.truncate(length - end.len());
            ids.extend(end);
        }
        Ok((Tokenized::new(ids), complete))
    }

    /// A query and a document, truncated as `max` says. Says whether the tokens are otherwise complete, as [`Self::encode`]
    /// does.
    fn encode_pair(
        &self,
        first: &str,
        second: &str,
        max: PairLengths,
        limits: &TokenizeLimits,
    ) -> Result<(Tokenized, bool), String> {
        let unusable = |error: tokenizers::Error| error.to_string();
        let ((one, complete), (mut other, other_complete)) =
            (self.tokenize(first, limits)?, self.tokenize(second, limits)?);
        if let Some(length) = max.document {
            other.truncate(length, 0, TruncationDirection::Right);
        }
        other.set_type_ids(vec![1; other.len()]);
        let added = self.tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(true));
        let (one, other) = match max.pair.filter(|max_length| one.len() + other.len() + added > *max_length) {
            Some(max_length) => {
                let rule =
                    TruncationParams { max_length: max_length.saturating_sub(added), ..TruncationParams::default() };
                truncate_encodings(one, Some(other), &rule).map_err(unusable)?
            }
            None => (one, Some(other)),
        };
        let pair = self.tokenizer.post_process(one, other, true).map_err(unusable)?;
        let ids = pair.get_ids().to_vec();
        let second = pair.get_type_ids().iter().position(|kind| *kind == 1).unwrap_or(ids.len());
        Ok((Tokenized { ids, second }, complete && other_complete))
    }
}

/// The token of what is not in the vocabulary, if there is one.
fn unknown_token(tokenizer: &Tokenizer) -> Option<u32> {
    match tokenizer.get_model() {
        ModelWrapper::WordPiece(model) => tokenizer.token_to_id(&model.unk_token),
        ModelWrapper::WordLevel(model) => tokenizer.token_to_id(&model.unk_token),
        ModelWrapper::BPE(model) => tokenizer.token_to_id(model.get_unk_token().as_ref()?),
        // The crate keeps the ID to itself.
        ModelWrapper::Unigram(_) => ["<unk>", "[UNK]"].iter().find_map(|text| tokenizer.token_to_id(text)),
    }
}

/// The content of a `tokenizer.json` without added tokens whose IDs are not below `rows`. A text that names one would have no
/// embedding.
fn without_tokens_beyond(json: &[u8], rows: usize) -> Result<Cow<'_, [u8]>, String> {
    let mut parts: BTreeMap<String, &RawValue> = serde_json::from_slice(json).map_err(unusable)?;
    let Some(added) = parts.get("added_tokens") else { return Ok(Cow::Borrowed(json)) };
    let mut added: Vec<Value> = serde_json::from_str(added.get()).map_err(unusable)?;
    let count = added.len();
    added.retain(|token| token.get("id").and_then(Value::as_u64).is_none_or(|id| id < rows as u64));
    if added.len() == count {
        return Ok(Cow::Borrowed(json));
    }
    let kept = to_raw_value(&added).map_err(unusable)?;
    parts.insert("added_tokens".to_owned(), &*kept);
    serde_json::to_vec(&parts).map(Cow::Owned).map_err(unusable)
}

/// The files that a tokenizer is read from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenizerFiles {
    /// `tokenizer.json`
    Whole,
    /// BERT's vocabulary.
    Bert,
    /// RoBERTa's vocabulary.
    Roberta,
}

impl TokenizerFiles {
    /// Older folders have only a vocabulary, which says how texts are split only together with the model's type.
    fn choose(has: impl Fn(&str) -> bool, config: &Value) -> Self {
        match config.get("model_type").and_then(Value::as_str) {
            _ if has("tokenizer.json") => Self::Whole,
            Some("bert" | "distilbert") if has(WORDS) => Self::Bert,
            Some("roberta") if has(TOKENS) && has(MERGES) => Self::Roberta,
            _ => Self::Whole,
        }
    }
}

/// Collects the results. Unless `keep_going`, stops after the first that is over the limits.
fn until_limits(
    results: impl Iterator<Item = Result<(Tokenized, bool), String>>,
    keep_going: bool,
    limits: &TokenizeLimits,
) -> Result<Vec<(Tokenized, bool)>, String> {
    let mut all = Vec::new();
    for result in results {
        let (text, complete) = result?;
        let is_over = !complete || limits.are_reached(text.ids.len());
        all.push((text, complete));
        if is_over && !keep_going || limits.is_cancelled() {
            break;
        }
    }
    Ok(all)
}
