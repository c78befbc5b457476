//! Prepares text for the tokenizer: one form for each character, and no markup.
//!
//! Compatibility characters get their plain form (NFKC). Quotes and dashes get one spelling. Zero-width characters, control
//! characters and emoji disappear. Of Markdown only the text stays; a heading, a list item and a paragraph end a sentence.

use unicode_normalization::UnicodeNormalization;

/// How far a link is followed, in bytes.
const MAX_LINK: usize = 500;

/// The cleaned text. Takes time and memory in proportion to the text.
pub fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let mut in_code = false;
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("```") || line.starts_with("~~~") {
            in_code = !in_code;
            continue;
        }
        let (line, ends_sentence) = if in_code { (line, true) } else { without_line_markup(line) };
        if ends_sentence || line.is_empty() {
            cleaned.push('\n');
        }
        clean_line(line, &mut cleaned);
        cleaned.push('\n');
        if ends_sentence {
            cleaned.push('\n');
        }
    }
    cleaned
}

/// The line without the marks of headings, quotes, lists and rules, and whether it is a block of its own.
fn without_line_markup(line: &str) -> (&str, bool) {
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

fn clean_line(line: &str, cleaned: &mut String) {
    let mut rest = line;
    while let Some(symbol) = rest.chars().next() {
        let after = &rest[symbol.len_utf8()..];
        rest = match symbol {
            '!' if after.starts_with('[') => after,
            '[' => match link(after) {
                Some(Link::Text(text, end)) => {
                    push_text(text, cleaned);
                    end
                }
                Some(Link::Phonemes(link, end)) => {
                    cleaned.push('[');
                    cleaned.push_str(link);
                    end
                }
                None => {
                    cleaned.push('(');
                    after
                }
            },
            '*' | '`' if is_markup(symbol, cleaned, after) => after,
            '<' => {
                let end = tag_end(after);
                cleaned.push(if end.is_some() { ' ' } else { '<' });
                end.unwrap_or(after)
            }
            _ => {
                push_character(symbol, cleaned);
                after
            }
        };
    }
}

enum Link<'a> {
    /// A link's text, and what follows the link.
    Text(&'a str, &'a str),
    /// `word](/phonemes/)`, and what follows.
    Phonemes(&'a str, &'a str),
}

/// Reads a link after its opening bracket.
fn link(text: &str) -> Option<Link<'_>> {
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

/// The beginning of the text in which a link must end.
fn window(text: &str) -> &str {
    let mut end = text.len().min(MAX_LINK);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Emphasis and code marks; a star between spaces or digits is a multiplication.
fn is_markup(symbol: char, before: &str, after: &str) -> bool {
    let is_operand = |neighbour: Option<char>| neighbour.is_none_or(|c| c.is_ascii_digit() || c == ' ');
    symbol == '`' || !(is_operand(before.chars().next_back()) && is_operand(after.chars().next()))
}

/// What follows an HTML tag such as `<br/>` or `</b>`.
fn tag_end(after: &str) -> Option<&str> {
    let window = window(after);
    let end = window.find('>')?;
    let name = window[..end].trim_start_matches('/');
    let is_tag = name.starts_with(|c: char| c.is_ascii_alphabetic()) && !window[..end].contains('<');
    is_tag.then(|| &after[end + 1..])
}

fn push_text(text: &str, cleaned: &mut String) {
    for symbol in text.chars() {
        push_character(symbol, cleaned);
    }
}

fn push_character(symbol: char, cleaned: &mut String) {
    match symbol {
        _ if symbol.is_ascii_alphanumeric() => cleaned.push(symbol),
        '\t' | '\u{a0}' | '\u{2028}' | '\u{2029}' => cleaned.push(' '),
        '’' | '‘' | '‛' | '′' | '´' | 'ʼ' => cleaned.push('\''),
        '„' | '‟' | '″' => cleaned.push('"'),
        '«' => cleaned.push('“'),
        '»' => cleaned.push('”'),
        '‐' | '‑' | '−' | '﹣' => cleaned.push('-'),
        '‒' | '–' => cleaned.push('–'),
        '—' | '―' => cleaned.push('—'),
        '[' | '{' => cleaned.push('('),
        ']' | '}' => cleaned.push(')'),
        '…' => cleaned.push('…'),
        '。' => cleaned.push_str(". "),
        '、' => cleaned.push_str(", "),
        '½' => push_fraction("1/2", cleaned),
        '¼' => push_fraction("1/4", cleaned),
        '¾' => push_fraction("3/4", cleaned),
        '⅓' => push_fraction("1/3", cleaned),
        '⅔' => push_fraction("2/3", cleaned),
        '⅛' => push_fraction("1/8", cleaned),
        'º' | 'ª' | '²' | '³' | '°' | '£' | '€' | '¥' => cleaned.push(symbol),
        _ if is_invisible(symbol) => {}
        _ if is_emoji(symbol) => cleaned.push(' '),
        _ if symbol.is_control() => cleaned.push(' '),
        _ => push_normalized(symbol, cleaned),
    }
}

/// A fraction after a digit is a part of a mixed number.
fn push_fraction(fraction: &str, cleaned: &mut String) {
    if cleaned.ends_with(|c: char| c.is_ascii_digit()) {
        cleaned.push_str(" and ");
    }
    cleaned.push_str(fraction);
}

fn push_normalized(symbol: char, cleaned: &mut String) {
    // A mark joins the letter before it. More than one mark on a letter is decoration.
    if is_combining(symbol) {
        if let Some(letter) = cleaned.pop() {
            match unicode_normalization::char::compose(letter, symbol) {
                Some(composed) => cleaned.push(composed),
                None => cleaned.push(letter),
            }
        }
        return;
    }
    cleaned.extend(std::iter::once(symbol).nfkc().map(|plain| if plain == '\u{2044}' { '/' } else { plain }));
}

fn is_combining(symbol: char) -> bool {
    unicode_normalization::char::is_combining_mark(symbol) && matches!(symbol, '\u{300}'..='\u{36f}')
}

/// Zero-width characters, direction marks, variation selectors and soft hyphens.
fn is_invisible(symbol: char) -> bool {
    matches!(symbol, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(symbol, '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}' | '\u{61c}' | '\u{180e}')
}

fn is_emoji(symbol: char) -> bool {
    matches!(symbol, '\u{1f000}'..='\u{1faff}' | '\u{2600}'..='\u{27bf}' | '\u{2b00}'..='\u{2bff}' | '\u{20e3}')
        || matches!(symbol, '\u{2190}'..='\u{21ff}' | '\u{2300}'..='\u{23ff}' | '\u{2500}'..='\u{25ff}')
}
