//! Grammars in GBNF, the notation of llama.cpp, as Lark.
//!
//! GBNF has no lexer: its rules describe characters. Lark matches terminals greedily and never takes a match back, so each
//! character becomes a terminal of its own. No encoded character is the beginning of another one, and the languages are
//! the same.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;

/// Max characters, classes and names in a grammar; they bound the compiler's time.
const MAX_SYMBOLS: usize = 4_096;
/// Max nested parentheses; the compiler allows 29, and a literal needs another pair.
const MAX_DEPTH: usize = 24;
/// Max of a repetition such as `{2,5}`.
const MAX_REPETITIONS: u32 = 1_000;

/// The Lark form of a grammar, with one rule a line. The error is what is wrong with the grammar, for "The grammar …".
pub fn to_lark(gbnf: &str) -> Result<String, String> {
    let tokens = tokens(gbnf)?;
    if tokens.len() > MAX_SYMBOLS {
        return Err(format!("has {} symbols; at most {MAX_SYMBOLS} are allowed", tokens.len()));
    }
    Parser { tokens, position: 0, names: HashMap::new(), symbols: 0 }.grammar()
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    /// `::=`
    Is,
    Literal(String),
    /// A class of characters as a regular expression.
    Class(String),
    /// `*`, `+`, `?` or a repetition with numbers.
    Repeat(String),
    /// `|`, `(` or `)`.
    Mark(char),
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut rest = Characters { rest: text };
    let mut tokens = Vec::new();
    while let Some(next) = rest.next() {
        let token = match next {
            blank if blank.is_whitespace() => continue,
            '#' => {
                rest.rest = rest.rest.split_once('\n').map_or("", |(_, after)| after);
                continue;
            }
            ':' if rest.rest.starts_with(":=") => {
                rest.rest = &rest.rest[2..];
                Token::Is
            }
            '"' => Token::Literal(rest.literal()?),
            '[' => Token::Class(rest.class()?),
            '.' => Token::Class("(?s:.)".to_owned()),
            '*' | '+' | '?' => Token::Repeat(next.to_string()),
            '{' => Token::Repeat(rest.repetition()?),
            '|' | '(' | ')' => Token::Mark(next),
            first if first.is_ascii_alphanumeric() => {
                let end = rest.rest.find(|next: char| !next.is_ascii_alphanumeric() && next != '-' && next != '_');
                let (name, after) = rest.rest.split_at(end.unwrap_or(rest.rest.len()));
                rest.rest = after;
                Token::Name(format!("{first}{name}"))
            }
            other => return Err(format!("has an unexpected '{}'", other.escape_debug())),
        };
        tokens.push(token);
    }
    Ok(tokens)
}

/// The characters that are left.
struct Characters<'a> {
    rest: &'a str,
}

impl Iterator for Characters<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let next = characters.next();
        self.rest = characters.as_str();
        next
    }
}

