//! Prepares text for the tokenizer: one form for each character, and no markup.
//!
//! Compatibility characters get their plain form (NFKC). Quotes and dashes get one spelling. Zero-width characters, control
//! characters and emoji disappear. Of Markdown only the text stays; a heading, a list item and a paragraph end a sentence.

use unicode_normalization::UnicodeNormalization;

use super::markup::{Fence, Link, is_element, is_markup, link, tag_end, without_line_markup};

/// The cleaned text. Takes time and memory in proportion to the text.
pub fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let mut code: Option<Fence> = None;
    for line in text.lines() {
        let line = line.trim();
        let fence = Fence::opening(line);
        match code {
            Some(open) if open.is_closed_by(line) => {
                code = None;
                continue;
            }
            None if fence.is_some() => {
                code = fence;
                continue;
            }
            _ => {}
        }
        let (line, ends_sentence) = if code.is_some() { (line, true) } else { without_line_markup(line) };
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
                // The brackets of `Vec<u8>` are no tag.
                let is_text = cleaned.ends_with(char::is_alphanumeric) && !is_element(after);
                cleaned.push(if end.is_some() { ' ' } else { '<' });
                end.filter(|_| !is_text).unwrap_or(after)
            }
            _ => push_first(rest, symbol, cleaned),
        };
    }
}

fn push_text(text: &str, cleaned: &mut String) {
    let mut rest = text;
    while let Some(symbol) = rest.chars().next() {
        rest = push_first(rest, symbol, cleaned);
    }
}

/// Writes the first character of the text, or all superscripts there, and returns what follows.
fn push_first<'a>(text: &'a str, first: char, cleaned: &mut String) -> &'a str {
    if superscript(first).is_some() {
        return push_superscripts(text, cleaned);
    }
    push_character(first, cleaned);
    &text[first.len_utf8()..]
}

/// The plain form of a superscript.
fn superscript(symbol: char) -> Option<char> {
    Some(match symbol {
        '⁰' => '0',
        '¹' => '1',
        '²' => '2',
        '³' => '3',
        '⁴'..='⁹' => char::from_digit(u32::from(symbol) - u32::from('⁰'), 10)?,
        '⁺' => '+',
        '⁻' => '-',
        'ⁿ' => 'n',
        _ => return None,
    })
}

/// Superscripts are an exponent, as in `10⁻³`, or else a note or a charge. A square and a cube keep their character.
fn push_superscripts<'a>(text: &'a str, cleaned: &mut String) -> &'a str {
    let rest = text.trim_start_matches(|symbol| superscript(symbol).is_some());
    let run = &text[..text.len() - rest.len()];
    if matches!(run, "²" | "³") {
        cleaned.push_str(run);
        return rest;
    }
    let plain: String = run.chars().filter_map(superscript).collect();
    let is_power = is_base(cleaned) && !plain.ends_with(['+', '-']);
    cleaned.push(if is_power { '^' } else { ' ' });
    cleaned.push_str(if is_power { plain.trim_start_matches('+') } else { &plain });
    rest
}

/// Whether a superscript after the text is its power: after a number, a variable or a unit.
fn is_base(text: &str) -> bool {
    let letters = text.chars().rev().take(3).take_while(|letter| letter.is_alphabetic()).count();
    matches!(letters, 1 | 2) || text.ends_with(|last: char| last.is_ascii_digit() || last == ')')
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
        '\u{2044}' => cleaned.push('/'),
        '™' | '℠' => {}
        'º' | 'ª' | '°' | '£' | '€' | '¥' => cleaned.push(symbol),
        _ if is_invisible(symbol) => {}
        _ if is_emoji(symbol) => cleaned.push(' '),
        _ if symbol.is_control() => cleaned.push(' '),
        _ => push_normalized(symbol, cleaned),
    }
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
    let plain: String =
        std::iter::once(symbol).nfkc().map(|plain| if plain == '\u{2044}' { '/' } else { plain }).collect();
    // Fractions and numbers in circles do not join the number before them, but wide digits do.
    let is_digit = matches!(symbol, '\u{ff10}'..='\u{ff19}' | '\u{1d7ce}'..='\u{1d7ff}');
    if !is_digit && plain.starts_with(is_ascii_digit) && cleaned.ends_with(is_ascii_digit) {
        cleaned.push(' ');
    }
    cleaned.push_str(&plain);
}

fn is_ascii_digit(symbol: char) -> bool {
    symbol.is_ascii_digit()
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
