//! Hugging Face folders are listed, loaded and generate; unsupported settings are named in the error.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outpost_engine::{Engine, Message, ModelKind, Settings, Tool};
use outpost_models::decoder::Decoder;
use outpost_models::safetensors::ModelFolder;
use outpost_testing::fixtures::fixture;
use outpost_testing::huggingface_folder::{TEMPLATE, model};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::harness::{TestClock, cpu, pieces, request};

fn write(folder: &Path, name: &str, value: &Value) {
    fs::write(folder.join(name), value.to_string()).unwrap();
}

fn start(root: &Path) -> Engine {
    Engine::start(Settings::new(root, 1 << 30), Arc::new(TestClock::default())).unwrap()
}

/// A template that names the tools; a comment has the markers of the call format.
const TOOL_USE: &str = "<a>{% for t in tools %}{{ t.function.name }}{% endfor %}{# <tool_call> #}";

/// The prompts of a message without and with a tool named `bad`.
fn prompts(root: &Path) -> [Vec<u32>; 2] {
    let model = start(root).models().load("m").unwrap();
    let definition = json!({ "type": "function", "function": { "name": "bad" } });
    let (hi, tool) =
        (Message::new("user", "hi"), Tool { name: "bad".to_owned(), definition, strict: false, input: None });
    [&[][..], &[tool]].map(|tools| model.prompt_with(std::slice::from_ref(&hi), tools).unwrap())
}

#[tokio::test]
async fn a_folder_is_listed_loaded_and_generates() {
    let dir = tempfile::tempdir().unwrap();
    for (name, of) in [("shards", "llama-tied"), ("gemma", "gemma3"), ("long", "phi3"), ("experts", "mixtral")] {
        model(dir.path(), name, of);
    }
    let engine = start(dir.path());
    for info in engine.models().list() {
        assert_eq!(
            (info.kind, info.format, info.problem.as_deref()),
            (ModelKind::Text, "safetensors", None),
            "{}",
            info.id
        );
        assert_eq!((info.quantization.as_deref(), info.context_window), (Some("BF16"), Some(128)));
        let model = engine.models().load(&info.id).unwrap();
        let user = Message::new("user", "hi <s>");
        let prompt = model.prompt(&[user]).unwrap();
        assert_eq!(prompt, [30, 32, 7, 8, 26, 27, 18, 28, 33], "special tokens in text stay text");
        // Longer than LongRoPE's original context, so that both kinds of blocks are in use.
        for max_tokens in [4, 60] {
            let ticket = engine.submit(&model, request(prompt.clone(), max_tokens)).unwrap();
            assert!(!pieces(ticket.deltas).await.unwrap().is_empty());
        }
    }
}

#[test]
fn a_template_file_takes_precedence() {
    let dir = tempfile::tempdir().unwrap();
    let folder = model(dir.path(), "m", "llama-tied");
    fs::write(folder.join("chat_template.jinja"), "{{ eos_token }}ab").unwrap();
    assert_eq!(start(dir.path()).models().load("m").unwrap().prompt(&[]).unwrap(), [31, 0, 1]);
}

#[test]
fn requests_with_tools_use_the_tool_template() {
    let dir = tempfile::tempdir().unwrap();
    let folder = model(dir.path(), "m", "llama-tied");
    let listed = |tool_use: &str| {
        let templates = json!([{"name": "tool_use", "template": tool_use}, {"name": "default", "template": TEMPLATE}]);
        let config = json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": templates});
        write(&folder, "tokenizer_config.json", &config);
    };
    let plain = vec![30, 32, 7, 8, 33];
    listed(TOOL_USE);
    assert_eq!(prompts(dir.path()), [plain.clone(), vec![33, 1, 0, 3]]);
    // A template with an unknown call format is not used: tools are described in the prompt instead.
    listed("{{ tools[0].function.name }}");
    let [without, described] = prompts(dir.path());
    assert_eq!((&without, described.len() > 100), (&plain, true));
    assert_eq!((described[0], described.last()), (30, Some(&33)));
    // The files that transformers writes.
    fs::write(folder.join("chat_template.jinja"), "ab").unwrap();
    fs::create_dir(folder.join("additional_chat_templates")).unwrap();
    fs::write(folder.join("additional_chat_templates/tool_use.jinja"), TOOL_USE).unwrap();
    assert_eq!(prompts(dir.path()), [vec![0, 1], vec![33, 1, 0, 3]]);
}

#[test]
fn a_change_of_any_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = model(dir.path(), "m", "llama-tied");
    let clock = Arc::new(TestClock::default());
    let engine = Engine::start(Settings::new(dir.path(), 1 << 30), clock.clone()).unwrap();
    let prompt = || {
        clock.advance(Duration::from_secs(2));
        engine.models().list();
        engine.models().load("m").map(|model| model.prompt(&[Message::new("user", "hi")]).unwrap())
    };
    assert_eq!(prompt().unwrap(), [30, 32, 7, 8, 33]);
    fs::write(folder.join("chat_template.jinja"), "ab").unwrap();
    assert_eq!(prompt().unwrap(), [0, 1]);
    fs::remove_file(folder.join("chat_template.jinja")).unwrap();
    assert_eq!(prompt().unwrap(), [30, 32, 7, 8, 33]);
    let shard = folder.join("model-00003-of-00004.safetensors");
    let whole = fs::read(&shard).unwrap();
    fs::write(&shard, &whole[..whole.len() - 1]).unwrap();
    assert!(prompt().unwrap_err().to_string().contains("00003-of-00004"));
    fs::write(&shard, &whole).unwrap();
    assert_eq!(prompt().unwrap(), [30, 32, 7, 8, 33]);
}

