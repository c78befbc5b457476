//! The marks of Markdown and HTML, of which only the text is spoken.

/// How far a link or a tag is followed, in bytes.
const MAX_LENGTH: usize = 500;

/// HTML elements that may directly follow a word.
const ELEMENTS: [&str; 40] = [
    "a", "abbr", "b", "big", "br", "cite", "code", "del", "dfn", "div", "em", "font", "h1", "h2", "h3", "hr", "i",
    "img", "ins", "kbd", "li", "mark", "ol", "p", "pre", "q", "s", "samp", "small", "span", "strong", "sub", "sup",
    "td", "th", "tr", "u", "ul", "var", "wbr",
];

/// The fence that opened a block of code.
#[derive(Debug, Clone, Copy)]
pub struct Fence {
    mark: char,
    length: usize,
}

impl Fence {
    /// The fence of a line without white space around it. As in CommonMark, backticks must not be followed by more of them.
    pub fn opening(line: &str) -> Option<Self> {
        let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
        let info = line.trim_start_matches(mark);
        let length = line.len() - info.len();
        (length >= 3 && !(mark == '`' && info.contains('`'))).then_some(Self { mark, length })
    }

    /// Whether the line ends the block.
    pub fn is_closed_by(self, line: &str) -> bool {
        line.len() >= self.length && line.chars().all(|mark| mark == self.mark)
    }
}

/// The line without the marks of headings, quotes, lists and rules, and whether it is a block of its own.
pub fn without_line_markup(line: &str) -> (&str, bool) {
    if line.len() >= 3 && line.chars().all(|mark| matches!(mark, '-' | '*' | '_' | '=' | ' ' | '|' | ':')) {
        return ("", true);
    }
    let heading = line.trim_start_matches('#');
    if heading.len() < line.len() && heading.starts_with(' ') {
        return (heading.trim(), true);
    }
    if let Some(quoted) = line.strip_prefix("> ") {
        return (quoted, false);
    }
    let item = ["- ", "* ", "+ ", "• "].iter().find_map(|mark| line.strip_prefix(mark));
    item.map_or((line, false), |item| (item.trim_start_matches("[ ] ").trim_start_matches("[x] "), true))
}

pub enum Link<'a> {
    /// A link's text, and what follows the link.
    Text(&'a str, &'a str),
    /// `word](/phonemes/)`, and what follows.
    Phonemes(&'a str, &'a str),
}

/// Reads a link after its opening bracket.
pub fn link(text: &str) -> Option<Link<'_>> {
    let window = window(text);
    let middle = window.find("](")?;
    if window[..middle].contains('[') {
        return None;
    }
    let end = middle + 2 + window[middle + 2..].find(')')?;
    let target = &window[middle + 2..end];
    let is_phonemes = target.len() > 2 && target.starts_with('/') && target.ends_with('/');
    let rest = &text[end + 1..];
    Some(if is_phonemes { Link::Phonemes(&text[..=end], rest) } else { Link::Text(&text[..middle], rest) })
}

/// The beginning of the text in which a link or a tag must end.
fn window(text: &str) -> &str {
    let mut end = text.len().min(MAX_LENGTH);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Emphasis and code marks; a star between spaces or digits is a multiplication.
pub fn is_markup(symbol: char, before: &str, after: &str) -> bool {
    let is_operand = |neighbour: Option<char>| neighbour.is_none_or(|c| c.is_ascii_digit() || c == ' ');
    symbol == '`' || !(is_operand(before.chars().next_back()) && is_operand(after.chars().next()))
}

/// What follows an HTML tag such as `<br/>`, `</b>` or `<a href="x">`, after its opening bracket.
pub fn tag_end(after: &str) -> Option<&str> {
    let window = window(after);
    let name = window.strip_prefix('/').unwrap_or(window);
    let attributes = name.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '-');
    let rest =
        if name.starts_with(|c: char| c.is_ascii_alphabetic()) { attributes_end(attributes)? } else { return None };
    after.get(window.len() - rest.len()..)
}

/// Whether the tag after an opening bracket is of a usual element, or a closing one.
pub fn is_element(after: &str) -> bool {
    let name = after.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    name.is_empty() || ELEMENTS.iter().any(|element| name.eq_ignore_ascii_case(element))
}

/// What follows the attributes and the closing bracket. Several words without any value are text, as in `a<b and c>d`.
fn attributes_end(attributes: &str) -> Option<&str> {
    let mut rest = attributes;
    let (mut names, mut values) = (0, 0);
    loop {
        let next = rest.trim_start();
        if let Some(end) = next.strip_prefix("/>").or_else(|| next.strip_prefix('>')) {
            return (names < 2 || values > 0).then_some(end);
        }
        let after_name =
            next.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ':' | '.'));
        if next.len() == rest.len() || after_name.len() == next.len() {
            return None;
        }
        names += 1;
        rest = after_name;
        if let Some(value) = after_name.trim_start().strip_prefix('=') {
            values += 1;
            rest = value_end(value.trim_start())?;
        }
    }
}

/// What follows the value of an attribute.
fn value_end(value: &str) -> Option<&str> {
    if let Some(quote) = value.chars().next().filter(|quote| matches!(quote, '"' | '\'')) {
        return value[1..].split_once(quote).map(|(_, rest)| rest);
    }
    let rest = value.trim_start_matches(|c: char| !c.is_whitespace() && !"\"'=<>`".contains(c));
    (rest.len() < value.len()).then_some(rest)
}
