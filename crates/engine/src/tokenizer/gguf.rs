//! Builds the tokenizer of a GGUF file: byte-level BPE (`tokenizer.ggml.model = gpt2`) or BPE of characters (`gemma4`) with the `tokenizers`
//! crate, or SentencePiece BPE (`llama`).

use std::collections::{HashMap, HashSet};

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::Replace;
use tokenizers::{AddedToken, Tokenizer};

use super::byte_alphabet::{META_SPACE, byte_fallback, decode_byte_level, decode_piece, restore_spaces};
use super::checks::check_merges;
use super::fill_in_the_middle::FimTokens;
use super::sentencepiece_bpe::SentencePieceBpe;
use super::{ChatTokenizer, EOS_TOKENS, Encoder, Vocabulary, is_template_token};
use crate::tokenizer::pretokenizer::{self, PreTokenizer};
use crate::tokenizer::special_tokens::{SpecialToken, SpecialTokens};
use outpost_common::display::shorten;
use outpost_models::gguf::{Array, Metadata, Value};

const MERGES: &str = "tokenizer.ggml.merges";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";

/// `tokenizer.ggml.token_type`.
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const BYTE: i64 = 6;

/// The kinds of tokenizers.
#[derive(Clone, Copy)]
pub enum Kind {
    ByteLevelBpe(&'static PreTokenizer),
    SentencePiece,
    /// BPE of characters with ranked merges, and otherwise as SentencePiece: spaces are `▁`, and unknown characters become bytes.
    CharacterBpe,
}

/// Checks that the file's tokenizer is supported. Cheap.
pub fn check(metadata: &Metadata) -> Result<Kind, String> {
    match metadata.text("tokenizer.ggml.model") {
        Some("gpt2") => {
            pretokenizer::find(metadata.text("tokenizer.ggml.pre").unwrap_or("default")).map(Kind::ByteLevelBpe)
        }
        Some("llama") if metadata.flag("tokenizer.ggml.remove_extra_whitespaces") == Some(true) => {
            Err("a tokenizer that removes whitespace is not supported".to_owned())
        }
        Some("llama") => Ok(Kind::SentencePiece),
        Some("gemma4") => Ok(Kind::CharacterBpe),
        Some(other) => Err(format!(
            "the tokenizer '{other}' is not supported; supported: gpt2 (byte-level BPE), llama (SentencePiece) and gemma4 (BPE of characters)"
        )),
        None => Err("the file has no tokenizer (tokenizer.ggml.model)".to_owned()),
    }
}

/// The file's tokens and the type of each.
pub struct GgufVocabulary<'a> {
    pub metadata: &'a Metadata,
    pub texts: &'a [String],
    kinds: Vec<i64>,
    template: &'a str,
}

impl<'a> GgufVocabulary<'a> {
    /// `template`: the chat template, whose tokens count as special.
    pub fn new(metadata: &'a Metadata, template: &'a str) -> Result<Self, String> {
        let texts = metadata.texts(TOKENS).ok_or_else(|| format!("the file has no {TOKENS}"))?;
        if texts.is_empty() {
            return Err(format!("{TOKENS} is empty"));
        }
        let kinds = match metadata.get(TOKEN_TYPE) {
            None => Vec::new(),
            Some(_) => metadata.numbers(TOKEN_TYPE).ok_or_else(|| format!("{TOKEN_TYPE} must be a list of numbers"))?,
        };
        if ![0, texts.len()].contains(&kinds.len()) {
            return Err(format!("{TOKEN_TYPE} has {} entries, but {TOKENS} has {}", kinds.len(), texts.len()));
        }
        Ok(Self { metadata, texts, kinds, template })
    }

    fn is(&self, id: usize, kind: i64) -> bool {
        self.kinds.get(id) == Some(&kind)
    }

    /// True for tokens that are parsed only in templates.
    fn special(&self, id: usize, text: &str) -> bool {
        self.is(id, CONTROL) || self.is(id, USER_DEFINED) && is_template_token(text, self.template)
    }

    pub fn each(&self) -> impl Iterator<Item = (usize, &String)> {
        self.texts.iter().enumerate()
    }

