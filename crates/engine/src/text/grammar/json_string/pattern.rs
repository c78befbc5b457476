//! The language of a terminal, as a regular expression over characters.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// Max nested groups of a regular expression.
const MAX_NESTING: u32 = 64;

/// A set of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One character of these ranges; they ascend and do not overlap. Without ranges, no text at all.
    Class(Vec<(char, char)>),
    /// Without parts, the empty text.
    Concat(Vec<Pattern>),
    Or(Vec<Pattern>),
    And(Vec<Pattern>),
    Not(Box<Pattern>),
    /// From this many repetitions to that many, or any number.
    Repeat(Box<Pattern>, u32, Option<u32>),
}

impl Pattern {
    pub const EMPTY: Self = Self::Concat(Vec::new());
    pub const NOTHING: Self = Self::Class(Vec::new());

    /// Exactly this text; `is_insensitive`: whatever its case.
    pub fn text(text: &str, is_insensitive: bool) -> Result<Self, String> {
        match is_insensitive {
            true => Self::regex(&regex_syntax::escape(text), "i"),
            false => Ok(Self::concat(text.chars().map(|one| Self::Class(vec![(one, one)])))),
        }
    }

    /// Parses a regular expression that must match as a whole. The error completes "The expression …".
    pub fn regex(regex: &str, flags: &str) -> Result<Self, String> {
        if flags.contains('l') {
            return Err("has the flag 'l', which is not supported".to_owned());
        }
        let has = |flag| flags.contains(flag);
        let mut parser = ParserBuilder::new();
        parser.case_insensitive(has('i')).multi_line(has('m')).dot_matches_new_line(has('s'));
        let parsed = parser.ignore_whitespace(has('x')).nest_limit(MAX_NESTING).build().parse(regex);
        let hir = parsed.map_err(|error| match error {
            regex_syntax::Error::Parse(error) => format!("is invalid: {}", error.kind()),
            regex_syntax::Error::Translate(error) => format!("is invalid: {}", error.kind()),
            _ => "is invalid".to_owned(),
        })?;
        from_hir(&without_anchors(hir))
    }

    pub fn concat(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Vec::new();
        for part in parts {
            match part {
                Self::Concat(inner) => all.extend(inner),
                other if other == Self::NOTHING => return Self::NOTHING,
                other => all.push(other),
            }
        }
        if all.len() == 1 { all.remove(0) } else { Self::Concat(all) }
    }

    pub fn or(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Vec::new();
        for part in parts {
            if part != Self::NOTHING && !all.contains(&part) {
                all.push(part);
            }
        }
        match all.len() {
            0 => Self::NOTHING,
            1 => all.remove(0),
            _ => Self::Or(all),
        }
    }

    pub fn repeat(self, min: u32, max: Option<u32>) -> Self {
        match max {
            Some(0) => Self::EMPTY,
            Some(1) if min == 1 => self,
            _ if min == 0 && self == Self::NOTHING => Self::EMPTY,
            _ => Self::Repeat(Box::new(self), min, max),
        }
    }

    /// True if the empty text belongs to the set.
    pub fn is_nullable(&self) -> bool {
        match self {
            Self::Class(_) => false,
            Self::Concat(parts) | Self::And(parts) => parts.iter().all(Self::is_nullable),
            Self::Or(parts) => parts.iter().any(Self::is_nullable),
            Self::Not(inner) => !inner.is_nullable(),
            Self::Repeat(inner, min, _) => *min == 0 || inner.is_nullable(),
        }
    }

    /// The texts that may follow this character (Brzozowski's derivative).
    pub fn after(&self, first: char) -> Self {
        match self {
            Self::Class(ranges) => match ranges.iter().any(|(from, to)| (*from..=*to).contains(&first)) {
                true => Self::EMPTY,
                false => Self::NOTHING,
            },
            Self::Concat(parts) => after_concat(parts, first),
            Self::Or(parts) => Self::or(parts.iter().map(|part| part.after(first))),
            Self::And(parts) => {
                let parts: Vec<Self> = parts.iter().map(|part| part.after(first)).collect();
                if parts.contains(&Self::NOTHING) { Self::NOTHING } else { Self::And(parts) }
            }
            Self::Not(inner) => Self::Not(Box::new(inner.after(first))),
            Self::Repeat(inner, min, max) => {
                let rest = (**inner).clone().repeat(min.saturating_sub(1), max.map(|max| max.saturating_sub(1)));
                Self::concat([inner.after(first), rest])
            }
        }
    }

    /// The number of its parts, a measure of the work that it causes.
    pub fn size(&self) -> usize {
        match self {
            Self::Class(ranges) => 1 + ranges.len(),
            Self::Concat(parts) | Self::Or(parts) | Self::And(parts) => 1 + parts.iter().map(Self::size).sum::<usize>(),
            Self::Not(inner) | Self::Repeat(inner, ..) => 1 + inner.size(),
        }
    }
}

fn after_concat(parts: &[Pattern], first: char) -> Pattern {
    let mut alternatives = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let rest = parts.get(at + 1..).unwrap_or_default();
        alternatives.push(Pattern::concat([part.after(first), Pattern::concat(rest.iter().cloned())]));
        if !part.is_nullable() {
            break;
        }
    }
    Pattern::or(alternatives)
}

/// The text must match as a whole, so anchors at its ends add nothing.
fn without_anchors(hir: Hir) -> Hir {
    let is_start = |part: &Hir| matches!(part.kind(), HirKind::Look(Look::Start | Look::StartLF));
    let is_end = |part: &Hir| matches!(part.kind(), HirKind::Look(Look::End | Look::EndLF));
    let HirKind::Concat(parts) = hir.kind() else {
        return if is_start(&hir) || is_end(&hir) { Hir::empty() } else { hir };
    };
    let from = usize::from(parts.first().is_some_and(is_start));
    let to = parts.len() - usize::from(parts.last().is_some_and(is_end));
    Hir::concat(parts.get(from..to).unwrap_or_default().to_vec())
}

fn from_hir(hir: &Hir) -> Result<Pattern, String> {
    let all = |parts: &[Hir]| parts.iter().map(from_hir).collect::<Result<Vec<_>, _>>();
    match hir.kind() {
        HirKind::Empty => Ok(Pattern::EMPTY),
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).map_err(|_| bytes())?;
            Pattern::text(text, false)
        }
        HirKind::Class(Class::Unicode(class)) => {
            Ok(Pattern::Class(class.iter().map(|range| (range.start(), range.end())).collect()))
        }
        HirKind::Class(Class::Bytes(class)) if class.is_ascii() => {
            let ranges = class.iter().map(|range| (char::from(range.start()), char::from(range.end())));
            Ok(Pattern::Class(ranges.collect()))
        }
        HirKind::Class(Class::Bytes(_)) => Err(bytes()),
        HirKind::Look(_) => {
            Err("has '^', '$' or '\\b' inside; the text always matches as a whole, so leave them out".to_owned())
        }
        HirKind::Repetition(repetition) => Ok(from_hir(&repetition.sub)?.repeat(repetition.min, repetition.max)),
        HirKind::Capture(capture) => from_hir(&capture.sub),
        HirKind::Concat(parts) => Ok(Pattern::concat(all(parts)?)),
        HirKind::Alternation(parts) => Ok(Pattern::or(all(parts)?)),
    }
}

fn bytes() -> String {
    "has bytes that are not characters".to_owned()
}
