//! Tool calls without the format's opening marker: output that begins with a call's JSON, often in a code fence.
//!
//! The JSON must name a known tool, followed by its arguments; all other output is text. The grammar uses
//! [`opening_regex`] and [`middle_regex`], the call parser uses [`BareCallMatcher`]; both are built from the same parts.
//!
//! Such a call is accepted only at the beginning of a response: models write calls as examples in prose, and streamed
//! text cannot be retracted. Text is held back there until it has named a tool of the request and started its
//! arguments, or can no longer do so. A client that wants such JSON as text sends `tool_choice: "none"`.

/// Before the JSON: nothing, a fence, or the end of the last call's fence and perhaps another. A line break stands for
/// any whitespace.
const FENCES: [&str; 5] = ["", "```\n", "```json\n", "```\n```\n", "```\n```json\n"];
/// Some templates show calls in double braces.
const BRACES: [&str; 2] = ["{", "{{"];
const KEYS: [&str; 2] = ["arguments", "parameters"];
const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];
/// The regular expression of one of [`BLANKS`].
const BLANK: &str = "[ \\t\\r\\n]";

/// The regular expression of the start of a call, up to and including the name's opening quote.
pub fn opening_regex() -> String {
    format!("{}{BLANK}*:{BLANK}*\"", prefix_regex())
}

/// The regular expression between a call's quoted name and its arguments.
pub fn middle_regex() -> String {
    let keys = KEYS.join("|");
    format!("{BLANK}*,{BLANK}*\"({keys})\"{BLANK}*:")
}

/// The regular expression of the start of a call, up to the `"name"` key.
pub fn prefix_regex() -> String {
    let fences = FENCES.map(|fence| fence.replace('\n', &format!("{BLANK}+"))).join("|");
    let braces = BRACES.map(|brace| brace.replace('{', &format!("{BLANK}*\\{{"))).join("|");
    format!("{BLANK}*({fences})({braces}){BLANK}*\"name\"")
}

/// The state of the text read so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BareMatch {
    Undecided,
    /// A call of this tool; its arguments are next.
    Call(String),
    Text,
}

/// Decides from the start of a text whether it is a call.
pub(super) struct BareCallMatcher {
    /// For each tool, what follows the braces (without whitespace), and the tool's name.
    heads: Vec<(String, String)>,
    /// The text read so far, without whitespace outside strings.
    seen: String,
}

impl BareCallMatcher {
    pub fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let head = |name: &str, key: &str| (format!("\"name\":\"{name}\",\"{key}\":"), name.to_owned());
        let heads = names.flat_map(|name| KEYS.map(|key| head(name, key)));
        Self { heads: heads.collect(), seen: String::new() }
    }

    /// Starts over.
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

    /// Compares the text read so far with a call that starts with `lead`.
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

    /// True if the text read so far ends within a fence's line.
    fn in_fence(&self) -> bool {
        self.seen.rsplit('\n').next().is_some_and(|line| line.starts_with('`'))
    }
}

impl BareMatch {
    fn or(self, other: Self) -> Self {
        if self == Self::Text { other } else { self }
    }
}
