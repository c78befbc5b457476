//! The tokens of a grammar in Lark notation.

use serde_json::Value;

/// A token, and the line that it is in, from 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub kind: TokenKind,
    pub line: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub enum TokenKind {
    /// The name of a rule.
    Rule(String),
    /// The name of a terminal.
    Terminal(String),
    /// A text; `true`: whatever its case.
    Text(String, bool),
    /// A regular expression and its flags.
    Regex(String, String),
    Number(u32),
    /// `%ignore` and the like, without the percent sign.
    Directive(String),
    /// Punctuation.
    Mark(&'static str),
    NewLine,
}

/// Punctuation, the longer marks first.
const MARKS: [&str; 20] =
    ["->", "..", "::", ":", "|", "(", ")", "[", "]", "{", "}", ",", "&", "~", "*", "+", "?", ".", "=", "!"];
const REGEX_FLAGS: &str = "imslux";

/// The tokens of a grammar. The error is what is wrong with it, for "The grammar …".
pub fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut scanner = Scanner { rest: text, line: 1 };
    let mut tokens = Vec::new();
    while let Some((kind, line)) = scanner.next_token()? {
        tokens.push(Token { kind, line });
    }
    Ok(tokens)
}

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Scanner<'a> {
    fn next_token(&mut self) -> Result<Option<(TokenKind, usize)>, String> {
        self.skip_blanks();
        let line = self.line;
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        let kind = match first {
            '\n' => {
                self.advance(1);
                self.line += 1;
                TokenKind::NewLine
            }
            '"' => self.text()?,
            '/' => self.regex()?,
            '%' => {
                self.advance(1);
                TokenKind::Directive(self.take_while(|next| next.is_ascii_alphabetic()).to_owned())
            }
            '0'..='9' => self.number()?,
            'a'..='z' | 'A'..='Z' | '_' => self.name()?,
            _ => self.mark(first)?,
        };
        Ok(Some((kind, line)))
    }

    /// Skips spaces and comments.
    fn skip_blanks(&mut self) {
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\u{feff}']);
            if !self.rest.starts_with('#') && !self.rest.starts_with("//") {
                return;
            }
            self.take_while(|next| next != '\n');
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn take_while(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|next| !fits(next)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// The part up to an unescaped `end`, of which the first character is the opening one.
    fn delimited(&mut self, end: char) -> Result<&'a str, String> {
        let mut escaped = false;
        for (at, next) in self.rest.char_indices().skip(1) {
            match next {
                '\n' => break,
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                _ if next == end => {
                    let inside = self.rest.get(1..at).unwrap_or_default();
                    self.advance(at + 1);
                    return Ok(inside);
                }
                _ => {}
            }
        }
        Err(self.error(&format!("has no closing {end} for the {end} that opens a text or a regular expression")))
    }

    fn text(&mut self) -> Result<TokenKind, String> {
        let inside = self.delimited('"')?;
        let is_insensitive = self.rest.starts_with('i');
        self.advance(usize::from(is_insensitive));
        let json = format!("\"{}\"", with_json_escapes(inside));
        match serde_json::from_str(&json) {
            Ok(Value::String(text)) => Ok(TokenKind::Text(text, is_insensitive)),
            _ => Err(self.error("has an unknown escape in a text. The escapes are those of JSON, and \\x41")),
        }
    }

    fn regex(&mut self) -> Result<TokenKind, String> {
        let inside = self.delimited('/')?.to_owned();
        let flags = self.take_while(|next| REGEX_FLAGS.contains(next)).to_owned();
        Ok(TokenKind::Regex(inside, flags))
    }

    fn number(&mut self) -> Result<TokenKind, String> {
        let number = self.take_while(|next| next.is_ascii_digit()).parse();
        number.map(TokenKind::Number).map_err(|_| self.error("has a number that is too large"))
    }

    fn name(&mut self) -> Result<TokenKind, String> {
        let is_part = |next: char| next.is_ascii_alphanumeric() || next == '_' || next == '-';
        let end = self.rest.find(|next| !is_part(next)).unwrap_or(self.rest.len());
        // In "a->b", the hyphen belongs to the arrow.
        let end = if self.rest.get(..end).is_some_and(|name| name.ends_with('-')) { end - 1 } else { end };
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        self.named(name)
    }

    fn named(&self, name: &str) -> Result<TokenKind, String> {
        let letters = name.trim_start_matches('_');
        if letters.starts_with(|first: char| first.is_ascii_lowercase()) {
            Ok(TokenKind::Rule(name.to_owned()))
        } else if letters.starts_with(|first: char| first.is_ascii_uppercase()) {
            Ok(TokenKind::Terminal(name.to_owned()))
        } else {
            Err(self.error(&format!("has the name '{name}'; names begin with a letter")))
        }
    }

    fn mark(&mut self, first: char) -> Result<TokenKind, String> {
        match MARKS.iter().find(|mark| self.rest.starts_with(**mark)) {
            Some(mark) => {
                self.advance(mark.len());
                Ok(TokenKind::Mark(mark))
            }
            None if first == '<' => Err(self.error("has a special token (<…>), which is not supported")),
            None if first == '@' => Err(self.error("has a reference to another grammar (@…), which is not supported")),
            None => Err(self.error(&format!("has an unexpected '{}'", first.escape_debug()))),
        }
    }

    fn error(&self, what: &str) -> String {
        in_line(self.line, what)
    }
}

/// The error for a line of the grammar.
pub fn in_line(line: usize, what: &str) -> String {
    format!("{what} (line {line})")
}

/// Python's `\x41` and `\'` as JSON's escapes.
fn with_json_escapes(text: &str) -> String {
    let mut json = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(next) = characters.next() {
        match (next, if next == '\\' { characters.next() } else { None }) {
            ('\\', Some('x')) => json.push_str("\\u00"),
            ('\\', Some('\'')) => json.push('\''),
            ('\\', Some(kind)) => json.extend(['\\', kind]),
            ('\t', _) => json.push_str("\\t"),
            (other, _) => json.push(other),
        }
    }
    json
}
