//! Calls without the opening that a template shows: an answer that begins with a call's JSON, often in a code fence.
//!
//! The JSON must name a known tool and go on with its arguments; every other answer is text. [`opening_regex`] and [`middle_regex`] say
//! so to a grammar, [`BareCallMatcher`] to whoever reads letter by ch; both are made of the same parts.

/// Before the JSON: nothing, a fence, or the end of a call's fence and perhaps another. A line break stands for white
/// space.
const FENCES: [&str; 5] = ["", "```\n", "```json\n", "```\n```\n", "```\n```json\n"];
/// Some templates show calls in double braces.
const BRACES: [&str; 2] = ["{", "{{"];
const KEYS: [&str; 2] = ["arguments", "parameters"];
const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];
/// The regular expression of one of [`BLANKS`].
const BLANK: &str = "[ \\t\\r\\n]";

/// The regular expression of what every such call begins with, up to the name, its quote included.
pub fn opening_regex() -> String {
    format!("{}{BLANK}*:{BLANK}*\"", prefix_regex())
}

/// The regular expression of what is between a call's quoted name and its arguments.
pub fn middle_regex() -> String {
    let keys = KEYS.join("|");
    format!("{BLANK}*,{BLANK}*\"({keys})\"{BLANK}*:")
}

/// The regular expression of what is like the beginning of a call.
pub fn prefix_regex() -> String {
    let fences = FENCES.map(|fence| fence.replace('\n', &format!("{BLANK}+"))).join("|");
    let braces = BRACES.map(|brace| brace.replace('{', &format!("{BLANK}*\\{{"))).join("|");
    format!("{BLANK}*({fences})({braces}){BLANK}*\"name\"")
}

/// What a text is, as far as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BareMatch {
    Undecided,
    /// A call of this tool; its arguments are next.
    Call(String),
    Text,
}

/// Reads the beginning of a text.
pub(super) struct BareCallMatcher {
    /// Each tool's name after what follows the braces, without white space.
    heads: Vec<(String, String)>,
    /// What was read, without white space.
    seen: String,
}

impl BareCallMatcher {
    pub fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let head = |name: &str, key: &str| (format!("\"name\":\"{name}\",\"{key}\":"), name.to_owned());
        let heads = names.flat_map(|name| KEYS.map(|key| head(name, key)));
        Self { heads: heads.collect(), seen: String::new() }
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        self.seen.clear();
    }

    pub fn push(&mut self, ch: char) -> BareMatch {
        match ch {
            _ if !BLANKS.contains(&ch) || self.in_string() => self.seen.push(ch),
            _ if self.in_fence() => self.seen.push('\n'),
            _ => return BareMatch::Undecided,
        }
        let verdicts = FENCES.iter().flat_map(|fence| BRACES.map(|brace| self.compare(&format!("{fence}{brace}"))));
        verdicts.reduce(BareMatch::or).unwrap_or(BareMatch::Text)
    }

    /// What was read, if the braces and what is before them are these.
    fn compare(&self, lead: &str) -> BareMatch {
        if lead.starts_with(&self.seen) {
            return BareMatch::Undecided;
        }
        let Some(rest) = self.seen.strip_prefix(lead) else { return BareMatch::Text };
        match self.heads.iter().find(|(head, _)| head.starts_with(rest)) {
            Some((head, name)) if head == rest => BareMatch::Call(name.clone()),
            Some(_) => BareMatch::Undecided,
            None => BareMatch::Text,
        }
    }

    fn in_string(&self) -> bool {
        self.seen.matches('"').count() % 2 == 1
    }

    /// Whether what was read ends within a fence's line.
    fn in_fence(&self) -> bool {
        self.seen.rsplit('\n').next().is_some_and(|line| line.starts_with('`'))
    }
}

impl BareMatch {
    fn or(self, other: Self) -> Self {
        if self == Self::Text { other } else { self }
    }
}
