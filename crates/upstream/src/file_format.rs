//! The format of `upstream.toml`.
//!
//! The reasons for which a file is refused are shown to everybody who may list models, so they name fields and lines, but
//! never a value: an address or a key must not be in them.

use std::path::PathBuf;

use serde::Deserialize;

/// The name of the file that makes a folder an upstream model.
pub const FILE: &str = "upstream.toml";

/// What a model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Chats, and completes texts.
    Chat,
    /// Completes texts; it has no chat template.
    Completion,
    Embedding,
    Rerank,
    Image,
    Transcription,
    Speech,
}

/// Which fields beside those of OpenAI's API the targets know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Api {
    #[default]
    #[serde(rename = "openai")]
    OpenAi,
    #[serde(rename = "vllm")]
    Vllm,
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    #[serde(rename = "tei")]
    Tei,
    #[serde(rename = "outpost")]
    Outpost,
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamFile {
    pub kind: Kind,
    #[serde(default)]
    pub api: Api,
    pub context: Option<u32>,
    pub dimensions: Option<u32>,
    pub target: Vec<TargetFields>,
    #[serde(default)]
    pub timeouts: TimeoutFields,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetFields {
    pub url: String,
    pub model: Option<String>,
    pub key_file: Option<PathBuf>,
    pub key_env: Option<String>,
    pub ca_file: Option<PathBuf>,
    pub weight: Option<u32>,
    pub max_outstanding: Option<u32>,
}

/// Seconds.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeoutFields {
    pub connect: Option<f64>,
    pub first_byte: Option<f64>,
    pub idle: Option<f64>,
    pub event: Option<f64>,
}

/// Parses the text of a file.
pub fn parse(text: &str) -> Result<UpstreamFile, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(0, |span| text.get(..span.start).unwrap_or(text).matches('\n').count() + 1);
        format!("line {line} is not valid TOML")
    })?;
    serde_path_to_error::deserialize(toml::Value::Table(table)).map_err(|error| reason(&error))
}

fn reason(error: &serde_path_to_error::Error<toml::de::Error>) -> String {
    let path = error.path().to_string();
    let message = error.inner().message();
    // Only these messages are known to contain no values, but for unknown kinds, which are harmless.
    let names_no_value = ["missing field", "unknown field"].iter().any(|start| message.starts_with(start));
    if names_no_value || ["kind", "api"].contains(&path.as_str()) {
        return if path == "." { message.to_owned() } else { format!("{path}: {message}") };
    }
    format!("{path} has a value of the wrong type")
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn reasons_name_fields_and_no_values() {
        let target = "[[target]]\nurl = \"https://secret\"\n";
        for (text, expected) in [
            ("kind = ".to_owned(), "line 1 is not valid TOML"),
            (format!("kind = \"chat\"\nx = secret\n{target}"), "line 2 is not valid TOML"),
            (target.to_owned(), "missing field `kind`"),
            ("kind = \"chat\"".to_owned(), "missing field `target`"),
            (format!("kind = \"chat\"\nadress = \"secret\"\n{target}"), "unknown field `adress`"),
            (format!("kind = \"chat\"\n{target}key = \"secret\"\n"), "unknown field `key`"),
            (format!("kind = \"chats\"\n{target}"), "unknown variant `chats`"),
            (format!("kind = \"chat\"\ncontext = \"secret\"\n{target}"), "context has a value of the wrong type"),
            (
                format!("kind = \"chat\"\n{target}weight = \"secret\"\n"),
                "target[0].weight has a value of the wrong type",
            ),
            ("kind = \"chat\"\ntarget = \"https://secret\"".to_owned(), "target has a value of the wrong type"),
        ] {
            let reason = parse(&text).unwrap_err();
            assert!(reason.contains(expected) && !reason.contains("secret"), "{text}: {reason}");
        }
        assert_eq!(parse(&format!("kind = \"chat\"\n{target}")).unwrap().target.len(), 1);
    }
}
