//! Encodes prompts for the text between a prefix and a suffix, and cuts them to a number of tokens.

use std::collections::VecDeque;

use super::fill_in_the_middle::{FimTokens, InfillFile, InfillTexts, RepositoryTokens};
use super::{ChatTokenizer, Position, TokenIds, TokenizeLimits, chunks};

/// Of a text that may be cut, no more bytes than this for each token of room are looked at. Tokens of code have about four.
const MAX_TOKEN_BYTES: usize = 16;

/// The name of the repository, and that of the file with the gap: requests have neither, but models expect them.
const REPOSITORY: &str = "project\n";
const CURRENT_FILE: &str = "current\n";

impl ChatTokenizer {
    /// Encodes a prompt whose completion is the text between two others, after the model's BOS token if it has one. Special
    /// tokens in the texts stay text. `None`: the model has no tokens for such prompts. The prompt is not complete if it was cut
    /// to [`InfillTexts::max_tokens`], or else if tokenizing stopped at `limits`.
    pub fn encode_infill(&self, texts: &InfillTexts, limits: &TokenizeLimits) -> Option<TokenIds> {
        self.fim.map(|fim| InfillEncoder { tokens: self, fim, texts, limits }.encode())
    }
}

struct InfillEncoder<'a> {
    tokens: &'a ChatTokenizer,
    fim: FimTokens,
    texts: &'a InfillTexts,
    limits: &'a TokenizeLimits,
}

/// Tokens of a text, and whether they are all.
type Encoded = (Vec<u32>, bool);

impl InfillEncoder<'_> {
    fn encode(&self) -> TokenIds {
        let InfillTexts { files, prefix, suffix, middle, max_tokens } = self.texts;
        // The completion continues the prefix, and the suffix the completion, so no space is prepended to them.
        let (middle, mut complete) = self.text(middle, Position::Continuation);
        let (repository, current_file) = match files.is_empty() {
            true => (Vec::new(), Vec::new()),
            false => self.repository_headers(),
        };
        let bos = self.tokens.document_bos;
        let markers = 3 + usize::from(bos.is_some());
        let room =
            max_tokens.map(|max| max.saturating_sub(markers + middle.len() + repository.len() + current_file.len()));
        let (prefix, suffix, whole) = match room {
            None => {
                let (prefix, whole) = self.text(prefix, Position::AfterSpecial);
                let (suffix, suffix_whole) = self.text(suffix, Position::Continuation);
                (prefix, suffix, whole && suffix_whole)
            }
            Some(room) => self.around(room),
        };
        complete &= whole;
        let left = room.map(|room| room.saturating_sub(prefix.len() + suffix.len()));
        let (files, all) = self.files(left);
        complete &= all;
        let FimTokens { prefix: prefix_token, suffix: suffix_token, middle: middle_token, .. } = self.fim;
        let ids = [
            bos.into_iter().collect(),
            repository,
            files,
            current_file,
            vec![prefix_token],
            prefix,
            vec![suffix_token],
            suffix,
            vec![middle_token],
            middle,
        ];
        TokenIds { ids: ids.concat(), complete }
    }

    fn text(&self, text: &str, position: Position) -> Encoded {
        let limits = if text.len() > chunks::MAX_CHUNK { self.limits } else { &TokenizeLimits::default() };
        let mut ids = Vec::new();
        let complete = self.tokens.encoder.append(text, position, limits, &mut ids);
        (ids, complete)
    }

    /// The end of the prefix and the beginning of the suffix, in `room` tokens: three quarters are for the prefix, and what one
    /// of them leaves is for the other.
    fn around(&self, room: usize) -> (Vec<u32>, Vec<u32>, bool) {
        let bytes = room.saturating_mul(MAX_TOKEN_BYTES);
        let (prefix, suffix) = (&self.texts.prefix, &self.texts.suffix);
        let (before, after) = (last_bytes(prefix, bytes), first_bytes(suffix, bytes));
        let mut whole = before.len() == prefix.len() && after.len() == suffix.len();
        let (mut before, before_whole) = self.text(before, Position::AfterSpecial);
        let (mut after, after_whole) = self.text(after, Position::Continuation);
        whole &= before_whole && after_whole;
        if before.len() + after.len() > room {
            whole = false;
            after.truncate((room / 4).max(room.saturating_sub(before.len())));
            before.drain(..before.len().saturating_sub(room - after.len()));
        }
        (before, after, whole)
    }

    /// The files, or the last of them for which there is `room`.
    fn files(&self, room: Option<usize>) -> Encoded {
        let mut kept = VecDeque::new();
        let mut room = room;
        for file in self.texts.files.iter().rev() {
            if room.is_some_and(|room| file.text.len() > room.saturating_mul(MAX_TOKEN_BYTES)) {
                break;
            }
            let (ids, whole) = self.file(file);
            if !whole || room.is_some_and(|room| ids.len() > room) {
                break;
            }
            room = room.map(|room| room - ids.len());
            kept.push_front(ids);
        }
        let all = kept.len() == self.texts.files.len();
        (Vec::from(kept).concat(), all)
    }

    fn file(&self, InfillFile { name, text }: &InfillFile) -> Encoded {
        let mut ids = self.file_header(&format!("{name}\n"));
        let (text, whole) = self.text(&format!("{text}\n"), Position::Continuation);
        ids.extend(text);
        (ids, whole)
    }

    /// The header of a file. Without a token for it, the name is a line like any other.
    fn file_header(&self, name: &str) -> Vec<u32> {
        match self.fim.repository.file {
            Some(file) => self.after(file, name),
            None => self.text(name, Position::Continuation).0,
        }
    }

    /// The headers of the files and of the text with the gap, if the model has tokens for them.
    fn repository_headers(&self) -> (Vec<u32>, Vec<u32>) {
        let RepositoryTokens { repository, file } = self.fim.repository;
        let header = |token: Option<u32>, name| token.map(|token| self.after(token, name)).unwrap_or_default();
        (header(repository, REPOSITORY), header(file, CURRENT_FILE))
    }

    fn after(&self, token: u32, text: &str) -> Vec<u32> {
        [vec![token], self.text(text, Position::AfterSpecial).0].concat()
    }
}

/// At most the last `bytes` of a text, in whole characters.
fn last_bytes(text: &str, bytes: usize) -> &str {
    let start = text.ceil_char_boundary(text.len().saturating_sub(bytes));
    text.get(start..).unwrap_or_default()
}

/// At most the first `bytes` of a text, in whole characters.
fn first_bytes(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or_default()
}
