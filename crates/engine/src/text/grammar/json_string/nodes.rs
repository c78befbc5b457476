//! A grammar whose names are resolved and whose terminals are patterns.

use std::collections::{HashMap, HashSet};

use super::lark::{Expression, Lark};
use super::pattern::Pattern;
use super::tokens::in_line;

/// Max parts of all terminals together, a measure of the compiler's work.
const MAX_SIZE: usize = 50_000;

/// The right side of a rule.
#[derive(Clone, Debug)]
pub enum Node {
    /// The index of a terminal.
    Terminal(usize),
    /// The index of a rule.
    Rule(usize),
    Sequence(Vec<Node>),
    Alternatives(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
}

/// A grammar with resolved names.
#[derive(Debug, Default)]
pub struct Grammar {
    pub rules: Vec<Node>,
    pub terminals: Vec<Pattern>,
    /// The index of the first rule.
    pub start: usize,
}

/// The grammar that consists of one terminal.
pub fn of_pattern(pattern: Pattern) -> Result<Grammar, String> {
    match pattern.size() <= MAX_SIZE {
        true => Ok(Grammar { rules: vec![Node::Terminal(0)], terminals: vec![pattern], start: 0 }),
        false => Err(too_complex()),
    }
}

/// Resolves the names of a grammar. The error is what is wrong with it, for "The grammar …".
pub fn resolve(lark: &Lark) -> Result<Grammar, String> {
    let mut resolver = Resolver {
        lark,
        grammar: Grammar::default(),
        rules: HashMap::new(),
        pending: Vec::new(),
        patterns: HashMap::new(),
        open: HashSet::new(),
        ignored: None,
        size: 0,
    };
    resolver.ignored = resolver.ignored_rule()?;
    resolver.grammar.start = resolver.rule("start");
    while let Some((index, expression)) = resolver.pending.pop() {
        let node = resolver.node(expression)?;
        if let Some(rule) = resolver.grammar.rules.get_mut(index) {
            *rule = node;
        }
    }
    Ok(resolver.grammar)
}

fn too_complex() -> String {
    "is too complex. Simplify its terminals".to_owned()
}

struct Resolver<'a> {
    lark: &'a Lark,
    grammar: Grammar,
    /// The index of each rule that is used.
    rules: HashMap<&'a str, usize>,
    /// Rules whose right sides are not resolved yet.
    pending: Vec<(usize, &'a Expression)>,
    /// The terminals with names.
    patterns: HashMap<&'a str, Pattern>,
    /// The terminals that are being resolved.
    open: HashSet<&'a str>,
    /// The rule of what may follow each terminal.
    ignored: Option<usize>,
    size: usize,
}

impl<'a> Resolver<'a> {
    /// A rule for any number of ignored terminals, if there are any.
    fn ignored_rule(&mut self) -> Result<Option<usize>, String> {
        if self.lark.ignored.is_empty() {
            return Ok(None);
        }
        let patterns = self.lark.ignored.iter().map(|one| self.pattern(one)).collect::<Result<Vec<_>, _>>()?;
        let terminals = patterns.into_iter().map(|pattern| self.terminal(pattern)).collect();
        let node = Node::Repeat(Box::new(Node::Alternatives(terminals)), 0, None);
        self.grammar.rules.push(node);
        Ok(Some(self.grammar.rules.len() - 1))
    }

    fn rule(&mut self, name: &'a str) -> usize {
        if let Some(index) = self.rules.get(name) {
            return *index;
        }
        let index = self.grammar.rules.len();
        self.grammar.rules.push(Node::Sequence(Vec::new()));
        self.rules.insert(name, index);
        self.pending.extend(self.lark.rules.get(name).map(|body| (index, body)));
        index
    }

    fn terminal(&mut self, pattern: Pattern) -> Node {
        let terminals = &mut self.grammar.terminals;
        let known = terminals.iter().position(|known| *known == pattern);
        Node::Terminal(known.unwrap_or_else(|| {
            terminals.push(pattern);
            terminals.len() - 1
        }))
    }

    fn node(&mut self, expression: &'a Expression) -> Result<Node, String> {
        Ok(match expression {
            Expression::Rule(name, line) if !self.lark.rules.contains_key(name) => {
                return Err(in_line(*line, &format!("uses the undefined rule '{name}'")));
            }
            Expression::Rule(name, _) => Node::Rule(self.rule(name)),
            Expression::And(_, line) => {
                let what = "has '&' in a rule, which only terminals can have; their names are in upper case";
                return Err(in_line(*line, what));
            }
            Expression::Sequence(parts) => Node::Sequence(self.nodes(parts)?),
            Expression::Alternatives(parts) => Node::Alternatives(self.nodes(parts)?),
            Expression::Repeat(inner, min, max) => Node::Repeat(Box::new(self.node(inner)?), *min, *max),
            Expression::Terminal(..) | Expression::Pattern(_) | Expression::Not(_) => {
                let pattern = self.pattern(expression)?;
                let terminal = self.terminal(pattern);
                match self.ignored {
                    Some(ignored) => Node::Sequence(vec![terminal, Node::Rule(ignored)]),
                    None => terminal,
                }
            }
        })
    }

    fn nodes(&mut self, parts: &'a [Expression]) -> Result<Vec<Node>, String> {
        parts.iter().map(|part| self.node(part)).collect()
    }

    /// The language of a terminal.
    fn pattern(&mut self, expression: &'a Expression) -> Result<Pattern, String> {
        let pattern = match expression {
            Expression::Terminal(name, line) => self.named(name, *line)?,
            Expression::Rule(name, line) => {
                return Err(in_line(*line, &format!("uses the rule '{name}' in a terminal")));
            }
            Expression::Pattern(pattern) => pattern.clone(),
            Expression::Sequence(parts) => Pattern::concat(self.patterns(parts)?),
            Expression::Alternatives(parts) => Pattern::or(self.patterns(parts)?),
            Expression::And(parts, _) => Pattern::And(self.patterns(parts)?),
            Expression::Not(inner) => Pattern::Not(Box::new(self.pattern(inner)?)),
            Expression::Repeat(inner, min, max) => self.pattern(inner)?.repeat(*min, *max),
        };
        self.size += pattern.size();
        if self.size > MAX_SIZE { Err(too_complex()) } else { Ok(pattern) }
    }

    fn patterns(&mut self, parts: &'a [Expression]) -> Result<Vec<Pattern>, String> {
        parts.iter().map(|part| self.pattern(part)).collect()
    }

    fn named(&mut self, name: &'a str, line: usize) -> Result<Pattern, String> {
        if let Some(known) = self.patterns.get(name) {
            return Ok(known.clone());
        }
        let Some(expression) = self.lark.terminals.get(name) else {
            return Err(in_line(line, &format!("uses the undefined terminal '{name}'")));
        };
        if !self.open.insert(name) {
            return Err(in_line(line, &format!("has the terminal '{name}', which is part of itself")));
        }
        let pattern = self.pattern(expression)?;
        self.open.remove(name);
        self.patterns.insert(name, pattern.clone());
        Ok(pattern)
    }
}
