//! Grammars in Lark notation: rules, terminals, `%ignore` and `%import common`.

use std::collections::HashMap;

use super::pattern::Pattern;
use super::tokens::{Token, TokenKind, in_line, tokens};

/// Max nested parentheses; the compiler allows 29, and writing a rule anew adds some.
const MAX_DEPTH: usize = 12;
/// Max of a repetition such as `{2,5}`.
const MAX_REPETITIONS: u32 = 1_000;

/// The right side of a rule or a terminal.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// A rule and the line of its use.
    Rule(String, usize),
    /// A terminal and the line of its use.
    Terminal(String, usize),
    Pattern(Pattern),
    Sequence(Vec<Expression>),
    Alternatives(Vec<Expression>),
    /// Only for terminals.
    And(Vec<Expression>, usize),
    Not(Box<Expression>),
    Repeat(Box<Expression>, u32, Option<u32>),
}

/// A grammar as it is written.
#[derive(Debug, Default)]
pub struct Lark {
    pub rules: HashMap<String, Expression>,
    pub terminals: HashMap<String, Expression>,
    /// Terminals that may stand between the others.
    pub ignored: Vec<Expression>,
}

/// Parses a grammar. The error is what is wrong with it, for "The grammar …".
pub fn parse(text: &str) -> Result<Lark, String> {
    let mut parser = Parser { tokens: tokens(text)?, position: 0, lark: Lark::default() };
    while parser.peek().is_some() {
        if !parser.take_new_lines() {
            parser.item()?;
        }
    }
    match parser.lark.rules.contains_key("start") {
        true => Ok(parser.lark),
        false => Err("has no rule 'start'".to_owned()),
    }
}

/// Parses tokens, from the first to the last.
pub struct Parser {
    tokens: Vec<Token>,
    pub position: usize,
    pub lark: Lark,
}

impl Parser {
    /// The next token.
    pub fn peek(&self) -> Option<&TokenKind> {
        self.tokens.get(self.position).map(|token| &token.kind)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.position).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    /// An error in this line.
    pub fn error<T>(&self, what: &str) -> Result<T, String> {
        Err(in_line(self.line(), what))
    }

    fn is_mark(&self, mark: &str) -> bool {
        matches!(self.peek(), Some(TokenKind::Mark(next)) if *next == mark)
    }

    /// Takes a mark, if it is the next token.
    pub fn take(&mut self, mark: &str) -> bool {
        let is_next = self.is_mark(mark);
        self.position += usize::from(is_next);
        is_next
    }

    /// Takes a mark, or fails.
    pub fn expect(&mut self, mark: &str) -> Result<(), String> {
        if self.take(mark) { Ok(()) } else { self.error(&format!("has no '{mark}' where it should be")) }
    }

    /// Skips line breaks. True if there was one.
    fn take_new_lines(&mut self) -> bool {
        let begin = self.position;
        while self.peek() == Some(&TokenKind::NewLine) {
            self.position += 1;
        }
        self.position > begin
    }

    /// A rule, a terminal or a directive.
    fn item(&mut self) -> Result<(), String> {
        while self.take("?") || self.take("!") {}
        let line = self.line();
        let (name, is_rule) = match self.peek().cloned() {
            Some(TokenKind::Rule(name)) => (name, true),
            Some(TokenKind::Terminal(name)) => (name, false),
            Some(TokenKind::Directive(name)) => return self.directive(&name),
            _ => return self.error("has a line that does not begin with a name; a rule is 'name: …'"),
        };
        self.position += 1;
        match self.peek() {
            Some(TokenKind::Mark(":")) => self.position += 1,
            Some(TokenKind::Mark("[")) => return self.error("has attributes ([…]), which are not supported"),
            Some(TokenKind::Mark("{" | "::")) => return self.error("has parameters, which are not supported"),
            Some(TokenKind::Mark(".")) => return self.error("has a priority, which is not supported"),
            _ => return self.error(&format!("has no ':' after the name '{name}'")),
        }
        let body = self.alternatives(0)?;
        let list = if is_rule { &mut self.lark.rules } else { &mut self.lark.terminals };
        match list.insert(name.clone(), body) {
            Some(_) => Err(in_line(line, &format!("defines '{name}' twice"))),
            None => self.end_of_line(),
        }
    }

