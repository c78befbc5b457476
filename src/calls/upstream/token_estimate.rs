//! Estimates of token counts, for requests whose usage the target has not told.

/// Bytes of a token in most languages and vocabularies.
pub const BYTES_PER_TOKEN: usize = 4;
/// Tokens that a chat template adds to a message.
const TOKENS_PER_MESSAGE: usize = 4;
/// The size up to which a part of a stream is taken for one token.
const ONE_TOKEN: usize = 16;

/// Tokens of a prompt with this many bytes of text in this many messages. At least 1.
pub fn prompt_tokens(bytes: usize, messages: usize) -> u32 {
    let tokens = bytes.div_ceil(BYTES_PER_TOKEN).saturating_add(messages.saturating_mul(TOKENS_PER_MESSAGE));
    u32::try_from(tokens.max(1)).unwrap_or(u32::MAX)
}

/// Tokens of a part of a stream. Most servers send each token as a part.
pub fn part_tokens(bytes: usize) -> u32 {
    match bytes {
        0 => 0,
        1..=ONE_TOKEN => 1,
        _ => u32::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::{part_tokens, prompt_tokens};

    #[test]
    fn estimates_grow_with_the_text() {
        assert_eq!([0, 1, 5, 16, 17, 400].map(part_tokens), [0, 1, 1, 1, 5, 100]);
        assert_eq!((prompt_tokens(0, 0), prompt_tokens(400, 2)), (1, 108));
    }
}
