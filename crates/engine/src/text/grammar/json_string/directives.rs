//! The directives of a grammar in Lark notation: `%ignore` and `%import common`.

use super::common_terminals;
use super::lark::{Expression, Parser};
use super::pattern::Pattern;
use super::tokens::TokenKind;

impl Parser {
    /// A line that begins with a percent sign.
    pub fn directive(&mut self, name: &str) -> Result<(), String> {
        self.position += 1;
        match name {
            "ignore" => {
                let ignored = self.alternatives(0)?;
                self.lark.ignored.push(ignored);
                self.end_of_line()
            }
            "import" => self.import(),
            other => self.error(&format!("has %{other}; only %ignore and %import are supported")),
        }
    }

    /// `common.NAME`, `common.NAME -> OTHER` or `common (NAME, …)`.
    fn import(&mut self) -> Result<(), String> {
        if self.peek() != Some(&TokenKind::Rule("common".to_owned())) {
            return self.error("imports from another grammar than 'common'");
        }
        self.position += 1;
        if self.take(".") {
            let name = self.terminal_name()?;
            let alias = if self.take("->") { self.terminal_name()? } else { name.clone() };
            self.import_one(&name, alias)?;
        } else {
            self.expect("(")?;
            loop {
                let name = self.terminal_name()?;
                self.import_one(&name, name.clone())?;
                if !self.take(",") {
                    break;
                }
            }
            self.expect(")")?;
        }
        self.end_of_line()
    }

    fn terminal_name(&mut self) -> Result<String, String> {
        match self.peek().cloned() {
            Some(TokenKind::Terminal(name)) => {
                self.position += 1;
                Ok(name)
            }
            _ => self.error("has no name of a terminal where one is imported"),
        }
    }

    fn import_one(&mut self, name: &str, alias: String) -> Result<(), String> {
        let Some(regex) = common_terminals::regex(name) else {
            return self.error(&format!("imports the unknown terminal 'common.{name}'"));
        };
        let pattern = Expression::Pattern(Pattern::regex(regex, "")?);
        match self.lark.terminals.insert(alias.clone(), pattern) {
            Some(_) => self.error(&format!("defines '{alias}' twice")),
            None => Ok(()),
        }
    }
}