    /// Fails unless the line ends here.
    pub fn end_of_line(&self) -> Result<(), String> {
        match self.peek() {
            None | Some(TokenKind::NewLine) => Ok(()),
            Some(TokenKind::Mark(mark)) => self.error(&format!("has an unexpected '{mark}'")),
            Some(_) => self.error("has something unexpected at the end of the line"),
        }
    }

    /// Alternatives, at this depth of parentheses.
    pub fn alternatives(&mut self, depth: usize) -> Result<Expression, String> {
        if depth > MAX_DEPTH {
            return self.error(&format!("has more than {MAX_DEPTH} nested parentheses"));
        }
        let mut alternatives = vec![self.conjunction(depth)?];
        while self.next_alternative(depth) {
            alternatives.push(self.conjunction(depth)?);
        }
        let first = alternatives.pop();
        Ok(match first {
            Some(only) if alternatives.is_empty() => only,
            last => Expression::Alternatives(alternatives.into_iter().chain(last).collect()),
        })
    }

    /// Takes a `|`, which may begin a line. Inside parentheses, a line break means nothing.
    fn next_alternative(&mut self, depth: usize) -> bool {
        let begin = self.position;
        self.take_new_lines();
        let found = self.take("|");
        if !found && depth == 0 {
            self.position = begin;
        }
        found
    }

    fn conjunction(&mut self, depth: usize) -> Result<Expression, String> {
        let line = self.line();
        let first = self.sequence(depth)?;
        if !self.is_mark("&") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.take("&") {
            all.push(self.sequence(depth)?);
        }
        Ok(Expression::And(all, line))
    }

