//! What lies in the folder is found and told; what is loaded fits the budget.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outpost::engine::{Engine, Kind, LoadError, Settings};

use crate::support::{TestAmbient, memory, request, tiny};
use crate::tiny_model::{self, TinyModel};

fn start(dir: &Path, memory: u64) -> (Engine, Arc<TestAmbient>) {
    let ambient = Arc::new(TestAmbient::default());
    (Engine::start(Settings::new(dir, memory), ambient.clone()).unwrap(), ambient)
}

fn safetensors(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let header = br#"{"__metadata__":{"a":"b"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend([0; 24]);
    fs::write(folder.join("model.safetensors"), bytes).unwrap();
    fs::write(
        folder.join("config.json"),
        r#"{"architectures":["BertModel"],"model_type":"bert","hidden_size":384,"num_hidden_layers":1,
            "num_attention_heads":12,"intermediate_size":8,"vocab_size":9,"max_position_embeddings":512}"#,
    )
    .unwrap();
    fs::write(folder.join("sentence_bert_config.json"), r#"{"max_seq_length":256}"#).unwrap();
    fs::write(folder.join("modules.json"), "[]").unwrap();
    fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    fs::write(folder.join("README.md"), "---\nlicense: apache-2.0\n---\n# Card").unwrap();
}

#[test]
fn the_listing_tells_the_truth() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = dir.path();
    tiny_model::write(root, "chat", &TinyModel::default());
    tiny_model::write(outside.path(), "far", &TinyModel { quantized: true, ..TinyModel::default() });
    symlink(outside.path().join("far"), root.join("linked")).unwrap();
    fs::write(root.join("bare.gguf"), tiny_model::bytes(&TinyModel::default())).unwrap();
    fs::write(root.join("broken.gguf"), b"GGUF").unwrap();
    tiny_model::write(root, ".hidden", &TinyModel::default());
    fs::write(root.join("catalog.toml"), "").unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    safetensors(&root.join("vectors"));
    let (engine, _) = start(root, 1 << 30);
    let list = engine.models().list();
    let ids: Vec<_> = list.iter().map(|info| info.id.as_str()).collect();
    assert_eq!(ids, ["bare", "broken", "chat", "linked", "vectors"]);
    let [_, broken, chat, linked, vectors] = list.as_slice() else { panic!("{list:?}") };
    assert!(broken.problem.as_ref().unwrap().contains("truncated"));
    assert_eq!((chat.kind, chat.format, chat.context_window, chat.loaded), (Kind::Text, "gguf", Some(512), false));
    assert_eq!((chat.problem.as_deref(), chat.license.as_deref()), (None, Some("apache-2.0")));
    assert_eq!((linked.quantization.as_deref(), chat.quantization.as_deref()), (Some("Q8_0"), Some("F32")));
    assert_eq!(
        (vectors.kind, vectors.embedding_dimensions, vectors.context_window),
        (Kind::Embedding, Some(384), Some(256))
    );
    assert_eq!(
        (vectors.parameters, vectors.problem.as_deref(), vectors.license.as_deref()),
        (6, None, Some("apache-2.0"))
    );
    let error = engine.models().load("vectors").unwrap_err();
    assert!(matches!(error, LoadError::OtherKind { .. }), "{error}");
    let error = engine.models().load_encoder("chat", Kind::Embedding).unwrap_err();
    assert!(matches!(error, LoadError::OtherKind { .. }), "{error}");
    engine.models().load("linked").unwrap();
    engine.models().load("bare").unwrap();
    assert!(engine.models().find("linked").unwrap().loaded);
}

#[test]
fn no_id_leads_out_of_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model::write(dir.path(), "outside", &TinyModel::default());
    let inside = dir.path().join("models");
    tiny_model::write(&inside, "m", &TinyModel::default());
    let (engine, _) = start(&inside, 1 << 30);
    for id in ["../outside", "..", ".", "", "/", "m/", "./m", "m/m.gguf", "m\0", ".hidden"] {
        assert!(engine.models().find(id).is_none(), "{id}");
        assert_eq!(engine.models().load(id).unwrap_err(), LoadError::NotFound, "{id}");
    }
}

#[test]
fn new_models_are_found_after_a_second() {
    let rig = tiny();
    tiny_model::write(rig.dir.path(), "late", &TinyModel::default());
    assert!(rig.engine.models().find("late").is_none());
    rig.ambient.advance(Duration::from_secs(1));
    assert!(rig.engine.models().find("late").is_some());
    fs::remove_dir_all(rig.dir.path().join("late")).unwrap();
    rig.ambient.advance(Duration::from_secs(1));
    assert_eq!(rig.engine.models().list().len(), 1);
}

#[test]
fn loading_at_once_loads_once() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model::write(dir.path(), "m", &TinyModel::default());
    let (engine, _) = start(dir.path(), 1 << 30);
    let models: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| engine.models().load("m").unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(models.iter().all(|model| Arc::ptr_eq(model, &models[0])));
}

#[tokio::test]
async fn the_longest_unused_model_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    for id in ["a", "b", "c"] {
        tiny_model::write(dir.path(), id, &TinyModel::default());
    }
    let (free, _) = start(dir.path(), 1 << 30);
    free.models().load("a").unwrap();
    // Two models, and 20 blocks of keys and values: enough to read one.
    let two = 2 * memory(&free, "weights") + memory(&free, "scratch") + 20 * 4_096;
    let (engine, _) = start(dir.path(), two);
    let models = engine.models();
    let loaded = || models.list().into_iter().filter(|info| info.loaded).map(|info| info.id).collect::<Vec<_>>();
    for id in ["a", "b", "a"] {
        models.load(id).unwrap();
    }
    models.load("c").unwrap();
    assert_eq!(loaded(), ["a", "c"]);
    let (a, c) = (models.load("a").unwrap(), models.load("c").unwrap());
    assert!(matches!(models.load("b"), Err(LoadError::NoMemory { .. })), "both are in use");
    drop(a);
    models.load("b").unwrap();
    assert_eq!(loaded(), ["b", "c"]);
    // 25 blocks are needed: the idle model goes.
    let ticket = engine.submit(&c, request(vec![7; 200], 200)).unwrap();
    crate::support::pieces(ticket.pieces).await.unwrap();
    assert_eq!(loaded(), ["c"]);
}