#[test]
fn unsupported_settings_are_named_in_the_listing() {
    let cases: [(&str, Value, &str); 11] = [
        ("model_type", json!("mamba"), "the model type mamba is not supported. Supported are llama, mistral"),
        ("quantization_config", json!({"quant_method": "gptq"}), "weights quantised by gptq"),
        (
            "quantization_config",
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized"}),
            "weights quantised by compressed-tensors as pack-quantized are not supported in safetensors. Use a GGUF file",
        ),
        (
            "quantization_config",
            json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
            "weights quantised by modelopt as NVFP4",
        ),
        ("rope_scaling", json!({"type": "dynamic", "factor": 2.0}), "rotary scaling of the type dynamic"),
        ("rope_scaling", json!({"rope_type": "yarn"}), "rope_scaling.factor is missing"),
        ("rope_scaling", json!("linear"), "rope_scaling is \"linear\", it must be an object"),
        ("partial_rotary_factor", json!(0.5), "a partial_rotary_factor of 0.5"),
        ("hidden_act", json!("relu"), "the activation relu"),
        ("num_key_value_heads", json!(3), "4 heads cannot share 3"),
        ("rms_norm_eps", Value::Null, "rms_norm_eps is missing"),
    ];
    for (key, value, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        let folder = model(dir.path(), "m", "llama");
        let mut config: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
        config[key] = value;
        write(&folder, "config.json", &config);
        let problem = start(dir.path()).models().find("m").unwrap().problem.unwrap_or_default();
        assert!(problem.contains(words), "{problem:?} does not say {words:?}");
    }
}

#[test]
fn a_base_of_the_rotary_embedding_must_be_finite() {
    let dir = tempfile::tempdir().unwrap();
    let folder = model(dir.path(), "m", "hunyuan");
    let mut config: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    config["rope_parameters"]["alpha"] = json!(1e38);
    write(&folder, "config.json", &config);
    let problem = start(dir.path()).models().find("m").unwrap().problem.unwrap_or_default();
    assert!(problem.contains("is too large for heads of width 16"), "{problem}");
}

#[test]
fn a_pattern_of_windows_must_be_a_number() {
    let dir = tempfile::tempdir().unwrap();
    let folder = model(dir.path(), "m", "exaone4-window");
    let mut config: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    config["sliding_window_pattern"] = json!("LLLG");
    write(&folder, "config.json", &config);
    assert_eq!(start(dir.path()).models().find("m").unwrap().problem, None, "layer_types has the layers");
    config["layer_types"] = Value::Null;
    write(&folder, "config.json", &config);
    let problem = start(dir.path()).models().find("m").unwrap().problem.unwrap_or_default();
    assert!(problem.contains("sliding_window_pattern is \"LLLG\", it must be a number from 1"), "{problem}");
}

#[test]
fn an_incomplete_folder_reports_what_is_missing() {
    let broken = |of: &str, spoil: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().unwrap();
        spoil(&model(dir.path(), "m", of));
        let engine = start(dir.path());
        let listed = engine.models().find("m").unwrap().problem;
        let error = engine.models().load("m").unwrap_err().to_string();
        (listed, error)
    };
    let (listed, _) =
        broken("llama-tied", &|folder| fs::remove_file(folder.join("model-00002-of-00004.safetensors")).unwrap());
    assert!(listed.unwrap().contains("model-00002-of-00004.safetensors: the file cannot be read"));
    let index = json!({"weight_map": {"a": "../evil.safetensors"}});
    let (listed, _) = broken("llama-tied", &|folder| write(folder, "model.safetensors.index.json", &index));
    assert!(listed.unwrap().contains("is not a file name in the folder"));
    let (listed, _) = broken("llama", &|folder| fs::remove_file(folder.join("tokenizer.json")).unwrap());
    assert_eq!(listed.unwrap(), "the folder has no tokenizer.json");
    // Biases that the family does not have are found when the weights are loaded.
    let (_, error) = broken("gemma3", &|folder| {
        fs::copy(fixture("families/gemma2").join("model.safetensors"), folder.join("model.safetensors"))
            .map(drop)
            .unwrap()
    });
    assert!(error.contains("the file has no tensor model.layers.0.self_attn.k_norm.weight"), "{error}");
    let (_, error) = broken("gemma2", &|folder| {
        fs::copy(fixture("families/gemma3").join("model.safetensors"), folder.join("model.safetensors"))
            .map(drop)
            .unwrap()
    });
    assert!(
        error.contains("tensors that the model's family does not use, such as model.layers.0.self_attn.k_norm.weight"),
        "{error}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn loading_a_damaged_folder_never_panics(flips in prop::collection::vec((0usize..3_000, any::<u8>()), 1..4), cut in any::<prop::sample::Index>(), cuts: bool) {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = fs::read(fixture("families/qwen2").join("model.safetensors")).unwrap();
        for (at, value) in flips {
            bytes[at] = value;
        }
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::copy(fixture("families/qwen2").join("config.json"), dir.path().join("config.json")).unwrap();
        fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
        if let Ok(folder) = ModelFolder::open(dir.path()) {
            let _ = Decoder::load(&folder, &cpu());
        }
    }
}
