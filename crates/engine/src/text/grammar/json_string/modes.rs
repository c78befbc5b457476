//! Modes: a part of a grammar begins and ends between two characters, or after the backslash of an escape.

use super::nodes::{Grammar, Node};

/// The position at which a part of the text begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Between two characters.
    Between,
    /// After the backslash of an escape.
    Escape,
}

/// The modes, in the order of their indices.
pub const MODES: [Mode; 2] = [Mode::Between, Mode::Escape];

/// For each mode at the beginning, the modes in which a part can end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transitions([[bool; 2]; 2]);

impl Transitions {
    /// Those of the empty text.
    const EMPTY: Self = Self([[true, false], [false, true]]);

    pub fn has(self, from: Mode, to: Mode) -> bool {
        let [between, escape] = self.0;
        let [to_between, to_escape] = if from == Mode::Between { between } else { escape };
        if to == Mode::Between { to_between } else { to_escape }
    }

    /// Those that `has` says.
    pub fn new(has: impl Fn(Mode, Mode) -> bool) -> Self {
        Self(MODES.map(|from| MODES.map(|to| has(from, to))))
    }

    fn or(self, other: Self) -> Self {
        Self::new(|from, to| self.has(from, to) || other.has(from, to))
    }

    fn then(self, next: Self) -> Self {
        Self::new(|from, to| MODES.iter().any(|middle| self.has(from, *middle) && next.has(*middle, to)))
    }

    /// Those of a repetition.
    pub fn repeated(self, min: u32, max: Option<u32>) -> Self {
        // From the third one on, every second power is the same.
        let min_count = if min > 4 { 3 + (min + 1) % 2 } else { min };
        let required = (0..min_count).fold(Self::EMPTY, |before, _| before.then(self));
        let optional = Self::EMPTY.or(self);
        // Two repetitions lead to every mode that more lead to.
        let count = max.map_or(2, |max| max.saturating_sub(min).min(2));
        (0..count).fold(required, |before, _| before.then(optional))
    }

    /// Those of a part, given those of the rules and of the terminals.
    pub fn of(node: &Node, rules: &[Self], terminals: &[Self]) -> Self {
        let of = |node: &Node| Self::of(node, rules, terminals);
        match node {
            Node::Terminal(index) => terminals.get(*index).copied().unwrap_or_default(),
            Node::Rule(index) => rules.get(*index).copied().unwrap_or_default(),
            Node::Sequence(parts) => parts.iter().map(of).fold(Self::EMPTY, Self::then),
            Node::Alternatives(parts) => parts.iter().map(of).fold(Self::default(), Self::or),
            Node::Repeat(inner, min, max) => of(inner).repeated(*min, *max),
        }
    }

    /// Those of all rules: the smallest that agree with each other.
    pub fn of_rules(grammar: &Grammar, terminals: &[Self]) -> Vec<Self> {
        let mut rules = vec![Self::default(); grammar.rules.len()];
        loop {
            let next: Vec<Self> = grammar.rules.iter().map(|node| Self::of(node, &rules, terminals)).collect();
            if next == rules {
                return rules;
            }
            rules = next;
        }
    }
}
