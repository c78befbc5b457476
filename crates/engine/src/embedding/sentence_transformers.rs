//! A model's sentence-transformers configuration: pooling, maximum text length, prompts.
//!
//! <https://sbert.net/docs/package_reference/sentence_transformer/models.html>

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use outpost_models::encoder::Pooling;
use outpost_models::gguf::Metadata;
use outpost_models::safetensors::read_json;

/// Whether vectors can be truncated (Matryoshka representation learning).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matryoshka {
    No,
    /// To any length.
    Any,
    /// To these lengths.
    Lengths(Vec<usize>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentenceTransformersConfig {
    /// The pooling modes; their vectors are concatenated.
    pub poolings: Vec<Pooling>,
    /// Max tokens of a text, if the files set a limit.
    pub limit: Option<usize>,
    pub lower_case: bool,
    /// Prompts by name.
    pub prompts: BTreeMap<String, String>,
    /// The prompt of texts of unspecified type.
    pub default_prompt: String,
    pub matryoshka: Matryoshka,
}

/// The list of a model's modules.
pub const MODULES_FILE: &str = "modules.json";

/// The GGUF pooling type of cross-encoders: a head computes one score from the first token's vector.
pub const RANK: u64 = 4;

/// A GGUF file's pooling type; 0 means no pooling.
pub fn pooling_type(metadata: &Metadata) -> Option<u64> {
    let name = metadata.text("general.architecture").unwrap_or_default();
    metadata.integer(&format!("{name}.pooling_type"))
}

/// The flags and short names of a pooling module's `config.json`, in the order of concatenation.
const POOLING_FLAGS: [(&str, &str, Pooling); 6] = [
    ("pooling_mode_cls_token", "cls", Pooling::Cls),
    ("pooling_mode_max_tokens", "max", Pooling::Max),
    ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pooling::MeanSqrtLength),
    ("pooling_mode_weightedmean_tokens", "weightedmean", Pooling::WeightedMean),
    ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
];

/// Models whose files lack the prompts that they were trained with: a part of their name, and the prompts of queries
/// and of documents from their model cards.
const KNOWN_PROMPTS: [(&str, &str, &str); 3] = [
    ("nomic-embed-text", "search_query: ", "search_document: "),
    ("multilingual-e5", "query: ", "passage: "),
    ("e5-", "query: ", "passage: "),
];

/// Models whose vectors can be truncated according to their model cards, although no file says so.
const MATRYOSHKA_MODELS: [&str; 2] = ["nomic-embed-text-v1.5", "qwen3-embedding"];

impl SentenceTransformersConfig {
    /// Reads the files next to the weights. Without any, uses mean pooling, as the library does.
    pub fn from_folder(folder: &Path, id: &str, config: &Value) -> Result<Self, String> {
        let optional = |name: &str| match folder.join(name) {
            path if path.is_file() => read_json(&path).map_err(|error| error.to_string()),
            _ => Ok(Value::Null),
        };
        let mut poolings = Vec::new();
        for module in optional(MODULES_FILE)?.as_array().into_iter().flatten() {
            let text = |key: &str| module.get(key).and_then(Value::as_str).unwrap_or_default();
            match text("type").rsplit('.').next().unwrap_or_default() {
                "Transformer" | "Normalize" => {}
                "Pooling" => poolings = pooling(&optional(&format!("{}/config.json", module_folder(text("path"))?))?)?,
                other => return Err(format!("its sentence-transformers module {other} is not supported")),
            }
        }
        let (sentences, texts) =
            (optional("sentence_bert_config.json")?, optional("config_sentence_transformers.json")?);
        let default_name = texts.get("default_prompt_name").and_then(Value::as_str);
        let prompts = texts.get("prompts").and_then(Value::as_object).into_iter().flatten();
        let prompts: BTreeMap<String, String> =
            prompts.filter_map(|(name, prompt)| Some((name.clone(), prompt.as_str()?.to_owned()))).collect();
        let limit = |file: &Value, key: &str| file.get(key).and_then(Value::as_u64).map(|limit| limit as usize);
        let tokenizer = optional("tokenizer_config.json")?;
        Ok(Self {
            poolings: if poolings.is_empty() { vec![Pooling::Mean] } else { poolings },
            limit: limit(&sentences, "max_seq_length").or_else(|| limit(&tokenizer, "model_max_length")),
            lower_case: sentences.get("do_lower_case").and_then(Value::as_bool).unwrap_or(false),
            default_prompt: default_name.and_then(|name| prompts.get(name)).cloned().unwrap_or_default(),
            prompts: if prompts.values().all(String::is_empty) { known_prompts(id) } else { prompts },
            matryoshka: matryoshka(id, config),
        })
    }