    fn of(&self, kind: i64) -> impl Iterator<Item = (usize, &String)> {
        self.each().filter(move |(id, _)| self.is(*id, kind))
    }

    fn special_tokens(&self) -> impl Iterator<Item = (usize, &String)> {
        self.each().filter(|(id, text)| self.special(*id, text) && !text.is_empty())
    }

    /// User-defined tokens that are not special.
    pub fn user_defined(&self) -> impl Iterator<Item = (usize, &String)> {
        self.of(USER_DEFINED).filter(|(id, text)| !self.special(*id, text) && !text.is_empty())
    }

    /// Tokens that merging does not produce: unknown, control and user-defined tokens.
    pub fn added_tokens(&self) -> impl Iterator<Item = (usize, &String)> {
        let named = |(id, text): &(usize, &String)| {
            !text.is_empty() && [UNKNOWN, CONTROL, USER_DEFINED].iter().any(|kind| self.is(*id, *kind))
        };
        self.each().filter(named)
    }

    /// The token ID in a metadata key that the file must have.
    pub fn required_id(&self, key: &str) -> Result<u32, String> {
        let id = self.metadata.integer(key).ok_or_else(|| format!("the file has no {key}"))?;
        self.id(key).ok_or_else(|| format!("{key} is {id}, but {TOKENS} has {} entries", self.texts.len()))
    }

    /// The token ID in this metadata key; `None` if it is not one of the vocabulary. llama.cpp reads such files, too.
    pub fn id(&self, key: &str) -> Option<u32> {
        let id = self.metadata.integer(key).and_then(|id| u32::try_from(id).ok());
        id.filter(|&id| (id as usize) < self.texts.len())
    }

    /// The score of each token.
    pub fn scores(&self) -> Result<Vec<f32>, String> {
        let array = match self.metadata.get(SCORES) {
            Some(Value::Array(array)) => Array::numbers(array),
            _ => None,
        };
        let array = array.ok_or_else(|| format!("the file has no {SCORES}"))?;
        let scores = array.zip(1..).map(|(score, number)| match score {
            Value::Float(score) if !score.is_nan() => Ok(score as f32),
            other => Err(format!("{SCORES}: entry {number} is {other:?}, which is not a score")),
        });
        let scores = scores.collect::<Result<Vec<_>, _>>()?;
        match scores.len() == self.texts.len() {
            true => Ok(scores),
            false => Err(format!("{SCORES} has {} entries, but {TOKENS} has {}", scores.len(), self.texts.len())),
        }
    }

    /// A byte-level BPE tokenizer that also parses special tokens in texts.
    pub fn tokenizer(&self) -> Result<Tokenizer, String> {
        let Kind::ByteLevelBpe(pre_tokenizer) = check(self.metadata)? else {
            return Err("the tokenizer is not byte-level BPE".to_owned());
        };
        let mut tokenizer = byte_level_bpe(self, pre_tokenizer, |_, _| true)?;
        let special = self.special_tokens().map(|(_, text)| AddedToken::from(text.clone(), true).normalized(false));
        tokenizer.add_special_tokens(special.collect::<Vec<_>>()).map_err(|error| error.to_string())?;
        Ok(tokenizer)
    }

    /// BPE of characters. Unknown characters become bytes or the unknown token.
    pub fn bpe_with_byte_fallback(&self, vocabulary: Vocab, merges: Merges) -> Result<Tokenizer, String> {
        let unknown = self.id("tokenizer.ggml.unknown_token_id").and_then(|id| self.texts.get(id as usize));
        let unknown = unknown.filter(|text| vocabulary.contains_key(*text));
        let mut bpe = BPE::builder().vocab_and_merges(vocabulary, merges).byte_fallback(true).fuse_unk(true);
        if let Some(text) = unknown {
            bpe = bpe.unk_token(text.clone());
        }
        bpe.build().map(Tokenizer::new).map_err(wrong)
    }

    /// Phi-3's special tokens strip the whitespace after them, although its files do not say so. The rule is
    /// llama.cpp's.
    fn rstrip(&self, id: usize, text: &str) -> bool {
        let name = self.metadata.text("general.name").unwrap_or_default().to_lowercase();
        let phi = name.contains("phi-3") || name.contains("phi3");
        phi && (self.is(id, CONTROL) || self.is(id, USER_DEFINED) || text == "</s>")
            && !["<unk>", "<s>", "<|endoftext|>"].contains(&text)
    }
}

