//! The vocabulary of a GGUF file: byte-level BPE (`tokenizer.ggml.model = gpt2`), merged by the
//! `tokenizers` crate, or SentencePiece's (`llama`).

use std::collections::{HashMap, HashSet};

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{AddedToken, Tokenizer};

use super::letters::{SPACE, fallback, letters, piece, spaces};
use super::pieces::Pieces;
use super::{ChatTokenizer, ENDS, Encoder, Vocabulary, privileged};
use crate::engine::tokenizer::pretokenizer::{self, Cut};
use crate::engine::tokenizer::special_tokens::{SpecialToken, SpecialTokens};
use crate::models::gguf::{Array, Metadata, Value};

/// `tokenizer.ggml.token_type`.
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const BYTE: i64 = 6;

/// The kinds of vocabularies.
#[derive(Clone, Copy)]
pub enum Kind {
    Merges(&'static Cut),
    Pieces,
}

/// Whether the file's tokenizer is one of those that can be built; cheap.
pub fn check(metadata: &Metadata) -> Result<Kind, String> {
    match metadata.text("tokenizer.ggml.model") {
        Some("gpt2") => pretokenizer::find(metadata.text("tokenizer.ggml.pre").unwrap_or("default")).map(Kind::Merges),
        Some("llama") if metadata.flag("tokenizer.ggml.remove_extra_whitespaces") == Some(true) => {
            Err("a tokenizer that removes whitespace is not supported".to_owned())
        }
        Some("llama") => Ok(Kind::Pieces),
        Some(other) => Err(format!(
            "the tokenizer '{other}' is not supported: gpt2 (byte-level BPE) and llama (SentencePiece) are"
        )),
        None => Err("the file carries no tokenizer (tokenizer.ggml.model)".to_owned()),
    }
}

/// The file's tokens and what kind of token each is.
pub struct Table<'a> {
    pub metadata: &'a Metadata,
    pub texts: &'a [String],
    kinds: Vec<i64>,
    template: &'a str,
}

impl<'a> Table<'a> {
    /// `template` tells which tokens are its own.
    pub fn new(metadata: &'a Metadata, template: &'a str) -> Result<Self, String> {
        let texts = metadata.texts("tokenizer.ggml.tokens").ok_or("the file has no tokenizer.ggml.tokens")?;
        let kinds = metadata.numbers("tokenizer.ggml.token_type").unwrap_or_default();
        Ok(Self { metadata, texts, kinds, template })
    }

    fn is(&self, id: usize, kind: i64) -> bool {
        self.kinds.get(id) == Some(&kind)
    }