    /// Reads a GGUF header, which has only the pooling type.
    pub fn from_gguf(metadata: &Metadata, id: &str) -> Result<Self, String> {
        let pooling = match pooling_type(metadata) {
            None | Some(1) => Pooling::Mean,
            Some(2 | RANK) => Pooling::Cls,
            Some(3) => Pooling::Last,
            Some(other) => return Err(format!("the pooling type {other} is not supported")),
        };
        let named = metadata.text("general.name").unwrap_or(id).to_lowercase();
        let id = if KNOWN_PROMPTS.iter().any(|(part, ..)| id.to_lowercase().contains(part)) { id } else { &named };
        Ok(Self {
            poolings: vec![pooling],
            limit: None,
            lower_case: false,
            prompts: known_prompts(id),
            default_prompt: String::new(),
            matryoshka: matryoshka(id, &Value::Null),
        })
    }

    /// Max tokens of a text, given the network's context length.
    pub fn limit(&self, context: usize) -> usize {
        self.limit.map_or(context, |limit| limit.min(context))
    }

    /// The length of a pooled vector, given the width of token vectors.
    pub fn dimensions(&self, width: usize) -> usize {
        width * self.poolings.len()
    }

    /// The prompt that is prepended to a text of this type.
    pub fn prompt(&self, input: InputType) -> &str {
        let names: &[&str] = match input {
            InputType::Unspecified => return &self.default_prompt,
            InputType::Query => &["query", "search_query"],
            InputType::Document => &["document", "passage", "search_document", "corpus"],
        };
        names.iter().find_map(|name| self.prompts.get(*name)).map_or(self.default_prompt.as_str(), String::as_str)
    }
}

/// The purpose of a text. Some models are trained with a prompt for each type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputType {
    #[default]
    Unspecified,
    Query,
    Document,
}

/// A module's folder, which must be inside the model's folder.
fn module_folder(path: &str) -> Result<&str, String> {
    match path.contains("..") || path.starts_with('/') || path.contains('\\') {
        true => Err(format!("{MODULES_FILE} names the folder {path:?}, which is outside the model's folder")),
        false => Ok(path),
    }
}

fn pooling(config: &Value) -> Result<Vec<Pooling>, String> {
    if config.get("include_prompt").and_then(Value::as_bool) == Some(false) {
        return Err("pooling without the prompt (include_prompt: false) is not supported".to_owned());
    }
    if let Some(mode) = config.get("pooling_mode") {
        let names: Vec<&str> = match mode {
            Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
            one => one.as_str().into_iter().collect(),
        };
        let find = |name: &str| POOLING_FLAGS.iter().find(|(_, short, _)| *short == name).map(|(.., pooling)| *pooling);
        let found: Option<Vec<Pooling>> = names.iter().map(|name| find(name)).collect();
        return found.filter(|all| !all.is_empty()).ok_or_else(|| format!("the pooling mode {mode} is not supported"));
    }
    let set = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
    Ok(POOLING_FLAGS.iter().filter(|(flag, ..)| set(flag)).map(|(.., pooling)| *pooling).collect())
}