impl Characters<'_> {
    /// The next character of a literal or class, and whether it is escaped; `None` for an unescaped `end`.
    fn character(&mut self, end: char) -> Result<Option<(char, bool)>, String> {
        match self.next() {
            None => Err(format!("ends before '{end}'")),
            Some('\\') => self.escaped().map(|character| Some((character, true))),
            Some(next) if next == end => Ok(None),
            Some(next) => Ok(Some((next, false))),
        }
    }

    /// The character of an escape, after the backslash.
    fn escaped(&mut self) -> Result<char, String> {
        let kind = self.next().ok_or("ends after a backslash")?;
        let digits = match kind {
            'n' => return Ok('\n'),
            't' => return Ok('\t'),
            'r' => return Ok('\r'),
            '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(kind),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            other => return Err(format!("has an unknown escape '\\{}'", other.escape_debug())),
        };
        let hex = self.rest.get(..digits).filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        self.rest = self.rest.get(digits..).unwrap_or_default();
        code.ok_or_else(|| {
            format!("has '\\{kind}', which must be followed by {digits} hexadecimal digits of a character")
        })
    }

    fn literal(&mut self) -> Result<String, String> {
        let mut text = String::new();
        while let Some((next, _)) = self.character('"')? {
            text.push(next);
        }
        Ok(text)
    }

    /// A class as a regular expression, after its bracket.
    fn class(&mut self) -> Result<String, String> {
        let negation = self.rest.strip_prefix('^');
        self.rest = negation.unwrap_or(self.rest);
        let mut regex = if negation.is_some() { "[^".to_owned() } else { "[".to_owned() };
        let mut is_empty = true;
        while let Some((first, _)) = self.character(']')? {
            is_empty = false;
            let mut last = first;
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.next();
                last = self.character(']')?.map_or(first, |(last, _)| last);
            }
            if last < first {
                let (first, last) = (first.escape_debug(), last.escape_debug());
                return Err(format!("has the range '{first}-{last}', which ends before it begins"));
            }
            // Writing to a string cannot fail.
            let _ = write!(regex, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(first), u32::from(last));
        }
        match (is_empty, negation) {
            (true, None) => Err("has an empty class".to_owned()),
            (true, Some(_)) => Ok("(?s:.)".to_owned()),
            (false, _) => Ok(regex + "]"),
        }
    }

    /// A repetition as `{2,5}`, after its brace.
    fn repetition(&mut self) -> Result<String, String> {
        let (inside, after) = self.rest.split_once('}').ok_or("ends before '}'")?;
        self.rest = after;
        let number = |text: &str| {
            let number = text.trim().parse::<u32>().ok().filter(|number| *number <= MAX_REPETITIONS);
            number.ok_or_else(|| format!("has a repetition whose numbers are not from 0 to {MAX_REPETITIONS}"))
        };
        Ok(match inside.split_once(',') {
            None => format!("{{{}}}", number(inside)?),
            Some((min, max)) if max.trim().is_empty() => format!("{{{},}}", number(min)?),
            Some((min, max)) => {
                let (min, max) = (if min.trim().is_empty() { 0 } else { number(min)? }, number(max)?);
                if max < min {
                    return Err(format!("has the repetition {{{min},{max}}}, whose maximum is below its minimum"));
                }
                format!("{{{min},{max}}}")
            }
        })
    }
}

