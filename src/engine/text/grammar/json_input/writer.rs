//! Writes a grammar with escaped terminals, each rule in the forms that are needed.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::escaped;
use super::modes::{MODES, Mode, Transitions};
use super::nodes::{Grammar, Node};

/// Max lines of the result: the compiler's time grows with the square of the number of rules.
const MAX_LINES: usize = 2_048;
/// Max bytes of the result.
const MAX_BYTES: usize = 1 << 20;
/// Max repetitions that are written one by one.
const MAX_COPIES: u32 = 64;
/// The JSON around the string.
const OPENING: &str = r#""{\"input\": \"""#;
const CLOSING: &str = r#""\"}""#;

/// The grammar in Lark notation, with the JSON around the string.
pub fn write(grammar: &Grammar) -> Result<String, String> {
    let after_backslash: Vec<Option<String>> =
        grammar.terminals.iter().map(escaped::terminal_after_backslash).collect();
    let terminals: Vec<Transitions> = grammar
        .terminals
        .iter()
        .zip(&after_backslash)
        .map(|(terminal, after)| of_terminal(terminal.is_nullable(), after.is_some()))
        .collect();
    let rules = Transitions::of_rules(grammar, &terminals);
    let mut writer = Writer {
        grammar,
        after_backslash,
        terminals,
        rules,
        out: String::new(),
        written: HashSet::new(),
        pending: Vec::new(),
        helpers: HashMap::new(),
    };
    let Some(start) = writer.node(&Node::Rule(grammar.start), Mode::Between, Mode::Between)? else {
        return Err("matches no text".to_owned());
    };
    writer.line("start", &format!("{OPENING} {start} {CLOSING}"))?;
    while let Some((index, from, to)) = writer.pending.pop() {
        let body = writer.rule_body(index, from, to)?;
        writer.line(&rule_name(index, from, to), &body)?;
    }
    Ok(writer.out)
}

fn of_terminal(is_nullable: bool, has_escape: bool) -> Transitions {
    Transitions::new(|from, to| match (from, to) {
        (Mode::Between, _) => true,
        (Mode::Escape, Mode::Between) => has_escape,
        (Mode::Escape, Mode::Escape) => has_escape || is_nullable,
    })
}

fn suffix(from: Mode, to: Mode) -> &'static str {
    match (from, to) {
        (Mode::Between, Mode::Between) => "bb",
        (Mode::Between, Mode::Escape) => "be",
        (Mode::Escape, Mode::Between) => "eb",
        (Mode::Escape, Mode::Escape) => "ee",
    }
}

fn rule_name(index: usize, from: Mode, to: Mode) -> String {
    format!("r{index}_{}", suffix(from, to))
}

fn terminal_name(index: usize, from: Mode, to: Mode) -> String {
    format!("T{index}_{}", suffix(from, to).to_ascii_uppercase())
}

struct Writer<'a> {
    grammar: &'a Grammar,
    /// For each terminal, its texts that begin with an escape, without the backslash.
    after_backslash: Vec<Option<String>>,
    terminals: Vec<Transitions>,
    rules: Vec<Transitions>,
    out: String,
    /// The names that are defined or pending.
    written: HashSet<String>,
    pending: Vec<(usize, Mode, Mode)>,
    /// The names of other rules, by their right sides.
    helpers: HashMap<String, String>,
}

