//! Writes repetitions.

use std::collections::HashMap;

use super::modes::{MODES, Mode, Transitions};
use super::nodes::Node;
use super::writer::{Writer, empty, suffix};

/// Max repetitions that are written one by one.
const MAX_COPIES: u32 = 64;

impl Writer<'_> {
    /// A repetition from one mode to another.
    pub fn repeat(
        &mut self,
        inner: &Node,
        min: u32,
        max: Option<u32>,
        from: Mode,
        to: Mode,
    ) -> Result<Option<String>, String> {
        let transitions = self.transitions(inner);
        let begins_with_escape = MODES.iter().any(|end| transitions.has(Mode::Escape, *end));
        if !begins_with_escape {
            return self.repeat_between(inner, min, max, from, to);
        }
        match max {
            None if min == 0 => self.any_number(inner, from, to).map(Some),
            _ if max.unwrap_or(min) > MAX_COPIES => Err(format!(
                "repeats a rule that may begin with a quotation mark, a backslash or a control character up to {} times; at most {MAX_COPIES} are allowed",
                max.unwrap_or(min)
            )),
            _ => {
                let optional = match max {
                    None => vec![Node::Repeat(Box::new(inner.clone()), 0, None)],
                    Some(max) => vec![
                        Node::Alternatives(vec![inner.clone(), Node::Sequence(Vec::new())]);
                        max.saturating_sub(min) as usize
                    ],
                };
                let required = std::iter::repeat_n(inner, min as usize);
                self.sequence(&required.chain(&optional).collect::<Vec<_>>(), from, to)
            }
        }
    }

    /// A repetition whose parts all begin between two characters.
    fn repeat_between(
        &mut self,
        inner: &Node,
        min: u32,
        max: Option<u32>,
        from: Mode,
        to: Mode,
    ) -> Result<Option<String>, String> {
        if from == Mode::Escape {
            return Ok((min == 0 && to == Mode::Escape).then(empty));
        }
        let Some(whole) = self.node(inner, Mode::Between, Mode::Between)? else {
            let last = self.node(inner, Mode::Between, to)?;
            return Ok(match (min, to) {
                (0, Mode::Between) => Some(empty()),
                (0 | 1, _) if max != Some(0) => last,
                _ => None,
            });
        };
        if to == Mode::Between {
            return Ok(Some(repeated(&whole, min, max)));
        }
        let Some(last) = self.node(inner, Mode::Between, to)? else { return Ok(None) };
        let before = repeated(&whole, min.saturating_sub(1), max.map(|max| max.saturating_sub(1)));
        Ok(Some(format!("({before} {last})")))
    }

    /// Any number of repetitions as a rule that begins with itself: such rules are the cheapest ones to parse.
    fn any_number(&mut self, inner: &Node, from: Mode, to: Mode) -> Result<String, String> {
        let mut parts = HashMap::new();
        for begin in MODES {
            for end in MODES {
                parts.extend(self.node(inner, begin, end)?.map(|part| ((begin, end), part)));
            }
        }
        let mut key: Vec<String> =
            parts.iter().map(|((begin, end), part)| format!("{} {part}", suffix(*begin, *end))).collect();
        key.sort();
        let key = key.join("\n");
        let number = self.shared_rules.len();
        let name = self.shared_rules.entry(key).or_insert_with(|| format!("a{number}")).clone();
        let of = |begin: Mode, end: Mode| format!("{name}_{}", suffix(begin, end));
        let star = Transitions::new(|begin, end| parts.contains_key(&(begin, end)));
        let star = star.repeated(0, None);
        if self.written.insert(of(from, to)) {
            for begin in MODES {
                self.any_number_from(begin, star, &parts, &of)?;
            }
        }
        Ok(of(from, to))
    }

    fn any_number_from(
        &mut self,
        begin: Mode,
        star: Transitions,
        parts: &HashMap<(Mode, Mode), String>,
        of: &impl Fn(Mode, Mode) -> String,
    ) -> Result<(), String> {
        for end in MODES.into_iter().filter(|end| star.has(begin, *end)) {
            let mut found: Vec<String> = if begin == end { vec![empty()] } else { Vec::new() };
            for middle in MODES.into_iter().filter(|middle| star.has(begin, *middle)) {
                found.extend(parts.get(&(middle, end)).map(|part| format!("{} {part}", of(begin, middle))));
            }
            self.written.insert(of(begin, end));
            self.line(&of(begin, end), &found.join(" | "))?;
        }
        Ok(())
    }
}

fn repeated(item: &str, min: u32, max: Option<u32>) -> String {
    let item = if item.ends_with(['*', '+', '?', '}']) { &format!("({item})") } else { item };
    match (min, max) {
        (_, Some(0)) => empty(),
        _ if item == empty() => empty(),
        (1, Some(1)) => item.to_owned(),
        (0, None) => format!("{item}*"),
        (1, None) => format!("{item}+"),
        (0, Some(1)) => format!("{item}?"),
        (min, None) => format!("{item}{{{min},}}"),
        (min, Some(max)) => format!("{item}{{{min},{max}}}"),
    }
}
