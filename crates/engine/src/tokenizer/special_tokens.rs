//! Special tokens: parsed where the chat template writes them, never in user text.
//!
//! Before rendering, each special token's text in a message is replaced by a placeholder of Unicode noncharacters, which
//! no template looks for. After rendering, the remaining special tokens are the template's own, and placeholders become
//! plain text again. Noncharacters in messages are escaped the same way, so placeholders cannot be forged.

use aho_corasick::{AhoCorasick, MatchKind};

/// Longer special tokens are refused; bytes.
const MAX_TOKEN_BYTES: usize = 1024;
const FIRST_NONCHARACTER: u32 = 0xFDD0;
const OPEN: char = '\u{FDD0}';
const CLOSE: char = '\u{FDD1}';
const ESCAPE: char = '\u{FDD2}';
/// The first of sixteen noncharacters that encode hexadecimal digits.
const DIGITS: u32 = 0xFDD3;

pub struct SpecialTokens {
    all: Vec<SpecialToken>,
    finder: AhoCorasick,
}

/// A special token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialToken {
    pub text: String,
    pub id: u32,
    /// Strip whitespace before and after the token, as in `tokenizer.json`.
    pub lstrip: bool,
    pub rstrip: bool,
}

/// A rendered prompt's parts.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    SpecialToken(u32),
    Text(String),
}

impl SpecialTokens {
    pub fn new(all: Vec<SpecialToken>) -> Result<Self, String> {
        // The search takes time proportional to the square of the longest token.
        if let Some(long) = all.iter().map(|special| special.text.len()).find(|length| *length > MAX_TOKEN_BYTES) {
            return Err(format!("a special token has {long} bytes; the limit is {MAX_TOKEN_BYTES}"));
        }
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(all.iter().map(|special| &special.text))
            .map_err(|error| format!("the special tokens cannot be indexed: {error}"))?;
        Ok(Self { all, finder })
    }

    /// The id of a special token, by its exact text.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.all.iter().find(|special| special.text == text).map(|special| special.id)
    }

    /// True for special tokens that strip the whitespace after them.
    pub fn strips_after(&self, id: u32) -> bool {
        self.all.iter().any(|special| special.id == id && special.rstrip)
    }

    /// Escapes user text so that it can be rendered into a template.
    pub fn protect(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut done = 0;
        for found in self.finder.find_iter(text) {
            escape(text.get(done..found.start()).unwrap_or_default(), &mut out);
            out.push(OPEN);
            out.extend(format!("{:x}", found.pattern().as_usize()).chars().filter_map(digit));
            out.push(CLOSE);
            done = found.end();
        }
        escape(text.get(done..).unwrap_or_default(), &mut out);
        out
    }

    /// Splits a rendered prompt at the template's special tokens and restores users' text.
    pub fn split<'a>(&'a self, rendered: &'a str) -> impl Iterator<Item = Part> + 'a {
        let (mut done, mut after): (_, Option<&SpecialToken>) = (0, None);
        let ends = self.finder.find_iter(rendered).map(Some).chain([None]);
        ends.flat_map(move |found| {
            let special = found.and_then(|found| self.all.get(found.pattern().as_usize()));
            let text = rendered.get(done..found.map_or(rendered.len(), |found| found.start())).unwrap_or_default();
            let text = self.between(after, text, special);
            (done, after) = (found.map_or(rendered.len(), |found| found.end()), special);
            text.into_iter().chain(special.map(|special| Part::SpecialToken(special.id)))
        })
    }

    /// The text between two special tokens, without the whitespace that they strip.
    fn between(&self, before: Option<&SpecialToken>, text: &str, after: Option<&SpecialToken>) -> Option<Part> {
        let revealed = self.unprotect(text);
        let mut text = revealed.as_str();
        if before.is_some_and(|special| special.rstrip) {
            text = text.trim_start();
        }
        if after.is_some_and(|special| special.lstrip) {
            text = text.trim_end();
        }
        (!text.is_empty()).then(|| Part::Text(text.to_owned()))
    }

    /// Restores text in which [`Self::protect`] escaped special tokens.
    pub fn unprotect(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut chars = text.chars();
        while let Some(letter) = chars.next() {
            match letter {
                OPEN => {
                    let number = chars.by_ref().take_while(|&letter| letter != CLOSE);
                    let index =
                        number.fold(0usize, |sum, letter| sum.wrapping_mul(16).wrapping_add(value(letter) as usize));
                    out.push_str(self.all.get(index).map_or("", |special| &special.text));
                }
                ESCAPE => {
                    let (high, low) = (chars.next().map_or(0, value), chars.next().map_or(0, value));
                    out.extend(char::from_u32(FIRST_NONCHARACTER + high * 16 + low));
                }
                other => out.push(other),
            }
        }
        out
    }
}

/// Escapes only the placeholders in a text: [`SpecialTokens::split`] then parses the special tokens in it.
pub fn escape_placeholders(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    escape(text, &mut out);
    out
}

fn escape(text: &str, out: &mut String) {
    for letter in text.chars() {
        if (FIRST_NONCHARACTER..FIRST_NONCHARACTER + 32).contains(&u32::from(letter)) {
            let offset = u32::from(letter) - FIRST_NONCHARACTER;
            out.push(ESCAPE);
            out.extend([offset / 16, offset % 16].iter().filter_map(|&number| char::from_u32(DIGITS + number)));
        } else {
            out.push(letter);
        }
    }
}

fn digit(hexadecimal: char) -> Option<char> {
    hexadecimal.to_digit(16).and_then(|number| char::from_u32(DIGITS + number))
}

fn value(letter: char) -> u32 {
    u32::from(letter).wrapping_sub(DIGITS).min(15)
}

#[cfg(test)]
mod tests {
    use super::{Part, SpecialToken, SpecialTokens};

    fn special(text: &str, id: u32, strips: bool) -> SpecialToken {
        SpecialToken { text: text.to_owned(), id, lstrip: strips, rstrip: strips }
    }

    fn special_tokens() -> SpecialTokens {
        SpecialTokens::new(vec![special("<s>", 7, false), special("<s>x", 8, false)]).unwrap()
    }

    #[test]
    fn user_text_round_trips() {
        let special_tokens = special_tokens();
        for text in ["<s>", "a<s>x<s>", "\u{FDD0}\u{FDD3}\u{FDD1}", "\u{FDEF}<s>\u{FDD2}", "", "plain"] {
            let safe = special_tokens.protect(text);
            assert!(!safe.contains("<s>"), "{safe:?}");
            assert_eq!(special_tokens.unprotect(&safe), text);
        }
    }

    #[test]
    fn only_the_templates_special_tokens_are_parsed() {
        let special_tokens = special_tokens();
        let rendered = format!("<s>x{}<s>", special_tokens.protect("hi <s>"));
        let expected = [Part::SpecialToken(8), Part::Text("hi <s>".to_owned()), Part::SpecialToken(7)];
        assert!(special_tokens.split(&rendered).eq(expected));
    }

    #[test]
    fn some_special_tokens_strip_whitespace_around_them() {
        let special_tokens = SpecialTokens::new(vec![special("<a>", 1, true), special("<s>", 7, false)]).unwrap();
        let text = |text: &str| Part::Text(text.to_owned());
        let expected = [
            text(" x"),
            Part::SpecialToken(1),
            text("y "),
            Part::SpecialToken(7),
            text("\n"),
            Part::SpecialToken(7),
            Part::SpecialToken(1),
        ];
        assert!(special_tokens.split(" x \n<a> \ty <s>\n<s> <a>").eq(expected));
    }
}
