//! Which files of a repository belong to a model of several files. It is an allow-list: what is not known is left out, so
//! that no code, no pickle file and no weights in other formats are ever downloaded.

use std::collections::BTreeSet;
use std::path::Path;

use super::repository::HubFile;
use outpost_models::model_files::{is_hidden, is_safetensors};

/// Max files of a model.
const MAX_FILES: usize = 512;
/// Max components that a `model_index.json` or a `modules.json` may name.
const MAX_COMPONENTS: usize = 64;
/// Files of a transformers, sentence-transformers or adapter folder.
const ROOT_FILES: [&str; 17] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "preprocessor_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "adapter_config.json",
];
/// Files of a component of a diffusers folder, besides its weights.
const COMPONENT_FILES: [&str; 10] = [
    "config.json",
    "scheduler_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "tokenizer.model",
];
/// Components that the server does not use.
const UNUSED_COMPONENTS: [&str; 3] = ["safety_checker", "feature_extractor", "image_encoder"];
/// The names under which libraries save weights.
const STEMS: [&str; 2] = ["model", "diffusion_pytorch_model"];

/// The kind of a repository that is not one of GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FolderKind {
    /// transformers or sentence-transformers.
    Transformers,
    /// A LoRA adapter in the format of peft.
    Adapter,
    Diffusers,
}

/// The kind of a repository; `None` if it has no model in a known layout.
pub(super) fn folder_kind(files: &[HubFile]) -> Option<FolderKind> {
    let has = |name: &str| files.iter().any(|file| file.path == name);
    match () {
        () if has("model_index.json") => Some(FolderKind::Diffusers),
        () if has("adapter_config.json") && has("adapter_model.safetensors") => Some(FolderKind::Adapter),
        () if has("config.json") && !weights(files, "", None).is_empty() => Some(FolderKind::Transformers),
        () => None,
    }
}

/// The files to download. `components`: the folders that `model_index.json` or `modules.json` names. `variant`: `fp16`, to take
/// such weights where there are any.
pub(super) fn select_folder(
    files: &[HubFile],
    kind: FolderKind,
    components: &[String],
    variant: Option<&str>,
) -> Result<Vec<HubFile>, String> {
    let named = |folder: &str, names: &[&str]| -> Vec<HubFile> {
        let is_named = |file: &&HubFile| inside(file, folder).is_some_and(|name| names.contains(&name));
        files.iter().filter(is_named).cloned().collect()
    };
    if components.len() > MAX_COMPONENTS {
        return Err(format!("it has {} components; a model may have {MAX_COMPONENTS}", components.len()));
    }
    let mut chosen = match kind {
        FolderKind::Transformers => [named("", &ROOT_FILES), weights(files, "", variant)].concat(),
        FolderKind::Adapter => [named("", &ROOT_FILES), named("", &["adapter_model.safetensors"])].concat(),
        FolderKind::Diffusers => named("", &["model_index.json"]),
    };
    for component in components.iter().filter(|it| !UNUSED_COMPONENTS.contains(&it.as_str())) {
        let folder = format!("{component}/");
        chosen.extend(named(&folder, &COMPONENT_FILES));
        chosen.extend(weights(files, &folder, variant));
    }
    let is_license = |file: &&HubFile| file.path.starts_with("LICENSE") && !file.path.contains('/');
    chosen.extend(files.iter().filter(is_license).cloned());
    match chosen.len() {
        0..=MAX_FILES => Ok(chosen),
        count => Err(format!("it has {count} files; a model may have {MAX_FILES}")),
    }
}

/// The name of a file in `folder`, which is empty or ends with `/`.
fn inside<'f>(file: &'f HubFile, folder: &str) -> Option<&'f str> {
    file.path.strip_prefix(folder)
}

