//! A model's sentence-transformers configuration: pooling, projections, maximum text length, prompts.
//!
//! <https://sbert.net/docs/package_reference/sentence_transformer/models.html>

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use outpost_models::decoder::GGUF_PROJECTIONS;
use outpost_models::encoder::{MODULE_STEM, Pooling, ProjectionActivation, ProjectionConfig};
use outpost_models::gguf::{Header, Metadata, TensorInfo};
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
    /// The projections of the pooled vector, in order.
    pub projections: Vec<ProjectionModule>,
    /// The tokens whose logits are the score of a decoder that ranks.
    pub score_tokens: Option<ScoreTokens>,
    /// Max tokens of a text, if the files set a limit.
    pub limit: Option<usize>,
    pub lower_case: bool,
    /// Prompts by name.
    pub prompts: BTreeMap<String, String>,
    /// The prompt of texts of unspecified type.
    pub default_prompt: String,
    pub matryoshka: Matryoshka,
}

/// A `Dense` module, or one of the projections in a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectionModule {
    /// The file of the module; `None`: the weights are among those of the network.
    pub file: Option<PathBuf>,
    pub stem: &'static str,
    pub config: ProjectionConfig,
}

/// A `LogitScore` module: the score is the logit of a token, minus that of another one if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreTokens {
    pub positive: u32,
    pub negative: Option<u32>,
}

/// The list of a model's modules.
pub const MODULES_FILE: &str = "modules.json";

/// Max length of a vector that a `Dense` module takes or makes.
const MAX_PROJECTED: u64 = 1 << 16;

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

type Prompts = &'static [(&'static str, &'static str)];

/// Models whose files may lack the prompts that they were trained with: a part of their name, and the prompts of their model
/// cards by purpose.
const KNOWN_PROMPTS: &[(&str, Prompts)] = &[
    (
        "nomic-embed-text",
        &[
            ("query", "search_query: "),
            ("document", "search_document: "),
            ("Classification", "classification: "),
            ("Clustering", "clustering: "),
        ],
    ),
    ("multilingual-e5", E5_PROMPTS),
    ("e5-", E5_PROMPTS),
    (
        "embeddinggemma",
        &[
            ("query", "task: search result | query: "),
            ("document", "title: none | text: "),
            ("BitextMining", "task: search result | query: "),
            ("Clustering", "task: clustering | query: "),
            ("Classification", "task: classification | query: "),
            ("InstructionRetrieval", "task: code retrieval | query: "),
            ("MultilabelClassification", "task: classification | query: "),
            ("PairClassification", "task: sentence similarity | query: "),
            ("Reranking", "task: search result | query: "),
            ("Retrieval", "task: search result | query: "),
            ("Retrieval-query", "task: search result | query: "),
            ("Retrieval-document", "title: none | text: "),
            ("STS", "task: sentence similarity | query: "),
            ("Summarization", "task: summarization | query: "),
        ],
    ),
    (
        "qwen3-embedding",
        &[("query", "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:")],
    ),
];

const E5_PROMPTS: Prompts = &[("query", "query: "), ("document", "passage: ")];

/// Models whose vectors can be truncated according to their model cards, although no file says so.
const MATRYOSHKA_MODELS: [&str; 3] = ["nomic-embed-text-v1.5", "qwen3-embedding", "embeddinggemma"];

