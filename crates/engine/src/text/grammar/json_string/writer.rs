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
/// The grammar in Lark notation, between two literals: the JSON around the string.
pub fn write(before: &str, grammar: &Grammar, after: &str) -> Result<String, String> {
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
        shared_rules: HashMap::new(),
    };
    let Some(start) = writer.node(&Node::Rule(grammar.start), Mode::Between, Mode::Between)? else {
        return Err("matches no text".to_owned());
    };
    writer.line("start", &format!("{before} {start} {after}"))?;
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

/// The end of a name that says from which mode to which one a part is.
pub fn suffix(from: Mode, to: Mode) -> &'static str {
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

/// Writes the rules and terminals that are needed.
pub struct Writer<'a> {
    grammar: &'a Grammar,
    /// For each terminal, its texts that begin with an escape, without the backslash.
    after_backslash: Vec<Option<String>>,
    terminals: Vec<Transitions>,
    rules: Vec<Transitions>,
    out: String,
    /// The names that are defined or pending.
    pub written: HashSet<String>,
    pending: Vec<(usize, Mode, Mode)>,
    /// The names of other rules, by their right sides.
    pub shared_rules: HashMap<String, String>,
}

impl Writer<'_> {
    /// Adds a rule or a terminal.
    pub fn line(&mut self, name: &str, body: &str) -> Result<(), String> {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{name}: {body}");
        match self.written.len() <= MAX_LINES && self.out.len() <= MAX_BYTES {
            true => Ok(()),
            false => Err("is too complex. Simplify it".to_owned()),
        }
    }

    /// Between which modes a part can be.
    pub fn transitions(&self, node: &Node) -> Transitions {
        Transitions::of(node, &self.rules, &self.terminals)
    }

    fn rule_body(&mut self, index: usize, from: Mode, to: Mode) -> Result<String, String> {
        let Some(node) = self.grammar.rules.get(index) else { return Ok(String::new()) };
        Ok(self.node(node, from, to)?.unwrap_or_else(empty))
    }

    /// How a part is written between two modes, as one item of a sequence. `None` if it has no such texts.
    pub fn node(&mut self, node: &Node, from: Mode, to: Mode) -> Result<Option<String>, String> {
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
    pub fn sequence(&mut self, parts: &[&Node], from: Mode, to: Mode) -> Result<Option<String>, String> {
        let reached = self.reached(parts, from);
        let mut rest: [Option<String>; 2] = MODES.map(|mode| (mode == to).then(String::new));
        for (part, begins) in parts.iter().zip(&reached).rev() {
            let transitions = self.transitions(part);
            let users = |end: Mode| begins.iter().filter(|begin| transitions.has(**begin, end)).count();
            let mut next = Vec::new();
            for (end, text) in MODES.into_iter().zip(rest) {
                next.push(match text {
                    Some(text) if users(end) > 1 && text.contains(' ') => Some(self.shared_rule(&text)?),
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

    /// The name of a rule with this right side.
    fn shared_rule(&mut self, body: &str) -> Result<String, String> {
        if let Some(name) = self.shared_rules.get(body) {
            return Ok(name.clone());
        }
        let name = format!("s{}", self.shared_rules.len());
        self.shared_rules.insert(body.to_owned(), name.clone());
        self.written.insert(name.clone());
        self.line(&name, body)?;
        Ok(name)
    }
}

/// The empty text.
pub fn empty() -> String {
    "\"\"".to_owned()
}

fn any_of(mut found: Vec<String>) -> Option<String> {
    found.dedup();
    match found.len() {
        0 | 1 => found.pop(),
        _ => Some(format!("({})", found.join(" | "))),
    }
}