/// The weights directly in a folder, of one variant: one file, or an index with its shards. The choice is that of
/// [`shards`](outpost_models::safetensors::shards).
fn weights(files: &[HubFile], folder: &str, variant: Option<&str>) -> Vec<HubFile> {
    let find = |name: &str| files.iter().find(|file| inside(file, folder) == Some(name)).cloned();
    let of_variant = |variant: &str| STEMS.iter().find_map(|stem| find(&format!("{stem}.{variant}.safetensors")));
    if let Some(file) = variant.and_then(of_variant) {
        return vec![file];
    }
    for stem in STEMS {
        if let Some(file) = find(&format!("{stem}.safetensors")) {
            return vec![file];
        }
        if let Some(index) = find(&format!("{stem}.safetensors.index.json")) {
            let is_shard = |file: &&HubFile| inside(file, folder).is_some_and(|name| is_shard(name, stem));
            return std::iter::once(index).chain(files.iter().filter(is_shard).cloned()).collect();
        }
    }
    if let Some(file) = of_variant("fp16") {
        return vec![file];
    }
    let is_direct = |file: &&HubFile| {
        let name = inside(file, folder).filter(|name| !name.contains('/') && !is_hidden(name));
        name.is_some_and(|name| is_safetensors(Path::new(name)))
    };
    let direct: Vec<HubFile> = files.iter().filter(is_direct).cloned().collect();
    if direct.len() == 1 { direct } else { Vec::new() }
}

/// Whether a name is that of a shard, such as `model-00001-of-00002.safetensors`.
fn is_shard(name: &str, stem: &str) -> bool {
    let numbers = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".safetensors"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    numbers.and_then(|numbers| numbers.split_once("-of-")).is_some_and(|(one, all)| is_number(one) && is_number(all))
}

/// The components that a `model_index.json` names: `"unet": ["diffusers", "UNet2DConditionModel"]`.
pub(super) fn components(index: &serde_json::Value) -> Vec<String> {
    let is_used = |value: &serde_json::Value| value.as_array().is_some_and(|pair| pair.iter().all(|it| it.is_string()));
    let entries = index.as_object().into_iter().flatten();
    let used = entries.filter(|(name, value)| !name.starts_with('_') && !name.contains(['/', '.']) && is_used(value));
    used.map(|(name, _)| name.clone()).collect()
}

