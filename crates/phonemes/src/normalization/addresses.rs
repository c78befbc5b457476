//! Web and e-mail addresses.

use super::super::token::{Kind, Token};
use super::view::{Reading, View};

/// Endings of host names after which a point belongs to an address.
const DOMAINS: [&str; 24] = [
    "com", "org", "net", "edu", "gov", "io", "dev", "ai", "app", "co", "uk", "de", "fr", "it", "es", "eu", "ca", "au",
    "us", "ch", "nl", "info", "tv", "me",
];
/// The most tokens of an address.
const MAX_TOKENS: usize = 60;

/// `https://example.com/a?b=c`, `www.example.com`, `name@example.com`, `example.com/page`.
pub fn address(view: &View) -> Option<Reading> {
    let first = view.get(0).filter(|token| token.kind == Kind::Word)?;
    let opens = |before: &Token| ['(', '"', '“', '<'].iter().any(|mark| before.is(*mark));
    if view.adjacent(1).is_none() || (view.adjacent(0).is_some() && !view.before(1).is_none_or(opens)) {
        return None;
    }
    let length = (1..MAX_TOKENS).find(|offset| view.adjacent(*offset).is_none()).unwrap_or(MAX_TOKENS);
    let tokens = trimmed(view.tokens.get(view.at..view.at + length)?);
    let scheme = matches!(first.text.as_str(), "http" | "https" | "ftp")
        && view.adjacent_is(1, ':')
        && view.adjacent_is(2, '/')
        && view.adjacent_is(3, '/');
    if !scheme && !is_host(tokens) {
        return None;
    }
    let skipped = if scheme { 4 } else { 0 };
    let spoken = |token: &Token| match token.kind {
        Kind::Number => view.spoken(&token.text),
        _ => spoken(token).to_owned(),
    };
    let words: Vec<String> = tokens.get(skipped..)?.iter().map(spoken).collect();
    Reading::new(tokens.len(), words.join(" "))
}

/// Without punctuation at the end, which belongs to the sentence.
fn trimmed(tokens: &[Token]) -> &[Token] {
    let end = tokens.iter().rposition(|token| matches!(token.kind, Kind::Word | Kind::Number) || token.is('/'));
    tokens.get(..=end.unwrap_or(0)).unwrap_or(tokens)
}

/// Whether the tokens begin with a host name, or with a name and `@`.
fn is_host(tokens: &[Token]) -> bool {
    let is_domain = |token: &Token| token.kind == Kind::Word && DOMAINS.contains(&token.text.as_str());
    let point_at = |at: usize| tokens.get(at).is_some_and(|token| token.is('.'));
    let at_sign = tokens.iter().position(|token| token.is('@'));
    if let Some(at) = at_sign.filter(|at| *at > 0) {
        return (at + 1..tokens.len()).any(point_at);
    }
    let host_end = tokens.iter().position(|token| token.is('/')).unwrap_or(tokens.len());
    let is_name = tokens[..host_end]
        .iter()
        .enumerate()
        .all(|(at, token)| if at % 2 == 0 { matches!(token.kind, Kind::Word | Kind::Number) } else { token.is('.') });
    let starts_with_www = tokens.first().is_some_and(|token| token.text.eq_ignore_ascii_case("www"));
    is_name && host_end > 2 && (starts_with_www || tokens.get(host_end - 1).is_some_and(is_domain))
}

fn spoken(token: &Token) -> &str {
    match token.text.as_str() {
        "." => "dot",
        "/" => "slash",
        "-" => "dash",
        "_" => "underscore",
        "@" => "at",
        ":" => "colon",
        "?" => "question mark",
        "=" => "equals",
        "&" => "and",
        "#" => "hash",
        "+" => "plus",
        "%" => "percent",
        _ if matches!(token.kind, Kind::Word) => &token.text,
        _ => "",
    }
}