impl ChatTokenizer {
    /// `rows` is the number of rows of the token embedding; token IDs must be below it. `template` is the chat
    /// template, whose tokens count as special.
    pub fn from_gguf(metadata: &Metadata, rows: usize, template: &str) -> Result<(Self, Vocabulary), String> {
        let kind = check(metadata)?;
        let table = GgufVocabulary::new(metadata, template)?;
        if table.texts.len() > rows {
            return Err(format!("the tokenizer has {} tokens, but the model only {rows}", table.texts.len()));
        }
        let special_tokens = table.special_tokens().map(|(id, text)| SpecialToken {
            text: text.clone(),
            id: id as u32,
            lstrip: false,
            rstrip: table.rstrip(id, text),
        });
        let special_tokens = SpecialTokens::new(special_tokens.collect())?;
        let (encoder, bos, eos, add_bos) = match kind {
            Kind::ByteLevelBpe(pre_tokenizer) => {
                let tokenizer = Box::new(byte_level_bpe(&table, pre_tokenizer, |id, text| !table.special(id, text))?);
                (
                    Encoder::HuggingFace { tokenizer, after_special: None, continuation: None },
                    None,
                    None,
                    pre_tokenizer.add_bos,
                )
            }
            Kind::SentencePiece => (sentencepiece(&table)?, Some(1), Some(2), true),
            Kind::CharacterBpe => {
                let tokenizer = Box::new(character_bpe(&table)?);
                (Encoder::HuggingFace { tokenizer, after_special: None, continuation: None }, None, None, true)
            }
        };
        let eos = table.id("tokenizer.ggml.eos_token_id").or(eos);
        let eos_ids = EOS_TOKENS.iter().filter_map(|text| special_tokens.id(text)).chain(eos);
        let eos_ids: HashSet<u32> = eos_ids.chain(table.id("tokenizer.ggml.eot_token_id")).collect();
        let vocabulary = Vocabulary {
            bytes: table.each().map(|(id, text)| token_bytes(&table, kind, id, text)).collect(),
            control: table.of(CONTROL).chain(table.of(UNKNOWN)).map(|(id, _)| id as u32).collect(),
            eos_ids,
            bos: table.id("tokenizer.ggml.bos_token_id").or(bos),
            eos,
        }
        .with_harmony();
        let adds_bos = metadata.flag("tokenizer.ggml.add_bos_token").unwrap_or(add_bos);
        let prefix = vocabulary.bos.filter(|_| adds_bos);
        let with_text = |text: &str| table.texts.iter().position(|other| other == text).map(|id| id as u32);
        let fim = FimTokens::of_gguf(|key| table.id(key), with_text);
        Ok((Self { encoder, special_tokens, prefix, document_bos: prefix, fim }, vocabulary))
    }
}

/// True if the file has the tokens of fill-in-the-middle prompts.
pub fn has_fim_tokens(metadata: &Metadata) -> bool {
    let texts = metadata.texts("tokenizer.ggml.tokens").unwrap_or_default();
    let known = |id: &u32| (*id as usize) < texts.len();
    let by_key = |key: &str| metadata.integer(key).and_then(|id| u32::try_from(id).ok()).filter(known);
    let with_text = |text: &str| texts.iter().position(|other| other == text).and_then(|id| u32::try_from(id).ok());
    FimTokens::of_gguf(by_key, with_text).is_some()
}

fn token_bytes(table: &GgufVocabulary<'_>, kind: Kind, id: usize, text: &str) -> Vec<u8> {
    match kind {
        _ if table.special(id, text) => text.as_bytes().to_vec(),
        Kind::SentencePiece | Kind::CharacterBpe if table.is(id, BYTE) => decode_piece(text),
        Kind::SentencePiece | Kind::CharacterBpe => restore_spaces(text).into_bytes(),
        Kind::ByteLevelBpe(_) if table.is(id, USER_DEFINED) => text.as_bytes().to_vec(),
        Kind::ByteLevelBpe(_) => decode_byte_level(text),
    }
}

