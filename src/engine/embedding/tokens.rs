//! Texts as tokens, with what an encoder wants around them.

mod gguf;

use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{Tokenizer, TruncationParams};

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

    pub fn encode(&self, text: &str) -> Result<Tokenized, String> {
        let encoding = match self.lower_case {
            true => self.tokenizer.encode_fast(text.to_lowercase(), true),
            false => self.tokenizer.encode_fast(text, true),
        };
        encoding.map(|encoding| Tokenized::new(encoding.get_ids().to_vec())).map_err(|error| error.to_string())
    }

    /// A question and a text that may answer it, of `limit` tokens at most where there is one: then the longer text
    /// loses its end first.
    pub fn encode_pair(&self, first: &str, second: &str, limit: Option<usize>) -> Result<Tokenized, String> {
        let text = |error: tokenizers::Error| error.to_string();
        let mut pair = self.tokenizer.encode_fast((first, second), true).map_err(text)?;
        if let Some(limit) = limit.filter(|limit| pair.len() > *limit) {
            let one = |text: &str, kind: u32| {
                let mut one = self.tokenizer.encode_fast(text, false)?;
                one.set_type_ids(vec![kind; one.len()]);
                Ok(one)
            };
            let (one, other) = (one(first, 0).map_err(text)?, one(second, 1).map_err(text)?);
            let added = pair.len() - one.len() - other.len();
            let rule = TruncationParams { max_length: limit.saturating_sub(added), ..TruncationParams::default() };
            let (one, other) = truncate_encodings(one, Some(other), &rule).map_err(text)?;
            pair = self.tokenizer.post_process(one, other, true).map_err(text)?;
        }
        let ids = pair.get_ids().to_vec();
        let second = pair.get_type_ids().iter().position(|kind| *kind == 1).unwrap_or(ids.len());
        Ok(Tokenized { ids, second })
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