    /// ChatTokenizer that are parsed in templates only.
    fn special(&self, id: usize, text: &str) -> bool {
        self.is(id, CONTROL) || self.is(id, USER_DEFINED) && privileged(text, self.template)
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

    /// User-defined tokens that are vocabulary like any other.
    fn defined(&self) -> impl Iterator<Item = (usize, &String)> {
        self.of(USER_DEFINED).filter(|(id, text)| !self.special(*id, text) && !text.is_empty())
    }

    /// ChatTokenizer that texts do not come to by themselves.
    pub fn named(&self) -> impl Iterator<Item = (usize, &String)> {
        let named = |(id, text): &(usize, &String)| {
            !text.is_empty() && [UNKNOWN, CONTROL, USER_DEFINED].iter().any(|kind| self.is(*id, *kind))
        };
        self.each().filter(named)
    }

    /// The token whose id stands under this key.
    pub fn id(&self, key: &str) -> Option<u32> {
        let id = self.metadata.integer(key).and_then(|id| u32::try_from(id).ok());
        id.filter(|&id| (id as usize) < self.texts.len())
    }

    /// A number for each token.
    pub fn scores(&self) -> Result<Vec<f32>, String> {
        let array = match self.metadata.get("tokenizer.ggml.scores") {
            Some(Value::Array(array)) => Array::numbers(array),
            _ => None,
        };
        let array = array.ok_or("the file has no tokenizer.ggml.scores")?;
        let scores = array.map(|score| match score {
            Value::Float(score) => Some(score as f32),
            _ => None,
        });
        match scores.collect::<Option<Vec<_>>>() {
            Some(scores) if scores.len() == self.texts.len() => Ok(scores),
            _ => Err("tokenizer.ggml.scores has not one number a token".to_owned()),
        }
    }

    /// Byte-level BPE as a whole, which finds special tokens in texts, too.
    pub fn whole(&self) -> Result<Tokenizer, String> {
        let Kind::Merges(cut) = check(self.metadata)? else {
            return Err("the tokens are not of byte-level BPE".to_owned());
        };
        let mut tokenizer = merges(self, cut, |_, _| true)?;
        let special = self.special_tokens().map(|(_, text)| AddedToken::from(text.clone(), true).normalized(false));
        tokenizer.add_special_tokens(special.collect::<Vec<_>>()).map_err(|error| error.to_string())?;
        Ok(tokenizer)
    }

    /// Phi-3's special tokens swallow the whitespace after them, which its files do not say; the
    /// rule is llama.cpp's.
    fn strips_right(&self, id: usize, text: &str) -> bool {
        let name = self.metadata.text("general.name").unwrap_or_default().to_lowercase();
        let phi = name.contains("phi-3") || name.contains("phi3");
        phi && (self.is(id, CONTROL) || self.is(id, USER_DEFINED) || text == "</s>")
            && !["<unk>", "<s>", "<|endoftext|>"].contains(&text)
    }
}

impl ChatTokenizer {
    /// `rows` is the number of embeddings: no token may lie beyond. `template` tells which tokens
    /// are its own.
    pub fn of_gguf(metadata: &Metadata, rows: usize, template: &str) -> Result<(Self, Vocabulary), String> {
        let kind = check(metadata)?;
        let table = Table::new(metadata, template)?;
        if table.texts.is_empty() || table.texts.len() > rows {
            return Err(format!("the tokenizer has {} tokens, the model {rows}", table.texts.len()));
        }
        let special_tokens = table.special_tokens().map(|(id, text)| SpecialToken {
            text: text.clone(),
            id: id as u32,
            strips_left: false,
            strips_right: table.strips_right(id, text),
        });
        let special_tokens = SpecialTokens::new(special_tokens.collect())?;
        let (encoder, bos, eos, add_bos) = match kind {
            Kind::Merges(cut) => {
                let tokenizer = Box::new(merges(&table, cut, |id, text| !table.special(id, text))?);
                (Encoder::Merges { tokenizer, inside: None, continued: None }, None, None, cut.add_bos)
            }
            Kind::Pieces => (pieces(&table)?, Some(1), Some(2), true),
        };
        let eos = table.id("tokenizer.ggml.eos_token_id").or(eos);
        let ends = ENDS.iter().filter_map(|text| special_tokens.id(text)).chain(eos);
        let ends: HashSet<u32> = ends.chain(table.id("tokenizer.ggml.eot_token_id")).collect();
        let vocabulary = Vocabulary {
            bytes: table.each().map(|(id, text)| bytes(&table, kind, id, text)).collect(),
            control: table.of(CONTROL).chain(table.of(UNKNOWN)).map(|(id, _)| id as u32).collect(),
            ends,
            bos: table.id("tokenizer.ggml.bos_token_id").or(bos),
            eos,
        };
        let adds_bos = metadata.flag("tokenizer.ggml.add_bos_token").unwrap_or(add_bos);
        Ok((Self { encoder, special_tokens, prefix: vocabulary.bos.filter(|_| adds_bos) }, vocabulary))
    }
}

fn bytes(table: &Table<'_>, kind: Kind, id: usize, text: &str) -> Vec<u8> {
    match kind {
        _ if table.special(id, text) => text.as_bytes().to_vec(),
        Kind::Pieces if table.is(id, BYTE) => piece(text),
        Kind::Pieces => spaces(text).into_bytes(),
        Kind::Merges(_) if table.is(id, USER_DEFINED) => text.as_bytes().to_vec(),
        Kind::Merges(_) => letters(text),
    }
}

/// Of the tokens that `keep` says.
fn merges(table: &Table<'_>, cut: &Cut, keep: impl Fn(usize, &str) -> bool) -> Result<Tokenizer, String> {
    let merges = table.metadata.texts("tokenizer.ggml.merges").ok_or("the file has no tokenizer.ggml.merges")?;
    let merges = merges.iter().map(|merge| match merge.split_once(' ') {
        Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
        None => Err(format!("the merge '{merge}' has no two halves")),
    });
    let merges = merges.collect::<Result<Vec<_>, _>>()?;
    let vocabulary = table.each().filter(|(id, text)| keep(*id, text));
    let vocabulary: Vocab = vocabulary.map(|(id, text)| (text.clone(), id as u32)).collect();
    let wrong = |error: tokenizers::Error| format!("the tokenizer cannot be built: {error}");
    let bpe = BPE::builder().vocab_and_merges(vocabulary, merges).ignore_merges(cut.ignore_merges);
    let mut tokenizer = Tokenizer::new(bpe.build().map_err(wrong)?);
    tokenizer.with_pre_tokenizer(Some(cut.build().map_err(wrong)?));
    let defined = table.defined().map(|(_, text)| AddedToken::from(text.clone(), false).normalized(false));
    tokenizer.add_tokens(defined.collect::<Vec<_>>()).map_err(wrong)?;
    Ok(tokenizer)
}

fn pieces(table: &Table<'_>) -> Result<Encoder, String> {
    let scores = table.scores()?;
    let ordinary = |id: usize| ![UNKNOWN, CONTROL, USER_DEFINED, BYTE].iter().any(|kind| table.is(id, *kind));
    let normal = table.each().zip(scores).filter(|((id, _), _)| ordinary(*id));
    let normal: HashMap<_, _> = normal.map(|((id, text), score)| (text.clone(), (id as u32, score))).collect();
    let defined = table.defined().map(|(id, text)| (text.replace(' ', SPACE), id as u32)).collect();
    let bytes = table.of(BYTE).filter_map(|(id, text)| Some((fallback(text)?, id as u32))).collect();
    let unknown = table.id("tokenizer.ggml.unknown_token_id").or(Some(0));
    let prefix = table.metadata.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    Pieces::new(normal, defined, bytes, unknown, prefix).map(|pieces| Encoder::Pieces(Box::new(pieces)))
}
