//! The model registry: discovery, change detection, and loading within the memory budget.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outpost_engine::{Engine, ImageModel, LoadError, ModelKind, Settings};
use outpost_testing::fixtures::add_fixture;

use crate::harness::{TestClock, memory, request, tiny};
use crate::tiny_model::{self, TinyModel};

fn start(dir: &Path, memory: u64) -> (Engine, Arc<TestClock>) {
    let clock = Arc::new(TestClock::default());
    (Engine::start(Settings::new(dir, memory), clock.clone()).unwrap(), clock)
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
fn the_listing_describes_every_model() {
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
    assert_eq!((chat.kind, chat.format, chat.context_window, chat.loaded), (ModelKind::Text, "gguf", Some(512), false));
    assert_eq!((chat.problem.as_deref(), chat.license.as_deref()), (None, Some("apache-2.0")));
    assert_eq!((linked.quantization.as_deref(), chat.quantization.as_deref()), (Some("Q8_0"), Some("F32")));
    assert_eq!(
        (vectors.kind, vectors.embedding_dimensions, vectors.context_window),
        (ModelKind::Embedding, Some(384), Some(256))
    );
    assert_eq!(
        (vectors.parameters, vectors.problem.as_deref(), vectors.license.as_deref()),
        (6, None, Some("apache-2.0"))
    );
    let error = engine.models().load("vectors").unwrap_err();
    assert!(matches!(error, LoadError::WrongKind { .. }), "{error}");
    let error = engine.models().load_encoder("chat", ModelKind::Embedding).unwrap_err();
    assert!(matches!(error, LoadError::WrongKind { .. }), "{error}");
    engine.models().load("linked").unwrap();
    engine.models().load("bare").unwrap();
    assert!(engine.models().find("linked").unwrap().loaded);
}

#[test]
fn no_id_escapes_the_models_folder() {
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
fn new_and_removed_models_are_noticed_at_once() {
    // The clock does not advance, so no scan is due.
    let rig = tiny();
    assert!(rig.engine.models().find("late").is_none());
    // The times of files may be rounded to a clock tick.
    std::thread::sleep(Duration::from_millis(20));
    tiny_model::write(rig.dir.path(), "late", &TinyModel::default());
    assert!(rig.engine.models().find("late").is_some());
    std::thread::sleep(Duration::from_millis(20));
    fs::remove_dir_all(rig.dir.path().join("late")).unwrap();
    assert_eq!(rig.engine.models().list().len(), 1);
}

#[test]
fn a_folder_that_becomes_a_model_is_found_after_a_second() {
    let rig = tiny();
    let late = rig.dir.path().join("late");
    fs::create_dir(&late).unwrap();
    assert!(rig.engine.models().find("late").is_none());
    fs::write(late.join("model.gguf"), tiny_model::bytes(&TinyModel::default())).unwrap();
    assert!(rig.engine.models().find("late").is_none());
    rig.clock.advance(Duration::from_secs(1));
    assert!(rig.engine.models().find("late").is_some());
}

/// Replaces a file atomically.
fn replace(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, bytes).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn changes_on_disk_are_noticed_at_the_next_use() {
    let (small, large) = (TinyModel::default(), TinyModel { context: 1024, blocks: 3, ..TinyModel::default() });
    // Of different sizes, because files written within one clock tick have the same modification time.
    let (small, large) = (tiny_model::bytes(&small), tiny_model::bytes(&large));
    let spoiled = tiny_model::bytes_with_tensors(&TinyModel::default(), |tensors| {
        let norm = tensors.iter_mut().find(|tensor| tensor.0 == "output_norm.weight").unwrap();
        norm.3[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let spoiled = [spoiled, vec![0]].concat();
    for name in ["bare.gguf", "folder/model.gguf"] {
        // The clock does not advance, so no scan is due.
        let dir = tempfile::tempdir().unwrap();
        let (id, path) = (name.split(['.', '/']).next().unwrap(), dir.path().join(name));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &small[..small.len() / 2]).unwrap();
        let (engine, _) = start(dir.path(), 1 << 30);
        let models = engine.models();
        let problem = || models.find(id).unwrap().problem;
        assert!(matches!(models.load(id), Err(LoadError::Unusable { .. })), "{name}");
        assert!(problem().unwrap().contains("truncated"));

        // Its header is valid now, but loading fails, and the failure is cached.
        replace(&path, &spoiled);
        assert_eq!(problem(), None);
        assert!(matches!(models.load(id), Err(LoadError::Unusable { .. })), "{name}");
        assert!(problem().unwrap().contains("output_norm.weight"));

        // Repaired in place, then replaced.
        fs::write(&path, &small).unwrap();
        assert_eq!((models.load(id).unwrap().context_window(), problem()), (512, None));
        let old = models.load(id).unwrap();
        assert!(Arc::ptr_eq(&old, &models.load(id).unwrap()), "{name}: it is loaded once");
        replace(&path, &large);
        let new = models.load(id).unwrap();
        assert_eq!((old.context_window(), new.context_window()), (512, 1024), "{name}");
        assert_eq!(models.find(id).unwrap().context_window, Some(1024));

        fs::remove_file(&path).unwrap();
        assert_eq!(models.load(id).unwrap_err(), LoadError::NotFound, "{name}");
        assert!(models.find(id).is_none() && models.loaded_model(id).is_none());
        drop((old, new));
        assert!(models.list().is_empty());
        assert!(matches!(models.load("other"), Err(LoadError::NotFound)));
    }
}

#[test]
fn a_change_of_any_file_of_a_model_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    for (kind, name) in [("encoders", "bert-mean"), ("encoders", "bert-dense"), ("pipelines", "sd1")] {
        add_fixture(kind, dir.path(), name);
    }
    let (engine, _) = start(dir.path(), 1 << 30);
    let models = engine.models();
    let vectors = |id: &str| models.load_encoder(id, ModelKind::Embedding);
    let first = vectors("bert-dense").unwrap();
    let module = dir.path().join("bert-dense/2_Dense/config.json");
    replace(&module, &[fs::read(&module).unwrap(), b"\n".to_vec()].concat());
    assert!(!Arc::ptr_eq(&first, &vectors("bert-dense").unwrap()));
    let first = vectors("bert-mean").unwrap();
    let config = dir.path().join("bert-mean/tokenizer_config.json");
    replace(&config, &[fs::read(&config).unwrap(), b"\n".to_vec()].concat());
    let second = vectors("bert-mean").unwrap();
    assert!(!Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&second, &vectors("bert-mean").unwrap()));
    let image_model = models.load_model::<ImageModel>("sd1").unwrap();
    let scheduler = dir.path().join("sd1/scheduler/scheduler_config.json");
    replace(&scheduler, &[fs::read(&scheduler).unwrap(), b"\n".to_vec()].concat());
    assert!(!Arc::ptr_eq(&image_model, &models.load_model::<ImageModel>("sd1").unwrap()));
    fs::remove_file(dir.path().join("bert-mean/model.safetensors")).unwrap();
    assert_eq!(vectors("bert-mean").err(), Some(LoadError::NotFound));
    fs::remove_dir_all(dir.path().join("sd1")).unwrap();
    assert_eq!(models.load_model::<ImageModel>("sd1").err(), Some(LoadError::NotFound));
}

#[tokio::test]
async fn requests_on_a_replaced_model_finish_and_free_its_memory() {
    let rig = crate::harness::slow(|_| ());
    let weights = memory(&rig.engine, "weights");
    let ticket = rig.engine.submit(&rig.model, crate::harness::greedy(vec![7; 20], 64)).unwrap();
    let mut expected = rig.run_one(crate::harness::greedy(vec![7; 20], 64)).await;
    let file = rig.dir.path().join("tiny/tiny.gguf");
    let replacement = TinyModel { context: 4096, blocks: 6, width: 256, seed: 9, ..TinyModel::default() };
    let running = rig.engine.submit(&rig.model, crate::harness::greedy(vec![7; 20], 64)).unwrap();
    replace(&file, &[tiny_model::bytes(&replacement), vec![0]].concat());
    let new = rig.engine.models().load("tiny").unwrap();
    assert!(!Arc::ptr_eq(&new, &rig.model));
    assert_eq!(memory(&rig.engine, "weights"), 2 * weights, "the old one is still in use");
    for ticket in [ticket, running] {
        let output = crate::harness::outputs(&crate::harness::pieces(ticket.deltas).await.unwrap(), 1).remove(0);
        assert_eq!(output, expected);
    }
    let other = rig.engine.submit(&new, crate::harness::greedy(vec![7; 20], 64)).unwrap();
    let output = crate::harness::outputs(&crate::harness::pieces(other.deltas).await.unwrap(), 1).remove(0);
    assert_ne!(std::mem::take(&mut expected.text), output.text);
    rig.wait_until_idle().await;
    let crate::harness::Rig { engine, model, dir: _dir, .. } = rig;
    drop(model);
    // The compute thread releases finished requests at its next step; the next use of any model frees the memory.
    let freed = || {
        drop(engine.models().load("tiny").unwrap());
        memory(&engine, "weights") == weights
    };
    crate::wait::until(|| format!("{} bytes of weights", memory(&engine, "weights")), freed);
}

#[test]
fn concurrent_loads_read_the_model_once() {
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
async fn the_least_recently_used_model_is_evicted() {
    let dir = tempfile::tempdir().unwrap();
    for id in ["a", "b", "c"] {
        tiny_model::write(dir.path(), id, &TinyModel::default());
    }
    let (free, _) = start(dir.path(), 1 << 30);
    free.models().load("a").unwrap();
    // Memory for two models and 20 KV blocks, enough to load one.
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
    assert!(matches!(models.load("b"), Err(LoadError::OutOfMemory { .. })), "both are in use");
    drop(a);
    models.load("b").unwrap();
    assert_eq!(loaded(), ["b", "c"]);
    // 25 blocks are needed: the idle model is unloaded.
    let ticket = engine.submit(&c, request(vec![7; 200], 200)).unwrap();
    crate::harness::pieces(ticket.deltas).await.unwrap();
    assert_eq!(loaded(), ["c"]);
}