impl Writer<'_> {
    fn line(&mut self, name: &str, body: &str) -> Result<(), String> {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{name}: {body}");
        match self.written.len() <= MAX_LINES && self.out.len() <= MAX_BYTES {
            true => Ok(()),
            false => Err("is too complex. Simplify it".to_owned()),
        }
    }

    fn transitions(&self, node: &Node) -> Transitions {
        Transitions::of(node, &self.rules, &self.terminals)
    }

    fn rule_body(&mut self, index: usize, from: Mode, to: Mode) -> Result<String, String> {
        let Some(node) = self.grammar.rules.get(index) else { return Ok(String::new()) };
        Ok(self.node(node, from, to)?.unwrap_or_else(empty))
    }

    /// What a part is from one mode to another, as one item of a sequence. `None` if it has no such texts.
    fn node(&mut self, node: &Node, from: Mode, to: Mode) -> Result<Option<String>, String> {
        if !self.transitions(node).has(from, to) {
            return Ok(None);
        }
        match node {
            Node::Terminal(index) => self.terminal(*index, from, to).map(Some),
            Node::Rule(index) => {
                let name = rule_name(*index, from, to);
                if self.written.insert(name.clone()) {
                    self.pending.push((*index, from, to));
                }
                Ok(Some(name))
            }
            Node::Sequence(parts) => self.sequence(&parts.iter().collect::<Vec<_>>(), from, to),
            Node::Alternatives(parts) => {
                let mut found = Vec::new();
                for part in parts {
                    found.extend(self.node(part, from, to)?);
                }
                Ok(any_of(found))
            }
            Node::Repeat(inner, min, max) => self.repeat(inner, *min, *max, from, to),
        }
    }

    fn terminal(&mut self, index: usize, from: Mode, to: Mode) -> Result<String, String> {
        let Some(pattern) = self.grammar.terminals.get(index) else { return Ok(empty()) };
        let after = self.after_backslash.get(index).cloned().flatten();
        let is_skipped = from == Mode::Escape && to == Mode::Escape && pattern.is_nullable();
        if is_skipped && after.is_none() {
            return Ok(empty());
        }
        let whole = terminal_name(index, from, Mode::Between);
        if self.written.insert(whole.clone()) {
            let body = match from {
                Mode::Between => escaped::terminal(pattern),
                Mode::Escape => after.unwrap_or_default(),
            };
            self.line(&whole, &body)?;
        }
        let name = terminal_name(index, from, to);
        if self.written.insert(name.clone()) {
            self.line(&name, &escaped::before_backslash(&whole))?;
        }
        Ok(if is_skipped { format!("({name} | \"\")") } else { name })
    }

    /// From the end to the beginning: what is left of the sequence from each mode.
    fn sequence(&mut self, parts: &[&Node], from: Mode, to: Mode) -> Result<Option<String>, String> {
        let reached = self.reached(parts, from);
        let mut rest: [Option<String>; 2] = MODES.map(|mode| (mode == to).then(String::new));
        for (part, begins) in parts.iter().zip(&reached).rev() {
            let transitions = self.transitions(part);
            let users = |end: Mode| begins.iter().filter(|begin| transitions.has(**begin, end)).count();
            let mut next = Vec::new();
            for (end, text) in MODES.into_iter().zip(rest) {
                next.push(match text {
                    Some(text) if users(end) > 1 && text.contains(' ') => Some(self.helper(&text)?),
                    text => text,
                });
            }
            let mut before = [None, None];
            for (begin, slot) in MODES.into_iter().zip(&mut before) {
                if begins.contains(&begin) {
                    *slot = self.step(part, begin, &next)?;
                }
            }
            rest = before;
        }
        let [between, escape] = rest;
        let found = if from == Mode::Between { between } else { escape };
        Ok(found.map(|text| if text.is_empty() { empty() } else { format!("({text})") }))
    }

    /// The modes before each part of a sequence.
    fn reached(&self, parts: &[&Node], from: Mode) -> Vec<Vec<Mode>> {
        let mut modes = vec![from];
        let mut reached = Vec::new();
        for part in parts {
            let transitions = self.transitions(part);
            let next = MODES.into_iter().filter(|end| modes.iter().any(|begin| transitions.has(*begin, *end)));
            let next = next.collect();
            reached.push(std::mem::replace(&mut modes, next));
        }
        reached
    }

    /// A part from a mode, and what follows it in each mode in which it can end.
    fn step(&mut self, part: &Node, begin: Mode, rest: &[Option<String>]) -> Result<Option<String>, String> {
        let mut found = Vec::new();
        for (end, rest) in MODES.into_iter().zip(rest) {
            let Some(rest) = rest else { continue };
            let Some(first) = self.node(part, begin, end)? else { continue };
            found.push(match (first == empty(), rest.is_empty()) {
                (true, _) => rest.clone(),
                (false, true) => first,
                (false, false) => format!("{first} {rest}"),
            });
        }
        Ok(if found.len() > 1 { any_of(found) } else { found.pop() })
    }

    fn repeat(
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
        let number = self.helpers.len();
        let name = self.helpers.entry(key).or_insert_with(|| format!("a{number}")).clone();
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

    /// The name of a rule with this right side.
    fn helper(&mut self, body: &str) -> Result<String, String> {
        if let Some(name) = self.helpers.get(body) {
            return Ok(name.clone());
        }
        let name = format!("s{}", self.helpers.len());
        self.helpers.insert(body.to_owned(), name.clone());
        self.written.insert(name.clone());
        self.line(&name, body)?;
        Ok(name)
    }
}

/// The empty text.
fn empty() -> String {
    "\"\"".to_owned()
}

fn any_of(mut found: Vec<String>) -> Option<String> {
    found.dedup();
    match found.len() {
        0 | 1 => found.pop(),
        _ => Some(format!("({})", found.join(" | "))),
    }
}

fn repeated(item: &str, min: u32, max: Option<u32>) -> String {
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