impl SentenceTransformersConfig {
    /// Reads the files next to the weights. Without any, uses mean pooling, as the library does.
    pub fn from_folder(folder: &Path, id: &str, config: &Value) -> Result<Self, String> {
        let optional = |name: &str| match folder.join(name) {
            path if path.is_file() => read_json(&path).map_err(|error| error.to_string()),
            _ => Ok(Value::Null),
        };
        let (mut poolings, mut projections, mut score_tokens) = (Vec::new(), Vec::new(), None);
        let mut before = "Transformer";
        let modules = optional(MODULES_FILE)?;
        for module in modules.as_array().into_iter().flatten() {
            let text = |key: &str| module.get(key).and_then(Value::as_str).unwrap_or_default();
            let (kind, path) = (text("type").rsplit('.').next().unwrap_or_default(), module_folder(text("path"))?);
            let config = || optional(&format!("{path}/config.json"));
            match (before, kind) {
                (_, "Transformer" | "StaticEmbedding") | ("Pooling" | "Dense" | "StaticEmbedding", "Normalize") => {}
                ("Transformer", "Pooling") => poolings = pooling(&config()?)?,
                ("Pooling" | "Dense", "Dense") => projections.push(projection(&folder.join(path), &config()?)?),
                ("Transformer", "LogitScore") => score_tokens = Some(ScoreTokens::read(&config()?)?),
                (before, "Pooling" | "Dense" | "Normalize" | "LogitScore") => {
                    return Err(format!("its sentence-transformers module {kind} after {before} is not supported"));
                }
                (_, other) => return Err(format!("its sentence-transformers module {other} is not supported")),
            }
            before = kind;
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
            projections,
            score_tokens,
            limit: limit(&sentences, "max_seq_length").or_else(|| limit(&tokenizer, "model_max_length")),
            lower_case: sentences.get("do_lower_case").and_then(Value::as_bool).unwrap_or(false),
            default_prompt: default_name.and_then(|name| prompts.get(name)).cloned().unwrap_or_default(),
            prompts: if prompts.values().all(String::is_empty) { known_prompts(id) } else { prompts },
            matryoshka: matryoshka(id, config),
        })
    }

    /// Reads a GGUF header, which has the pooling type and the shapes of projections.
    pub fn from_gguf(header: &Header, id: &str) -> Result<Self, String> {
        let metadata = &header.metadata;
        let pooling = match pooling_type(metadata) {
            None | Some(1) => Pooling::Mean,
            Some(2 | RANK) => Pooling::Cls,
            Some(3) => Pooling::Last,
            Some(other) => return Err(format!("the pooling type {other} is not supported")),
        };
        // Names in files have spaces: EmbeddingGemma 300M, Qwen3 Embedding 0.6B.
        let named = metadata.text("general.name").unwrap_or(id).to_lowercase().replace(' ', "-");
        let id = if KNOWN_PROMPTS.iter().any(|(part, _)| id.to_lowercase().contains(part)) { id } else { &named };
        Ok(Self {
            poolings: vec![pooling],
            projections: gguf_projections(header)?,
            score_tokens: None,
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

    /// The length of a vector, given the width of token vectors.
    pub fn dimensions(&self, width: usize) -> usize {
        self.projections.last().map_or(width * self.poolings.len(), |last| last.config.outputs)
    }

    /// Checks that the projections fit the pooled vector and each other.
    pub fn check_projections(&self, width: usize) -> Result<(), String> {
        let mut length = width * self.poolings.len();
        for ProjectionConfig { inputs, outputs, .. } in self.projections.iter().map(|module| &module.config) {
            if *inputs != length {
                return Err(format!("its Dense module takes {inputs} numbers, but vectors have {length}"));
            }
            length = *outputs;
        }
        Ok(())
    }

    /// The prompt that is prepended to a text of this type.
    pub fn prompt(&self, input: InputType) -> &str {
        let names: &[&str] = match input {
            InputType::Unspecified => return &self.default_prompt,
            InputType::Query => &["query", "search_query"],
            InputType::Document => &["document", "passage", "search_document", "corpus"],
            InputType::Classification => &["Classification", "classification"],
            InputType::Clustering => &["Clustering", "clustering"],
        };
        names.iter().find_map(|name| self.prompts.get(*name)).map_or(self.default_prompt.as_str(), String::as_str)
    }

    /// Whether the projections of another model have the same weights. Reads their files.
    pub fn has_same_projections(&self, other: &Self) -> bool {
        let read = |module: &ProjectionModule| module.file.as_ref().and_then(|file| fs::read(file).ok());
        let is_same = |(one, other): (&ProjectionModule, &ProjectionModule)| {
            one.config == other.config && (one.file == other.file || (read(one).is_some() && read(one) == read(other)))
        };
        self.projections.len() == other.projections.len()
            && self.projections.iter().zip(&other.projections).all(is_same)
    }
}

/// The purpose of a text. Some models are trained with a prompt for each type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputType {
    #[default]
    Unspecified,
    Query,
    Document,
    Classification,
    Clustering,
}

impl ScoreTokens {
    fn read(config: &Value) -> Result<Self, String> {
        let token = |key: &str| match config.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(id) => match id.as_u64().and_then(|id| u32::try_from(id).ok()) {
                Some(id) => Ok(Some(id)),
                None => Err(format!("{key} of its LogitScore module is {id}, which is not the ID of a token")),
            },
        };
        let positive = token("true_token_id")?.ok_or("its LogitScore module has no true_token_id")?;
        Ok(Self { positive, negative: token("false_token_id")? })
    }
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

/// A `Dense` module in this folder.
fn projection(folder: &Path, config: &Value) -> Result<ProjectionModule, String> {
    let size = |key: &str| match config.get(key).and_then(Value::as_u64) {
        Some(size @ 1..=MAX_PROJECTED) => Ok(size as usize),
        _ => Err(format!("{key} of its Dense module is not a number from 1 to {MAX_PROJECTED}")),
    };
    let text = |key: &str| config.get(key).and_then(Value::as_str);
    let flag = |key: &str| config.get(key).and_then(Value::as_bool);
    let mut names = ["module_input_name", "module_output_name"].map(&text).into_iter().flatten();
    if let Some(name) = names.find(|name| *name != "sentence_embedding") {
        return Err(format!("a Dense module of {name} is not supported"));
    }
    if flag("use_residual") == Some(true) {
        return Err("a Dense module with use_residual is not supported".to_owned());
    }
    let activation = match text("activation_function").map(|name| name.rsplit('.').next().unwrap_or(name)) {
        None | Some("Tanh") => ProjectionActivation::Tanh,
        Some("Identity") => ProjectionActivation::Identity,
        Some(other) => return Err(format!("the activation {other} of its Dense module is not supported")),
    };
    let file = folder.join("model.safetensors");
    if !file.is_file() {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        return Err(format!(
            "its Dense module has no {name}/model.safetensors; save the model with safe_serialization=True"
        ));
    }
    let biased = flag("bias").unwrap_or(true);
    let config = ProjectionConfig { inputs: size("in_features")?, outputs: size("out_features")?, biased, activation };
    Ok(ProjectionModule { file: Some(file), stem: MODULE_STEM, config })
}

/// The projections of EmbeddingGemma in a GGUF file, if it has them.
fn gguf_projections(header: &Header) -> Result<Vec<ProjectionModule>, String> {
    let shapes = GGUF_PROJECTIONS.iter().filter_map(|stem| Some((*stem, header.tensor(&format!("{stem}.weight"))?)));
    let module = |(stem, tensor): (&'static str, &TensorInfo)| match *tensor.shape.as_slice() {
        [outputs, inputs] => Ok(ProjectionModule {
            file: None,
            stem,
            config: ProjectionConfig { inputs, outputs, biased: false, activation: ProjectionActivation::Identity },
        }),
        _ => Err(format!("tensor {stem}.weight has the impossible shape {:?}", tensor.shape)),
    };
    shapes.map(module).collect()
}

fn known_prompts(id: &str) -> BTreeMap<String, String> {
    let id = id.to_lowercase();
    let found = KNOWN_PROMPTS.iter().find(|(part, _)| id.starts_with(part) || id.contains(&format!("-{part}")));
    let pairs = found.map(|(_, prompts)| *prompts).unwrap_or_default();
    pairs.iter().map(|(name, prompt)| ((*name).to_owned(), (*prompt).to_owned())).collect()
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
    fn prompts_of_tasks_are_found_by_purpose() {
        let empty = folder(&[]);
        let found = SentenceTransformersConfig::from_folder(empty.path(), "embeddinggemma-300m", &Value::Null).unwrap();
        assert_eq!(found.prompt(InputType::Clustering), "task: clustering | query: ");
        assert_eq!((found.prompt(InputType::Unspecified), &found.matryoshka), ("", &Matryoshka::Any));
        assert_eq!(found.prompts.get("STS").map(String::as_str), Some("task: sentence similarity | query: "));
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
    fn dense_modules_must_fit() {
        let config = json!({"in_features": 8, "out_features": 3, "bias": false, "activation_function": "torch.nn.modules.linear.Identity"});
        let folder = folder(&[
            ("modules.json", modules("Dense")),
            ("1_Pooling/config.json", json!({"pooling_mode": "mean"})),
            ("2/config.json", config),
            ("2/model.safetensors", Value::Null),
        ]);
        let found = SentenceTransformersConfig::from_folder(folder.path(), "x", &Value::Null).unwrap();
        assert_eq!((found.dimensions(8), found.check_projections(8)), (3, Ok(())));
        let error = found.check_projections(16).unwrap_err();
        assert!(error.contains("takes 8 numbers, but vectors have 16"), "{error}");
        assert!(found.has_same_projections(&found.clone()));
    }

    #[test]
    fn unsupported_modules_are_refused() {
        let refusal = |files: &[(&str, Value)]| {
            let folder = folder(files);
            SentenceTransformersConfig::from_folder(folder.path(), "x", &Value::Null).unwrap_err()
        };
        let pooling_file = ("1_Pooling/config.json", json!({}));
        let error = refusal(&[("modules.json", modules("WeightedLayerPooling")), pooling_file.clone()]);
        assert!(error.contains("WeightedLayerPooling"), "{error}");
        let before = json!([{"type": "a.Transformer", "path": ""}, {"type": "a.Dense", "path": "1"}]);
        let error = refusal(&[("modules.json", before)]);
        assert!(error.contains("Dense after Transformer"), "{error}");
        let dense = |config: Value| {
            let weights = ("2/model.safetensors", Value::Null);
            refusal(&[("modules.json", modules("Dense")), pooling_file.clone(), ("2/config.json", config), weights])
        };
        for (config, part) in [
            (json!({"in_features": 4}), "out_features"),
            (json!({"in_features": 4, "out_features": 0}), "out_features"),
            (json!({"activation_function": "torch.nn.modules.activation.ReLU"}), "ReLU"),
            (json!({"module_input_name": "token_embeddings"}), "token_embeddings"),
            (json!({"use_residual": true}), "use_residual"),
        ] {
            let error = dense(config);
            assert!(error.contains(part), "{error}");
        }
        let error = refusal(&[("modules.json", modules("Dense")), pooling_file.clone(), ("2/config.json", json!({}))]);
        assert!(error.contains("2/model.safetensors"), "{error}");
        let out = folder(&[("modules.json", json!([{"type": "a.Pooling", "path": "../.."}]))]);
        assert!(SentenceTransformersConfig::from_folder(out.path(), "x", &Value::Null).unwrap_err().contains("../.."));
        assert!(pooling(&json!({"pooling_mode": "odd"})).is_err());
        assert_eq!(pooling(&json!({"pooling_mode": "lasttoken"})), Ok(vec![Pooling::Last]));
    }
}