/// The folders of the modules that a `modules.json` names: `{"idx": 2, "name": "2", "path": "2_Dense", "type": "…Dense"}`. The
/// transformer has none; its files are the model's own.
pub(super) fn module_folders(modules: &serde_json::Value) -> Vec<String> {
    let modules = modules.as_array().into_iter().flatten();
    let folders = modules.filter_map(|module| module.get("path")?.as_str());
    let folders: BTreeSet<&str> = folders.map(|folder| folder.trim_start_matches("./").trim_end_matches('/')).collect();
    folders.into_iter().filter(|folder| !folder.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::download::{Checksum, Location, Request};

    fn files(names: &[&str]) -> Vec<HubFile> {
        let request = Request::new(Location::parse("https://hub.example/f").unwrap(), None);
        let file = |name: &&str| {
            let (path, request) = ((*name).to_owned(), request.clone());
            HubFile { path, size: Some(1), checksum: Checksum::None, request }
        };
        names.iter().map(file).collect()
    }

    fn select(names: &[&str], components: &[&str], variant: Option<&str>) -> (FolderKind, Vec<String>) {
        let (list, components) = (files(names), components.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>());
        let kind = folder_kind(&list).unwrap();
        let mut chosen = select_folder(&list, kind, &components, variant).unwrap();
        chosen.sort_by(|one, other| one.path.cmp(&other.path));
        (kind, chosen.into_iter().map(|file| file.path).collect())
    }

    #[test]
    fn a_transformers_folder_is_taken_without_code_pickles_and_duplicates() {
        let (kind, chosen) = select(
            &[
                ".gitattributes",
                "LICENSE",
                "README.md",
                "config.json",
                "consolidated.safetensors",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "model.safetensors.index.json",
                "modeling_x.py",
                "onnx/model.onnx",
                "pytorch_model.bin",
                "source.toml",
                "tokenizer.json",
                "upstream.toml",
            ],
            &[],
            None,
        );
        assert_eq!(kind, FolderKind::Transformers);
        let expected = [
            "LICENSE",
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
        ];
        assert_eq!(chosen, expected);
    }

    #[test]
    fn hidden_files_and_a_stale_index_are_left_out() {
        let shard = "model-00001-of-00002.safetensors";
        let stale = ["config.json", "model.safetensors", "model.safetensors.index.json", shard];
        assert_eq!(select(&stale, &[], None).1, ["config.json", "model.safetensors"]);
        let (_, chosen) = select(&["._own.safetensors", "config.json", "own.safetensors"], &[], None);
        assert_eq!(chosen, ["config.json", "own.safetensors"]);
    }

    #[test]
    fn sentence_transformers_and_adapters_are_recognised() {
        let modules = serde_json::json!([
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "./2_Dense/", "type": "sentence_transformers.models.Dense"},
            {"idx": 3, "name": "3", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
        ]);
        let modules = module_folders(&modules);
        assert_eq!(modules, ["1_Pooling", "2_Dense"]);
        let modules: Vec<&str> = modules.iter().map(String::as_str).collect();
        let own = [
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "config.json",
            "model.safetensors",
            "modules.json",
            "vocab.txt",
        ];
        let others = ["2_Dense/custom.py", "2_Dense/pytorch_model.bin", "onnx/model.safetensors", "openvino/x.bin"];
        let (_, chosen) = select(&[&own[..], &others].concat(), &modules, None);
        assert_eq!(chosen, own);
        let (kind, chosen) =
            select(&["adapter_config.json", "adapter_model.safetensors", "training_args.bin"], &[], None);
        assert_eq!((kind, chosen.len()), (FolderKind::Adapter, 2));
        assert_eq!(folder_kind(&files(&["config.json", "pytorch_model.bin"])), None);
    }

    #[test]
    fn a_pipeline_has_its_components_in_one_variant() {
        let names = [
            "model_index.json",
            "sd.safetensors",
            "unet/config.json",
            "unet/diffusion_pytorch_model.safetensors",
            "unet/diffusion_pytorch_model.fp16.safetensors",
            "unet/diffusion_pytorch_model.bin",
            "vae/config.json",
            "vae/diffusion_pytorch_model.fp16.safetensors",
            "safety_checker/model.safetensors",
            "other/model.safetensors",
            "scheduler/scheduler_config.json",
        ];
        let index = serde_json::json!({
            "_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "U"], "vae": ["diffusers", "V"],
            "scheduler": ["diffusers", "S"], "safety_checker": ["x", "y"], "image_encoder": [null, null],
            "../evil": ["a", "b"], "flag": true,
        });
        let components = components(&index);
        assert_eq!(components, ["unet", "vae", "scheduler", "safety_checker"]);
        let components: Vec<&str> = components.iter().map(String::as_str).collect();
        let rest = ["model_index.json", "scheduler/scheduler_config.json", "unet/config.json"];
        let vae = ["vae/config.json", "vae/diffusion_pytorch_model.fp16.safetensors"];
        let full = [&rest[..], &["unet/diffusion_pytorch_model.safetensors"], &vae].concat();
        assert_eq!(select(&names, &components, None).1, full);
        let half = [&rest[..], &["unet/diffusion_pytorch_model.fp16.safetensors"], &vae].concat();
        assert_eq!(select(&names, &components, Some("fp16")).1, half);
    }
    #[test]
    fn the_number_of_components_is_bounded() {
        let list = files(&["model_index.json"]);
        let select = |count| select_folder(&list, FolderKind::Diffusers, &vec!["unet".to_owned(); count], None);
        assert!(select(MAX_COMPONENTS).is_ok());
        assert_eq!(select(65).unwrap_err(), "it has 65 components; a model may have 64");
    }
}
