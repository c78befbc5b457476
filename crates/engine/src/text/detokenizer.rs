//! Decodes token bytes to text without splitting a character.

/// Holds back an incomplete character until the rest of it is generated.
#[derive(Debug, Default)]
pub struct Detokenizer {
    pending: Vec<u8>,
}

impl Detokenizer {
    /// The text that these bytes complete; invalid UTF-8 becomes U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(rest) => {
                    text.push_str(rest);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let (valid, _) = self.pending.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(broken) = error.error_len() else {
                        self.pending.drain(..error.valid_up_to());
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.pending.drain(..error.valid_up_to() + broken);
                }
            }
        }
    }

    /// The held bytes as text, at the end of the output.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::Detokenizer;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn concatenated_chunks_equal_the_text(bytes: Vec<u8>, cut in 1usize..5) {
            let mut detokenizer = Detokenizer::default();
            let mut text: String = bytes.chunks(cut).map(|part| detokenizer.push(part)).collect();
            text += &detokenizer.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes).into_owned());
        }
    }

    #[test]
    fn a_character_waits_for_its_last_byte() {
        let mut detokenizer = Detokenizer::default();
        let [a, b, c, d] = "🦀".as_bytes() else { unreachable!() };
        assert_eq!(detokenizer.push(&[*a, *b]), "");
        assert_eq!(detokenizer.push(&[*c]), "");
        assert_eq!(detokenizer.push(&[*d, b'!']), "🦀!");
    }
}
