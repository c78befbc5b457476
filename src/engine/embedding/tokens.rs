//! Texts as tokens, with what an encoder wants around them.

mod gguf;

use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{Encoding, PostProcessor as _, Tokenizer, TruncationParams};

use crate::engine::tokens::{TokenBound, slices};
use crate::models::encoder::Tokenized;
use crate::models::gguf::Metadata;
use crate::models::safetensors::{Folder, read_json};
pub use gguf::check as check_gguf;

pub(super) struct TextTokens {
    tokenizer: Tokenizer,
    lower_case: bool,
    /// What stands before and behind every single text.
    before: Vec<u32>,
    behind: Vec<u32>,
}

fn wrong(error: impl std::fmt::Display) -> String {
    format!("its tokenizer cannot be used: {error}")
}

impl TextTokens {
    pub fn of_folder(folder: &Folder, lower_case: bool) -> Result<Self, String> {
        let path = folder.path.join("tokenizer.json");
        if !path.is_file() {
            return Err("the folder has no tokenizer.json".to_owned());
        }
        let json = read_json(&path).map_err(|error| error.to_string())?;
        Self::new(serde_json::from_value(json).map_err(wrong)?, lower_case)
    }

    pub fn of_gguf(metadata: &Metadata) -> Result<Self, String> {
        Self::new(gguf::read(metadata)?, false)
    }

    fn new(mut tokenizer: Tokenizer, lower_case: bool) -> Result<Self, String> {
        tokenizer.with_truncation(None).map_err(wrong)?;
        tokenizer.with_padding(None);
        let bare = tokenizer.encode_fast("a", false).map_err(wrong)?;
        let whole = tokenizer.encode_fast("a", true).map_err(wrong)?;
        let (bare, whole) = (bare.get_ids(), whole.get_ids());
        let at = whole.windows(bare.len().max(1)).position(|part| part == bare);
        let at = at.ok_or_else(|| wrong("it does not keep texts in what it makes of them"))?;
        let (before, behind) = (whole.get(..at), whole.get(at + bare.len()..));
        let (before, behind) = (before.unwrap_or_default().to_vec(), behind.unwrap_or_default().to_vec());
        Ok(Self { tokenizer, lower_case, before, behind })
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// A text's tokens with what belongs around them, and whether these are all: a long text is tokenised only as far
    /// as `bound` says.
    pub fn encode(&self, text: &str, bound: &TokenBound) -> Result<(Tokenized, bool), String> {
        let (encoding, complete) = self.bare(text, bound)?;
        let encoding = self.tokenizer.post_process(encoding, None, true).map_err(|error| error.to_string())?;
        Ok((Tokenized::new(encoding.get_ids().to_vec()), complete))
    }

    /// A text's tokens with nothing around them.
    fn bare(&self, text: &str, bound: &TokenBound) -> Result<(Encoding, bool), String> {
        let (mut parts, mut count) = (Vec::new(), 0);
        for slice in slices(text) {
            if bound.is_reached(count) {
                return Ok((Encoding::merge(parts, false), false));
            }
            let part = match self.lower_case {
                true => self.tokenizer.encode_fast(slice.to_lowercase(), false),
                false => self.tokenizer.encode_fast(slice, false),
            };
            let part = part.map_err(|error| error.to_string())?;
            count += part.len();
            parts.push(part);
        }
        Ok((Encoding::merge(parts, false), true))
    }

    /// A question and a text that may answer it, of `limit` tokens at most where there is one: then the longer text
    /// loses its end first. Whether nothing is missing but for that, as with [`Self::encode`].
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        limit: Option<usize>,
        bound: &TokenBound,
    ) -> Result<(Tokenized, bool), String> {
        let wrong = |error: tokenizers::Error| error.to_string();
        let ((one, complete), (mut other, other_complete)) = (self.bare(first, bound)?, self.bare(second, bound)?);
        other.set_type_ids(vec![1; other.len()]);
        let added = self.tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(true));
        let (one, other) = match limit.filter(|limit| one.len() + other.len() + added > *limit) {
            Some(limit) => {
                let rule = TruncationParams { max_length: limit.saturating_sub(added), ..TruncationParams::default() };
                truncate_encodings(one, Some(other), &rule).map_err(wrong)?
            }
            None => (one, Some(other)),
        };
        let pair = self.tokenizer.post_process(one, other, true).map_err(wrong)?;
        let ids = pair.get_ids().to_vec();
        let second = pair.get_type_ids().iter().position(|kind| *kind == 1).unwrap_or(ids.len());
        Ok((Tokenized { ids, second }, complete && other_complete))
    }

    /// A text's tokens, which a caller has made himself, with what belongs around them.
    pub fn wrap(&self, ids: &[u32]) -> Tokenized {
        let whole = ids.len() >= self.before.len() + self.behind.len()
            && ids.starts_with(&self.before)
            && ids.ends_with(&self.behind);
        let parts = [self.before.as_slice(), ids, self.behind.as_slice()];
        Tokenized::new(if whole { ids.to_vec() } else { parts.concat() })
    }

    /// Leaves out what is too much of a single text, before what stands behind every text.
    pub fn cut(&self, text: &mut Tokenized, limit: usize) {
        if text.ids.len() > limit {
            text.ids.truncate(limit.saturating_sub(self.behind.len()));
            text.ids.extend(&self.behind);
            text.second = text.ids.len();
        }
    }
}