fn known_prompts(id: &str) -> BTreeMap<String, String> {
    let id = id.to_lowercase();
    let found = KNOWN_PROMPTS.iter().find(|(part, ..)| id.starts_with(part) || id.contains(&format!("-{part}")));
    let pairs = found.map(|(_, query, document)| [("query", *query), ("document", *document)]);
    pairs.into_iter().flatten().map(|(name, prompt)| (name.to_owned(), prompt.to_owned())).collect()
}

fn matryoshka(id: &str, config: &Value) -> Matryoshka {
    if let Some(lengths) = config.get("matryoshka_dimensions").and_then(Value::as_array) {
        return Matryoshka::Lengths(lengths.iter().filter_map(Value::as_u64).map(|length| length as usize).collect());
    }
    let (id, flag) = (id.to_lowercase(), config.get("is_matryoshka").and_then(Value::as_bool));
    if flag.unwrap_or_else(|| MATRYOSHKA_MODELS.iter().any(|name| id.contains(name))) {
        Matryoshka::Any
    } else {
        Matryoshka::No
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content.to_string()).unwrap();
        }
        folder
    }

    fn modules(last: &str) -> Value {
        json!([{"type": "sentence_transformers.models.Transformer", "path": ""},
            {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
            {"type": format!("sentence_transformers.models.{last}"), "path": "2"}])
    }

    #[test]
    fn the_files_set_pooling_limit_and_prompts() {
        let folder = folder(&[
            ("modules.json", modules("Normalize")),
            ("1_Pooling/config.json", json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true})),
            ("sentence_bert_config.json", json!({"max_seq_length": 99, "do_lower_case": true})),
            (
                "config_sentence_transformers.json",
                json!({"prompts": {"query": "Q: ", "passage": "P: ", "other": "O: "}, "default_prompt_name": "other"}),
            ),
        ]);
        let found =
            SentenceTransformersConfig::from_folder(folder.path(), "x", &json!({"matryoshka_dimensions": [8, 4]}))
                .unwrap();
        assert_eq!(found.poolings, [Pooling::Cls, Pooling::Mean]);
        assert_eq!((found.limit, found.lower_case), (Some(99), true));
        let uses = [InputType::Query, InputType::Document, InputType::Unspecified];
        assert_eq!(uses.map(|input| found.prompt(input)), ["Q: ", "P: ", "O: "]);
        assert_eq!(found.matryoshka, Matryoshka::Lengths(vec![8, 4]));
    }

    #[test]
    fn defaults_are_mean_pooling_and_known_prompts() {
        let empty = folder(&[]);
        let found =
            SentenceTransformersConfig::from_folder(empty.path(), "multilingual-e5-small", &Value::Null).unwrap();
        assert_eq!((found.poolings.as_slice(), found.limit), ([Pooling::Mean].as_slice(), None));
        assert_eq!((found.prompt(InputType::Document), found.prompt(InputType::Unspecified)), ("passage: ", ""));
        let plain = SentenceTransformersConfig::from_folder(empty.path(), "gte-5-small", &Value::Null).unwrap();
        assert_eq!(plain.prompt(InputType::Query), "");
    }

    #[test]
    fn unsupported_modules_are_refused() {
        let dense = folder(&[("modules.json", modules("Dense")), ("1_Pooling/config.json", json!({}))]);
        let error = SentenceTransformersConfig::from_folder(dense.path(), "x", &Value::Null).unwrap_err();
        assert!(error.contains("Dense"), "{error}");
        let out = folder(&[("modules.json", json!([{"type": "a.Pooling", "path": "../.."}]))]);
        assert!(SentenceTransformersConfig::from_folder(out.path(), "x", &Value::Null).unwrap_err().contains("../.."));
        assert!(pooling(&json!({"pooling_mode": "odd"})).is_err());
        assert_eq!(pooling(&json!({"pooling_mode": "lasttoken"})), Ok(vec![Pooling::Last]));
    }
}
