//! Finds filters, tests, functions and options that a template uses and nothing defines, so that the model fails to load and
//! not at the conversation that first reaches them.

use std::collections::{BTreeSet, HashSet};

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, context};

use super::filters;

/// `undeclared`: variables that the template reads and does not set.
pub fn check(
    environment: &Environment<'_>,
    source: &str,
    syntax: SyntaxConfig,
    undeclared: &HashSet<String>,
) -> Result<(), String> {
    // The template has been compiled, so it has no invalid tokens.
    let tokens: Vec<Token<'_>> = tokenize(source, false, syntax).map_while(|token| Some(token.ok()?.0)).collect();
    let used = Names::of(&tokens);
    let is_known = |question: &str, name: &str| {
        let known = environment.compile_expression(question).and_then(|question| question.eval(context! { name }));
        known.is_ok_and(|known| known.is_true())
    };
    let unknown_to = |question: &str, names: &BTreeSet<&str>| {
        names.iter().find(|name| !is_known(question, name)).map(|name| (*name).to_owned())
    };
    if let Some(name) = unknown_to("name is filter", &used.filters) {
        return Err(format!("it uses the filter '{name}', which this server does not have"));
    }
    if let Some(name) = unknown_to("name is test", &used.tests) {
        return Err(format!("it uses the test '{name}', which this server does not have"));
    }
    let globals: HashSet<&str> = environment.globals().map(|(name, _)| name).collect();
    let unknown = |name: &&&str| {
        undeclared.contains(**name)
            && ![&globals, &used.asked_for, &used.assigned].iter().any(|names| names.contains(**name))
    };
    if let Some(name) = used.functions.iter().find(unknown) {
        return Err(format!("it calls the function '{name}', which this server does not have"));
    }
    if let Some((name, parameter)) = used.dependent_defaults.first() {
        return Err(format!(
            "a default in its macro '{name}' uses the parameter '{parameter}', which this server does not support"
        ));
    }
    let option = used
        .options
        .iter()
        .find(|(filter, option)| filters::parameters(filter).is_some_and(|known| !known.contains(option)));
    match option {
        Some((filter, option)) => {
            Err(format!("it gives the filter '{filter}' the option '{option}', which it does not have"))
        }
        None => Ok(()),
    }
}

#[derive(Default)]
struct Names<'a> {
    filters: BTreeSet<&'a str>,
    tests: BTreeSet<&'a str>,
    functions: BTreeSet<&'a str>,
    /// Filters with names of their arguments.
    options: BTreeSet<(&'a str, &'a str)>,
    /// Variables that the template tests for whether they exist.
    asked_for: HashSet<&'a str>,
    /// Macros, and variables that are set somewhere.
    assigned: HashSet<&'a str>,
    /// Macros, each with a parameter that the default of a parameter uses.
    dependent_defaults: BTreeSet<(&'a str, &'a str)>,
}

impl<'a> Names<'a> {
    fn of(tokens: &'a [Token<'a>]) -> Self {
        let mut names = Self::default();
        for at in 0..tokens.len() {
            let (before, rest) = tokens.split_at(at);
            let after_dot = matches!(before, [.., Token::Dot]);
            match rest {
                [Token::Pipe, Token::Ident(filter), rest @ ..]
                | [Token::BlockStart, Token::Ident("filter"), Token::Ident(filter), rest @ ..] => {
                    names.add_filter(filter, rest);
                }
                [Token::Ident("is"), Token::Ident("not"), Token::Ident(test), ..]
                | [Token::Ident("is"), Token::Ident(test), ..]
                    if !after_dot =>
                {
                    names.tests.insert(test);
                    if let ([.., Token::Ident(name)], "defined" | "undefined" | "callable") = (before, *test) {
                        names.asked_for.insert(name);
                    }
                }
                [Token::BlockStart, Token::Ident("macro"), Token::Ident(name), Token::ParenOpen, parameters @ ..] => {
                    names.assigned.insert(name);
                    names.add_macro(name, parameters);
                }
                [Token::Ident(name), Token::Assign, ..] if !after_dot => {
                    names.assigned.insert(name);
                }
                [Token::Ident(name), Token::ParenOpen, ..]
                    if !after_dot && !matches!(before, [.., Token::Pipe | Token::Ident("is" | "not" | "filter")]) =>
                {
                    names.functions.insert(name);
                }
                _ => (),
            }
        }
        names
    }

    /// `rest`: what follows the opening parenthesis.
    fn add_macro(&mut self, name: &'a str, rest: &'a [Token<'a>]) {
        let (mut parameters, mut begins) = (HashSet::new(), true);
        for (at, token, depth) in until_closed(rest) {
            let before = at.checked_sub(1).and_then(|at| rest.get(at));
            match token {
                Token::Ident(parameter) if begins => {
                    parameters.insert(*parameter);
                }
                Token::Ident(used)
                    if parameters.contains(used)
                        && !matches!(before, Some(Token::Dot | Token::Pipe))
                        && !matches!(rest.get(at + 1), Some(Token::Assign)) =>
                {
                    self.dependent_defaults.insert((name, used));
                }
                _ => (),
            }
            begins = depth == 1 && matches!(token, Token::Comma);
        }
    }

    /// `rest`: what follows the filter's name.
    fn add_filter(&mut self, filter: &'a str, rest: &'a [Token<'a>]) {
        self.filters.insert(filter);
        match (filter, rest) {
            ("map", [Token::ParenOpen, Token::Str(name), ..]) => self.filters.extend([*name]),
            ("select" | "reject", [Token::ParenOpen, Token::Str(name), ..])
            | ("selectattr" | "rejectattr", [Token::ParenOpen, Token::Str(_), Token::Comma, Token::Str(name), ..]) => {
                self.tests.extend([*name]);
            }
            _ => (),
        }
        let [Token::ParenOpen, arguments @ ..] = rest else { return };
        for (at, token, depth) in until_closed(arguments) {
            if let Token::Ident(option) = token
                && depth == 1
                && matches!(arguments.get(at + 1), Some(Token::Assign))
            {
                self.options.insert((filter, option));
            }
        }
    }
}

/// The tokens up to the closing parenthesis, each with its index and the number of brackets that are open after it. `rest`: what
/// follows the opening parenthesis.
fn until_closed<'a>(rest: &'a [Token<'a>]) -> impl Iterator<Item = (usize, &'a Token<'a>, usize)> {
    let mut depth = 1_usize;
    rest.iter().enumerate().map_while(move |(at, token)| {
        match token {
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => depth -= 1,
            _ => (),
        }
        (depth > 0).then_some((at, token, depth))
    })
}