    fn sequence(&mut self, depth: usize) -> Result<Expression, String> {
        let mut parts = Vec::new();
        loop {
            if depth > 0 {
                self.take_new_lines();
            }
            match self.peek() {
                None | Some(TokenKind::NewLine | TokenKind::Mark("|" | "&" | ")" | "]")) => break,
                Some(TokenKind::Mark("->")) => self.alias()?,
                Some(_) => parts.push(self.repeated(depth)?),
            }
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Sequence(parts) })
    }

    /// The name of an alternative, which changes nothing.
    fn alias(&mut self) -> Result<(), String> {
        self.position += 1;
        match self.peek() {
            Some(TokenKind::Rule(_)) => {
                self.position += 1;
                Ok(())
            }
            _ => self.error("has no name after '->'"),
        }
    }

    fn repeated(&mut self, depth: usize) -> Result<Expression, String> {
        let atom = self.atom(depth)?;
        let (min, max) = match self.peek() {
            Some(TokenKind::Mark("*")) => (0, None),
            Some(TokenKind::Mark("+")) => (1, None),
            Some(TokenKind::Mark("?")) => (0, Some(1)),
            Some(TokenKind::Mark("{")) => return self.counted(atom),
            Some(TokenKind::Mark("~")) if matches!(self.after_next(), Some(TokenKind::Number(_))) => {
                return self.counted_with_tilde(atom);
            }
            _ => return Ok(atom),
        };
        self.position += 1;
        if matches!(self.peek(), Some(TokenKind::Mark("*" | "+" | "?"))) {
            return self.error("has two repetitions in a row; put the first one in parentheses");
        }
        Ok(Expression::Repeat(Box::new(atom), min, max))
    }

    fn after_next(&self) -> Option<&TokenKind> {
        self.tokens.get(self.position + 1).map(|token| &token.kind)
    }

    fn number(&mut self) -> Result<Option<u32>, String> {
        match self.peek() {
            Some(TokenKind::Number(number)) if *number <= MAX_REPETITIONS => {
                let number = *number;
                self.position += 1;
                Ok(Some(number))
            }
            Some(TokenKind::Number(_)) => self.error(&format!("has a repetition above {MAX_REPETITIONS}")),
            _ => Ok(None),
        }
    }

    /// `{3}`, `{2,}`, `{,5}` or `{2,5}`.
    fn counted(&mut self, atom: Expression) -> Result<Expression, String> {
        self.expect("{")?;
        let min = self.number()?;
        let max = if self.take(",") { self.number()? } else { min };
        self.expect("}")?;
        self.repetition(atom, min, max)
    }

    /// `~3` or `~2..5`.
    fn counted_with_tilde(&mut self, atom: Expression) -> Result<Expression, String> {
        self.expect("~")?;
        let min = self.number()?;
        let max = if self.take("..") { self.number()? } else { min };
        self.repetition(atom, min, max)
    }

    fn repetition(&self, atom: Expression, min: Option<u32>, max: Option<u32>) -> Result<Expression, String> {
        if (min, max) == (None, None) {
            return self.error("has a repetition without a number");
        }
        match (min.unwrap_or(0), max) {
            (min, Some(max)) if max < min => self.error("has a repetition whose maximum is below its minimum"),
            (min, max) => Ok(Expression::Repeat(Box::new(atom), min, max)),
        }
    }

    fn atom(&mut self, depth: usize) -> Result<Expression, String> {
        if depth > MAX_DEPTH {
            return self.error(&format!("has more than {MAX_DEPTH} nested parentheses"));
        }
        let line = self.line();
        let Some(next) = self.peek().cloned() else { return self.error("ends where something should follow") };
        self.position += 1;
        match next {
            TokenKind::Mark("~") => Ok(Expression::Not(Box::new(self.atom(depth + 1)?))),
            TokenKind::Mark("(") => self.group(")", depth),
            TokenKind::Mark("[") => Ok(Expression::Repeat(Box::new(self.group("]", depth)?), 0, Some(1))),
            TokenKind::Rule(name) => self.reference(Expression::Rule(name, line)),
            TokenKind::Terminal(name) => Ok(Expression::Terminal(name, line)),
            TokenKind::Text(from, _) if self.take("..") => self.range(&from),
            TokenKind::Text(text, is_insensitive) => Ok(Expression::Pattern(Pattern::text(&text, is_insensitive)?)),
            TokenKind::Regex(regex, flags) => match Pattern::regex(&regex, &flags) {
                Ok(pattern) => Ok(Expression::Pattern(pattern)),
                Err(what) => Err(in_line(line, &format!("has a regular expression that {what}"))),
            },
            TokenKind::Directive(name) => Err(in_line(line, &format!("has %{name}, which is not supported there"))),
            TokenKind::Mark(mark) => Err(in_line(line, &format!("has an unexpected '{mark}'"))),
            TokenKind::Number(number) => Err(in_line(line, &format!("has an unexpected number, {number}"))),
            TokenKind::NewLine => Err(in_line(line, "has a line that ends where something should follow")),
        }
    }

    fn group(&mut self, end: &str, depth: usize) -> Result<Expression, String> {
        let inside = self.alternatives(depth + 1)?;
        self.expect(end)?;
        Ok(inside)
    }

    fn reference(&self, rule: Expression) -> Result<Expression, String> {
        let is_template =
            self.is_mark("{") && !matches!(self.after_next(), Some(TokenKind::Number(_) | TokenKind::Mark(",")));
        match is_template || self.is_mark("::") {
            true => self.error("has parameters, which are not supported"),
            false => Ok(rule),
        }
    }

    /// `"a".."z"`, after the dots.
    fn range(&mut self, from: &str) -> Result<Expression, String> {
        let Some(TokenKind::Text(to, _)) = self.peek().cloned() else {
            return self.error("has a range without an end, such as \"a\"..\"z\"");
        };
        self.position += 1;
        let one = |text: &str| {
            let mut characters = text.chars();
            characters.next().filter(|_| characters.next().is_none())
        };
        match (one(from), one(&to)) {
            (Some(from), Some(to)) if from <= to => Ok(Expression::Pattern(Pattern::Class(vec![(from, to)]))),
            _ => self.error("has a range whose ends are not two ascending characters"),
        }
    }
}
