//! Reads rank files of tiktoken: one token a line, in base64, with its rank. The rank is both the token's ID and the
//! order in which byte pair encoding merges to it, so that the merges follow from the ranks.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use outpost_models::whisper::{Merge, byte_pair_merges};

/// Max bytes of a rank file.
pub const MAX_BYTES: u64 = 8 << 20;
/// Max bytes of a token; the longest of GPT-2 has 128. Bounds the quadratic search for its merge.
const MAX_TOKEN_BYTES: usize = 256;

/// The tokens of a rank file, in the order of their ranks.
pub struct Ranks {
    tokens: Vec<Vec<u8>>,
}

impl Ranks {
    /// Parses a rank file.
    ///
    /// # Errors
    /// If a line is malformed, a rank or token is missing or appears twice, or one of the 256 bytes is no token.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = Vec::new();
        for (rank, line) in text.lines().enumerate() {
            let bad = || format!("has a malformed line {}", rank + 1);
            let (token, number) = line.split_once(' ').ok_or_else(bad)?;
            let token = STANDARD.decode(token).map_err(|_| bad())?;
            if number.parse() != Ok(rank) || token.is_empty() || token.len() > MAX_TOKEN_BYTES {
                return Err(bad());
            }
            tokens.push(token);
        }
        let ranks = Self { tokens };
        let by_bytes = ranks.by_bytes();
        if by_bytes.len() != ranks.tokens.len() {
            return Err("has a token twice".into());
        }
        match (0..=u8::MAX).find(|byte| !by_bytes.contains_key([*byte].as_slice())) {
            Some(byte) => Err(format!("has no token for the byte {byte}")),
            None => Ok(ranks),
        }
    }

    /// The bytes of each token, in the order of their IDs.
    pub fn tokens(&self) -> &[Vec<u8>] {
        &self.tokens
    }

    /// The two tokens that are merged to each token of more than one byte, in the order of ranks.
    ///
    /// # Errors
    /// If a token is not the merge of two others.
    pub fn merges(&self) -> Result<Vec<Merge<'_>>, String> {
        byte_pair_merges(&self.tokens)
            .map_err(|rank| format!("has the token {rank}, which is not the merge of two others"))
    }

    fn by_bytes(&self) -> HashMap<&[u8], usize> {
        self.tokens.iter().enumerate().map(|(rank, token)| (token.as_slice(), rank)).collect()
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::Ranks;

    fn file(tokens: &[&[u8]]) -> String {
        let bytes: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        let tokens = bytes.iter().map(Vec::as_slice).chain(tokens.iter().copied());
        tokens.enumerate().map(|(rank, token)| format!("{} {rank}\n", STANDARD.encode(token))).collect()
    }

    #[test]
    fn merges_follow_from_ranks() {
        let ranks = Ranks::parse(&file(&[b"th", b"in", b"the", b"ing", b"thing"])).unwrap();
        let merges = ranks.merges().unwrap();
        let expected: [(&[u8], &[u8]); 5] = [(b"t", b"h"), (b"i", b"n"), (b"th", b"e"), (b"in", b"g"), (b"th", b"ing")];
        assert_eq!(merges, expected);
        assert!(Ranks::parse(&file(&[b"abc"])).unwrap().merges().is_err(), "no two tokens make abc");
    }

    #[test]
    fn malformed_files_are_refused() {
        let good = file(&[b"th"]);
        assert!(Ranks::parse(&good).is_ok());
        let repeated = file(&[b"th", b"th"]);
        let long = file(&[&[b'a'; 300]]);
        for bad in [&good.replace(" 7\n", " 8\n"), &good.replace("Bw==", "!!"), &good[5..], &repeated, &long, "", "x"] {
            assert!(Ranks::parse(bad).is_err());
        }
    }
}