struct Parser {
    tokens: Vec<Token>,
    position: usize,
    /// The Lark names of rules, and whether they are defined.
    names: HashMap<String, (String, bool)>,
    symbols: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.position)
    }

    /// The Lark name of a rule.
    fn name(&mut self, name: &str) -> &mut (String, bool) {
        let count = self.names.len();
        self.names.entry(name.to_owned()).or_insert_with(|| match name {
            "root" => ("start".to_owned(), false),
            _ => (format!("r{count}"), false),
        })
    }

    fn grammar(mut self) -> Result<String, String> {
        let mut lark = String::new();
        while let Some(token) = self.peek().cloned() {
            let Token::Name(name) = token else {
                return Err("has a rule that does not begin with 'name ::='".to_owned());
            };
            self.position += 1;
            if self.peek() != Some(&Token::Is) {
                return Err(format!("has '{name}' where a rule should begin; a rule is 'name ::= …'"));
            }
            self.position += 1;
            let known = self.name(&name);
            if std::mem::replace(&mut known.1, true) {
                return Err(format!("defines the rule '{name}' twice"));
            }
            let lark_name = known.0.clone();
            let body = self.alternatives(0)?;
            if self.peek() == Some(&Token::Mark(')')) {
                return Err(format!("has a ')' without '(' in the rule '{name}'"));
            }
            let _ = writeln!(lark, "{lark_name}: {body}");
        }
        if !self.names.get("root").is_some_and(|(_, is_defined)| *is_defined) {
            return Err("has no rule 'root'".to_owned());
        }
        match self.names.iter().filter(|(_, (_, is_defined))| !is_defined).map(|(name, _)| name).min() {
            Some(name) => Err(format!("uses the undefined rule '{name}'")),
            None => Ok(lark),
        }
    }

    fn alternatives(&mut self, depth: usize) -> Result<String, String> {
        if depth > MAX_DEPTH {
            return Err(format!("has more than {MAX_DEPTH} nested parentheses"));
        }
        let mut alternatives = vec![self.sequence(depth)?];
        while self.peek() == Some(&Token::Mark('|')) {
            self.position += 1;
            alternatives.push(self.sequence(depth)?);
        }
        Ok(alternatives.join(" | "))
    }

    fn sequence(&mut self, depth: usize) -> Result<String, String> {
        let mut parts: Vec<String> = Vec::new();
        while let Some(token) = self.peek().cloned() {
            let part = match token {
                Token::Mark('(') => {
                    self.position += 1;
                    let inside = self.alternatives(depth + 1)?;
                    if self.peek() != Some(&Token::Mark(')')) {
                        return Err("has a '(' without ')'".to_owned());
                    }
                    format!("({inside})")
                }
                // The next rule, the next alternative, or the end of the parentheses.
                Token::Name(_) if self.tokens.get(self.position + 1) == Some(&Token::Is) => break,
                Token::Mark(_) => break,
                Token::Name(name) => self.name(&name).0.clone(),
                Token::Literal(text) => self.characters(&text)?,
                Token::Class(regex) => format!("/{regex}/"),
                Token::Repeat(repeat) => {
                    if matches!(self.tokens.get(self.position + 1), Some(Token::Repeat(_))) {
                        return Err("has two repetitions in a row; put the first one in parentheses".to_owned());
                    }
                    let last = parts.last_mut().ok_or_else(|| format!("has a '{repeat}' with nothing before it"))?;
                    last.push_str(&repeat);
                    self.position += 1;
                    continue;
                }
                Token::Is => return Err("has a '::=' without a name before it".to_owned()),
            };
            self.position += 1;
            parts.push(part);
        }
        Ok(if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") })
    }

    /// A literal, each character a terminal.
    fn characters(&mut self, text: &str) -> Result<String, String> {
        self.symbols += text.chars().count();
        if self.symbols > MAX_SYMBOLS {
            return Err(format!("has more than {MAX_SYMBOLS} characters in its texts"));
        }
        let quoted: Vec<String> = text.chars().map(|one| Value::from(one.to_string()).to_string()).collect();
        match quoted.is_empty() {
            true => Ok("\"\"".to_owned()),
            false => Ok(format!("({})", quoted.join(" "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::accepted_text;
    use super::*;
    use crate::text::tools::TextFormat;

    fn accepted(gbnf: &str, text: &str) -> (usize, bool) {
        accepted_text(TextFormat::Lark(to_lark(gbnf).unwrap()), text)
    }

    fn is_whole(gbnf: &str, text: &str) -> bool {
        accepted(gbnf, text) == (text.len(), true)
    }

    #[test]
    fn every_construct_is_understood() {
        for (gbnf, whole, others) in [
            ("root ::= \"yes\" | \"no\"", &["yes", "no"][..], &["maybe", "y", ""][..]),
            // A lexer that is greedy and takes nothing back would refuse the last ones.
            ("root ::= [a-z]* \"xyz\"", &["xyz", "axyz", "xxyz", "xyxyz", "xyzxyz"], &["xy", "xyza"]),
            ("root ::= word (\", \" word)* # a list\nword ::= [a-z]+", &["a", "ab, c, d"], &["a,", "a, "]),
            ("root ::= [^a-c\\n]{2,3}", &["xyz", "é漢"], &["xa", "x", "x\n", "wxyz"]),
            ("root ::= \"\\\"\\\\\\n\\x41\\u00e9\\U0001f600\"", &["\"\\\nAé😀"], &["\"\\nA"]),
            ("root ::= . \"b\"? [-x\\]]", &["ab]", "\n-", "éx"], &["ab", "a["]),
            ("root ::= (\"a\"{2} | \"b\"{,2} | \"c\"{2,})", &["aa", "", "b", "bb", "cccc"], &["a", "bbb", "c"]),
            ("root ::= (\"a\"+)* Other-1\nOther-1 ::=\n  \"x\" |\n  \"y\"", &["x", "aay"], &["aa"]),
            ("root ::= \"(\" root \")\" | \"\"", &["", "()", "((()))"], &["(()"]),
        ] {
            for text in whole {
                assert!(is_whole(gbnf, text), "{gbnf}: {text:?} {:?}", accepted(gbnf, text));
            }
            for text in others {
                assert!(!is_whole(gbnf, text), "{gbnf}: {text:?}");
            }
        }
    }

    #[test]
    fn a_grammar_of_json_accepts_json() {
        let json = "root ::= object\n\
            value ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n\
            object ::=\n  \"{\" ws (\n    string \":\" ws value\n    (\",\" ws string \":\" ws value)*\n  )? \"}\" ws\n\
            array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n\
            string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" ws\n\
            number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n\
            ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";
        for text in ["{}", "{\"a\": [1, -2.5e+3, \"x\\u00e9\\n\"], \"b\":{ }}", "{\n  \"ключ\": null}"] {
            assert!(is_whole(json, text), "{text} {:?}", accepted(json, text));
        }
        for text in ["[]", "{\"a\"}", "{\"a\": 01}", "{\"a\": \"\n\"}"] {
            assert!(!is_whole(json, text), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (gbnf, problem) in [
            ("rot ::= \"a\"", "has no rule 'root'"),
            ("root ::= other", "uses the undefined rule 'other'"),
            ("root ::= \"a\"\nroot ::= \"b\"", "defines the rule 'root' twice"),
            ("root ::= (\"a\"", "has a '(' without ')'"),
            ("root ::= \"a\")", "has a ')' without '(' in the rule 'root'"),
            ("root ::= \"a", "ends before '\"'"),
            ("root ::= [a", "ends before ']'"),
            ("root ::= []", "has an empty class"),
            ("root ::= [z-a]", "has the range 'z-a', which ends before it begins"),
            ("root ::= *", "has a '*' with nothing before it"),
            ("root ::= \"a\"+?", "has two repetitions in a row; put the first one in parentheses"),
            ("root ::= \"a\"{3,2}", "has the repetition {3,2}, whose maximum is below its minimum"),
            ("root ::= \"a\"{x}", "has a repetition whose numbers are not from 0 to 1000"),
            ("root ::= \"\\q\"", "has an unknown escape '\\q'"),
            ("root ::= \"\\x4\"", "has '\\x', which must be followed by 2 hexadecimal digits of a character"),
            ("root ::= <think>", "has an unexpected '<'"),
            ("root ::= \"a\" ::= \"b\"", "has a '::=' without a name before it"),
            ("\"a\" ::= root", "has a rule that does not begin with 'name ::='"),
            ("root", "has 'root' where a rule should begin; a rule is 'name ::= …'"),
        ] {
            assert_eq!(to_lark(gbnf).unwrap_err(), problem, "{gbnf}");
        }
        let nested = format!("root ::= {}\"ab\"{}", "(".repeat(24), "+)".repeat(24));
        assert!(is_whole(&nested, "abab"), "the compiler takes as many parentheses");
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(100), ")".repeat(100));
        assert_eq!(to_lark(&deep).unwrap_err(), "has more than 24 nested parentheses");
        assert!(to_lark(&format!("root ::= \"{}\"", "a".repeat(5_000))).unwrap_err().starts_with("has more than 4096"));
        assert!(to_lark(&format!("root ::= {}", "[a] ".repeat(5_000))).unwrap_err().starts_with("has 5002 symbols"));
    }
}