/// Byte-level BPE of the tokens that `keep` selects.
fn byte_level_bpe(
    table: &GgufVocabulary<'_>,
    pre_tokenizer: &PreTokenizer,
    keep: impl Fn(usize, &str) -> bool,
) -> Result<Tokenizer, String> {
    let (vocabulary, merges) = vocabulary_and_merges(table, keep)?;
    let bpe = BPE::builder().vocab_and_merges(vocabulary, merges).ignore_merges(pre_tokenizer.ignore_merges);
    let mut tokenizer = Tokenizer::new(bpe.build().map_err(wrong)?);
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer.build().map_err(wrong)?));
    with_user_defined(table, tokenizer)
}

/// BPE of characters. As in llama.cpp, no token has both line breaks and other characters.
fn character_bpe(table: &GgufVocabulary<'_>) -> Result<Tokenizer, String> {
    let (vocabulary, merges) = vocabulary_and_merges(table, |id, text| !table.special(id, text))?;
    let mut tokenizer = table.bpe_with_byte_fallback(vocabulary, merges)?;
    tokenizer.with_normalizer(Some(Replace::new(" ", META_SPACE).map_err(wrong)?)).map_err(wrong)?;
    tokenizer.with_pre_tokenizer(Some(pretokenizer::lines().map_err(wrong)?));
    with_user_defined(table, tokenizer)
}

fn wrong(error: tokenizers::Error) -> String {
    format!("the tokenizer cannot be built: {error}")
}

/// The tokens that `keep` selects, and the merges of the file, which are checked.
fn vocabulary_and_merges(
    table: &GgufVocabulary<'_>,
    keep: impl Fn(usize, &str) -> bool,
) -> Result<(Vocab, Merges), String> {
    let merges = table.metadata.texts(MERGES).ok_or_else(|| format!("the file has no {MERGES}"))?;
    let merges = merges.iter().zip(1..).map(|(merge, number)| match merge.split_once(' ') {
        Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
        None => Err(format!("{MERGES}: entry {number} is '{}', which does not have two parts", shorten(merge))),
    });
    let merges = merges.collect::<Result<Vec<_>, _>>()?;
    let vocabulary = table.each().filter(|(id, text)| keep(*id, text));
    let vocabulary: Vocab = vocabulary.map(|(id, text)| (text.clone(), id as u32)).collect();
    let parts = merges.iter().map(|(left, right)| (left.as_str(), right.as_str()));
    check_merges(MERGES, parts, 0, |text| vocabulary.contains_key(text))?;
    Ok((vocabulary, merges))
}

/// Adds the user-defined tokens, which are found in texts before anything else.
fn with_user_defined(table: &GgufVocabulary<'_>, mut tokenizer: Tokenizer) -> Result<Tokenizer, String> {
    let defined = table.user_defined().map(|(_, text)| AddedToken::from(text.clone(), false).normalized(false));
    tokenizer.add_tokens(defined.collect::<Vec<_>>()).map_err(wrong)?;
    Ok(tokenizer)
}

fn sentencepiece(table: &GgufVocabulary<'_>) -> Result<Encoder, String> {
    let scores = table.scores()?;
    let ordinary = |id: usize| ![UNKNOWN, CONTROL, USER_DEFINED, BYTE].iter().any(|kind| table.is(id, *kind));
    let normal = table.each().zip(scores).filter(|((id, _), _)| ordinary(*id));
    let normal: HashMap<_, _> = normal.map(|((id, text), score)| (text.clone(), (id as u32, score))).collect();
    let defined = table.user_defined().map(|(id, text)| (text.replace(' ', META_SPACE), id as u32)).collect();
    let bytes = table.of(BYTE).filter_map(|(id, text)| Some((byte_fallback(text)?, id as u32))).collect();
    let unknown = table.id("tokenizer.ggml.unknown_token_id").or(Some(0));
    let prefix = table.metadata.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    SentencePieceBpe::new(normal, defined, bytes, unknown, prefix)
        .map(|pieces| Encoder::SentencePiece(Box::new(pieces)))
}
