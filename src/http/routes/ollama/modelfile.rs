//! Modelfiles: the settings of a model as text, with an instruction a line, such as `FROM tiny` or `PARAMETER temperature 0`.

use serde_json::{Map, Value};

use crate::display::shorten;
use crate::error::{Error, Result};

/// What quotes a text of several lines.
const QUOTES: &str = "\"\"\"";

const INSTRUCTIONS: &str = "FROM, SYSTEM, PARAMETER, ADAPTER and LICENSE";

/// What a Modelfile says.
#[derive(Debug, Default, PartialEq)]
pub struct Modelfile {
    pub from: Option<String>,
    pub adapters: Vec<String>,
    pub system: Option<String>,
    pub license: Vec<String>,
    pub template: Option<String>,
    pub parameters: Map<String, Value>,
    /// Whether it has messages that precede those of each chat.
    pub has_messages: bool,
    /// The instructions that have no effect here.
    pub ignored: Vec<String>,
}

/// The Modelfile of a model. `parameters`: each on a line.
pub fn write(from: &str, system: Option<&str>, parameters: &str, license: Option<&str>) -> String {
    let mut text = format!("FROM {from}\n");
    text.extend(parameters.lines().map(|line| format!("PARAMETER {line}\n")));
    let texts = [("SYSTEM", system), ("LICENSE", license)];
    text.extend(texts.into_iter().filter_map(|(name, text)| Some(format!("{name} {QUOTES}{}{QUOTES}\n", text?))));
    text
}

/// Reads a Modelfile.
///
/// # Errors
/// With the number of the line.
pub fn read(text: &str) -> Result<Modelfile> {
    let (mut file, mut rest, mut number) = (Modelfile::default(), text, 1);
    while !rest.is_empty() {
        let (line, _) = split_line(rest);
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            (rest, number) = (split_line(rest).1, number + 1);
            continue;
        }
        let (name, after) = word(rest.trim_start());
        let at = Place { number };
        let (value, next) = match name.to_ascii_uppercase().as_str() {
            "PARAMETER" => {
                let (parameter, after) = word(after);
                let (value, next) = at.value(after)?;
                file.set(parameter, value);
                (String::new(), next)
            }
            "MESSAGE" => at.value(word(after).1)?,
            _ => at.value(after)?,
        };
        match name.to_ascii_uppercase().as_str() {
            "PARAMETER" => {}
            "FROM" => file.from = Some(value),
            "SYSTEM" => file.system = Some(value),
            "TEMPLATE" => file.template = Some(value),
            "ADAPTER" => file.adapters.push(value),
            "LICENSE" => file.license.push(value),
            "MESSAGE" => file.has_messages = true,
            known @ ("REQUIRES" | "RENDERER" | "PARSER") => file.ignored.push(known.to_owned()),
            _ => return Err(at.error(&format!("has no instruction: '{}'. Use {INSTRUCTIONS}", shorten(name)))),
        }
        let read = rest.len() - next.len();
        number += rest.get(..read).unwrap_or_default().matches('\n').count();
        rest = next;
    }
    Ok(file)
}

impl Modelfile {
    /// Sets a parameter. Each `stop` is one of several.
    fn set(&mut self, name: &str, value: String) {
        let name = name.to_ascii_lowercase();
        if name != "stop" {
            let number = serde_json::from_str(&value).ok().filter(|value: &Value| !value.is_null());
            self.parameters.insert(name, number.unwrap_or(Value::String(value)));
        } else if let Value::Array(stops) = self.parameters.entry(name).or_insert_with(|| Value::Array(Vec::new())) {
            stops.push(Value::String(value));
        }
    }
}

/// A line of the text.
struct Place {
    number: usize,
}

impl Place {
    fn error(&self, what: &str) -> Error {
        Error::invalid("modelfile", format!("Line {} of 'modelfile' {what}.", self.number))
    }

    /// The value at the start of a text, without its quotes, and the lines after it.
    fn value<'t>(&self, text: &'t str) -> Result<(String, &'t str)> {
        if let Some(quoted) = text.trim_start_matches([' ', '\t']).strip_prefix(QUOTES) {
            let Some((value, after)) = quoted.split_once(QUOTES) else {
                return Err(self.error("begins a text with three quotes that does not end"));
            };
            return Ok((value.to_owned(), split_line(after).1));
        }
        let (line, after) = split_line(text);
        let line = line.trim();
        let quoted = line.strip_prefix('"').and_then(|line| line.strip_suffix('"'));
        let value = match quoted {
            // As `ollama show` writes stop strings.
            Some(inside) => serde_json::from_str(line).unwrap_or_else(|_| inside.to_owned()),
            None => line.to_owned(),
        };
        if value.is_empty() && quoted.is_none() { Err(self.error("has no value")) } else { Ok((value, after)) }
    }
}

/// The first line, and the text after it.
fn split_line(text: &str) -> (&str, &str) {
    text.split_once('\n').unwrap_or((text, ""))
}

/// The first word of a line, and the text after it.
fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start_matches([' ', '\t']);
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn instructions_have_values_with_and_without_quotes() {
        let text = "# mine\nfrom tiny\n\nSYSTEM \"\"\"You are\nMario.\"\"\"\nPARAMETER temperature 0.5\nPARAMETER stop \"a b\"\n\
                    parameter stop END\nPARAMETER num_ctx 4096\r\nLICENSE \"MIT\"\nADAPTER lora\nREQUIRES 0.14";
        let file = read(text).unwrap();
        assert_eq!(file.from.as_deref(), Some("tiny"));
        assert_eq!(file.system.as_deref(), Some("You are\nMario."));
        assert_eq!((file.license, file.adapters), (vec!["MIT".to_owned()], vec!["lora".to_owned()]));
        let parameters = json!({ "temperature": 0.5, "stop": ["a b", "END"], "num_ctx": 4096 });
        assert_eq!((Value::Object(file.parameters), file.ignored), (parameters, vec!["REQUIRES".to_owned()]));
    }

    #[test]
    fn errors_name_the_line() {
        for (text, line) in [
            ("FROM tiny\nNONSENSE x", "Line 2 "),
            ("FROM tiny\nSYSTEM \"\"\"a\nb\"\"\"\nSYSTEM \"\"\"open", "Line 4 "),
            ("FROM\n", "Line 1 "),
            ("FROM tiny\n\nPARAMETER temperature", "Line 3 "),
        ] {
            assert!(read(text).unwrap_err().message().starts_with(line), "{text}");
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let text = write(
            "tiny",
            Some("a\nb"),
            "temperature                    0\nstop                           \"x\\n\"",
            Some("MIT"),
        );
        let file = read(&text).unwrap();
        assert_eq!((file.from.as_deref(), file.system.as_deref()), (Some("tiny"), Some("a\nb")));
        assert_eq!(Value::Object(file.parameters), json!({ "temperature": 0, "stop": ["x\n"] }));
    }
}
