//! The arguments of a filter or method, bound to parameters as Python binds them: by position or by name.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};

/// Max width and count that a template may ask for.
pub const MAX_WIDTH: usize = 10_000;

pub struct Arguments {
    parameters: &'static [&'static str],
    values: Vec<Option<Value>>,
}

impl Arguments {
    /// `what`: the filter or method, for errors.
    pub fn bind(what: &str, parameters: &'static [&'static str], given: &[Value]) -> Result<Self, Error> {
        let options = given.last().filter(|last| last.is_kwargs());
        let positional = given.len() - usize::from(options.is_some());
        if positional > parameters.len() {
            let message = format!("{what} takes at most {} arguments, not {positional}", parameters.len());
            return Err(Error::new(ErrorKind::TooManyArguments, message));
        }
        let mut values: Vec<Option<Value>> = given.iter().take(positional).cloned().map(Some).collect();
        values.resize(parameters.len(), None);
        if let Some(options) = options {
            let options = Kwargs::try_from(options.clone())?;
            for name in options.args() {
                let slot = parameters.iter().position(|parameter| *parameter == name);
                let Some(value) = slot.and_then(|slot| values.get_mut(slot)) else {
                    return Err(Error::new(ErrorKind::TooManyArguments, format!("{what} has no option '{name}'")));
                };
                *value = Some(options.peek::<Value>(name)?);
            }
        }
        Ok(Self { parameters, values })
    }

    /// The argument, also if it is `none`.
    pub fn given(&self, name: &str) -> Option<&Value> {
        let slot = self.parameters.iter().position(|parameter| *parameter == name)?;
        self.values.get(slot)?.as_ref()
    }

    /// The argument, unless it is absent or `none`.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.given(name).filter(|value| !value.is_none() && !value.is_undefined())
    }

    pub fn is_true(&self, name: &str) -> bool {
        self.value(name).is_some_and(Value::is_true)
    }

    pub fn text(&self, name: &str) -> Result<Option<&str>, Error> {
        match self.value(name) {
            Some(value) if value.as_str().is_none() => {
                Err(invalid(format!("'{name}' must be a string, not a {}", value.kind())))
            }
            value => Ok(value.and_then(Value::as_str)),
        }
    }

    pub fn required_text(&self, name: &str) -> Result<&str, Error> {
        self.text(name)?.ok_or_else(|| Error::new(ErrorKind::MissingArgument, format!("'{name}' is missing")))
    }

    pub fn integer(&self, name: &str) -> Result<Option<i64>, Error> {
        self.value(name).map(|value| i64::try_from(value.clone())).transpose()
    }

    /// A width or count, at most [`MAX_WIDTH`]. Negative numbers count as 0.
    pub fn width(&self, name: &str) -> Result<Option<usize>, Error> {
        let Some(width) = self.integer(name)? else { return Ok(None) };
        match usize::try_from(width.max(0)) {
            Ok(width) if width <= MAX_WIDTH => Ok(Some(width)),
            _ => Err(invalid(format!("'{name}' is {width}; the maximum is {MAX_WIDTH}"))),
        }
    }

    /// All arguments by name, for a filter that takes no others. An `attribute` may be the index of an entry.
    pub fn by_name(&self) -> Kwargs {
        let given = self.parameters.iter().zip(&self.values);
        let value = |name: &str, value: &Value| match name {
            "attribute" if value.is_integer() => Value::from(value.to_string()),
            _ => value.clone(),
        };
        given.filter_map(|(name, given)| Some((*name, value(name, given.as_ref()?)))).collect()
    }
}

pub fn invalid(message: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_string())
}
