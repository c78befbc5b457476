//! The settings of models: aliases, pinned models, and models that are unloaded when they are idle.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outpost_engine::{Engine, InUse, InstalledSettings, LoadError, Settings};

use crate::harness::{TestClock, memory};
use crate::tiny_adapter::TinyAdapter;
use crate::tiny_model::{self, TinyModel};

struct Folder {
    engine: Engine,
    clock: Arc<TestClock>,
    dir: tempfile::TempDir,
}

const MINUTE: Duration = Duration::from_secs(60);

fn start(models: &[&str], settings: &str, memory: u64) -> Folder {
    let dir = tempfile::tempdir().unwrap();
    models.iter().for_each(|id| drop(tiny_model::write(dir.path(), id, &TinyModel::default())));
    fs::write(dir.path().join("models.toml"), settings).unwrap();
    let clock = Arc::new(TestClock::default());
    let settings = Settings { speculate: false, ..Settings::new(dir.path(), memory) };
    Folder { engine: Engine::start(settings, clock.clone()).unwrap(), clock, dir }
}

impl Folder {
    fn loaded(&self) -> Vec<String> {
        self.engine.models().list().into_iter().filter(|info| info.loaded).map(|info| info.id).collect()
    }

    fn load(&self, ids: &[&str]) {
        ids.iter().for_each(|id| drop(self.engine.models().load(id).unwrap()));
    }

    fn write(&self, text: &str) {
        fs::write(self.dir.path().join("models.toml"), text).unwrap();
        self.engine.models().refresh_settings();
    }

    /// Lets time pass, as the server notices it.
    fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.engine.models().unload_unused();
    }

    fn target(&self, name: &str) -> Option<String> {
        self.engine.models().alias_target(name)
    }
}

/// Memory for two models of [`TinyModel::default`].
fn two_models() -> u64 {
    let free = start(&["a"], "", 1 << 30);
    free.load(&["a"]);
    2 * memory(&free.engine, "weights") + memory(&free.engine, "scratch") + 20 * 4_096
}

#[test]
fn a_model_is_unloaded_when_it_was_idle_for_its_time() {
    let text = "unload_after = '30m'\n[models.b]\nunload_after = 'never'\n[models.c]\nunload_after = '1h'\n\
                [models.d]\npinned = true\nunload_after = '1m'";
    let folder = start(&["a", "b", "c", "d"], text, 1 << 30);
    folder.load(&["a", "b", "c", "d"]);
    folder.pass(29 * MINUTE);
    assert_eq!(folder.loaded(), ["a", "b", "c", "d"]);
    folder.load(&["a"]);
    folder.pass(29 * MINUTE);
    assert_eq!(folder.loaded(), ["a", "b", "c", "d"], "its last use counts");
    let unloads_at = folder.engine.models().find("a").unwrap().unloads_at.unwrap();
    let left = outpost_common::clock_rng::Timestamp::from_millis(1_795_000_000_000).until(unloads_at);
    assert!(left <= MINUTE && left > Duration::from_secs(59), "{left:?}");
    folder.pass(2 * MINUTE);
    assert_eq!(folder.loaded(), ["b", "d"]);
    assert_eq!(folder.engine.models().find("b").unwrap().unloads_at, None);
}

#[test]
fn the_idle_time_begins_when_the_last_request_has_ended() {
    let folder = start(&["a"], "unload_after = '10m'", 1 << 30);
    let in_use = folder.engine.models().load("a").unwrap();
    folder.pass(60 * MINUTE);
    drop(in_use);
    folder.pass(9 * MINUTE);
    assert_eq!(folder.loaded(), ["a"]);
    folder.pass(2 * MINUTE);
    assert_eq!(folder.loaded(), [""; 0]);
    assert_eq!(memory(&folder.engine, "weights"), 0);
}

#[test]
fn an_adapter_is_unloaded_before_its_base() {
    let folder = start(&["tiny"], "unload_after = '10m'", 1 << 30);
    TinyAdapter::of_tiny(1).write(folder.dir.path(), "adapter");
    folder.load(&["adapter"]);
    folder.pass(11 * MINUTE);
    assert_eq!(folder.loaded(), ["tiny"]);
    folder.pass(Duration::from_secs(1));
    assert_eq!(folder.loaded(), [""; 0]);
    // A pinned adapter keeps its base, and an unload of its base would unload it.
    folder.write("unload_after = '10m'\n[models.adapter]\npinned = true");
    folder.engine.models().load_pinned();
    folder.pass(60 * MINUTE);
    assert_eq!(folder.loaded(), ["adapter", "tiny"]);
    assert_eq!(folder.engine.models().unload_blocker("tiny").as_deref(), Some("adapter"));
}

#[test]
fn without_settings_no_model_is_unloaded() {
    let folder = start(&["a"], "", 1 << 30);
    folder.load(&["a"]);
    folder.pass(100_000 * MINUTE);
    assert_eq!(folder.loaded(), ["a"]);
}

#[test]
fn a_pinned_model_is_loaded_and_never_evicted() {
    let folder = start(&["a", "b", "c"], "[models.a]\npinned = true", two_models());
    let models = folder.engine.models();
    assert_eq!(folder.loaded(), [""; 0]);
    models.load_pinned();
    assert_eq!(folder.loaded(), ["a"]);
    assert!(models.find("a").unwrap().pinned && !models.find("b").unwrap().pinned);
    folder.load(&["b", "c"]);
    assert_eq!(folder.loaded(), ["a", "c"], "the pinned one was used least recently, and stays");
    let in_use = models.load("c").unwrap();
    match models.load("b").unwrap_err() {
        LoadError::OutOfMemory { pinned, .. } => assert_eq!(pinned, ["a"]),
        other => panic!("{other}"),
    }
    assert_eq!(models.unload("c"), Err(InUse));
    drop(in_use);
    // Its files change: it is loaded again.
    let other = tiny_model::bytes(&TinyModel { context: 1024, ..TinyModel::default() });
    fs::write(folder.dir.path().join("a/a.gguf"), [other, vec![0; 8]].concat()).unwrap();
    assert_eq!(models.find("a").unwrap().context_window, Some(1024));
    assert!(!folder.loaded().contains(&"a".to_owned()));
    models.load_pinned();
    assert!(folder.loaded().contains(&"a".to_owned()));
    // Without the setting, it is like any other.
    folder.write("");
    folder.load(&["b", "c"]);
    assert_eq!(folder.loaded(), ["b", "c"]);
}

#[test]
fn a_pinned_model_that_does_not_fit_is_tried_again() {
    let folder = start(&["a", "b", "c"], "", two_models());
    let models = folder.engine.models();
    let in_use = (models.load("a").unwrap(), models.load("b").unwrap());
    folder.write("[models.c]\npinned = true\n[models.none]\npinned = true");
    models.load_pinned();
    drop(in_use);
    models.load_pinned();
    assert_eq!(folder.loaded(), ["a", "b"], "it waits");
    folder.clock.advance(Duration::from_secs(31));
    models.load_pinned();
    assert_eq!(folder.loaded(), ["b", "c"]);
}

#[test]
fn aliases_follow_the_files() {
    let folder = start(&["a"], "[aliases]\nx = 'a'", 1 << 30);
    assert_eq!(folder.target("x").as_deref(), Some("a"), "they apply from the start");
    assert_eq!((folder.target("a"), folder.target("y")), (None, None));
    folder.write("[aliases]\nx = 'a'\ny = 7");
    assert_eq!(folder.target("x").as_deref(), Some("a"), "a file with an error changes nothing");
    folder.write("[aliases]\ny = 'a'");
    assert_eq!((folder.target("x"), folder.target("y").as_deref()), (None, Some("a")));
    // A model with this ID is installed.
    add(folder.dir.path(), "y");
    folder.engine.models().refresh_settings();
    assert_eq!([folder.target("y"), folder.target("y:latest")], [None, Some("y".to_owned())]);
    assert_eq!(folder.engine.models().aliases(), []);
    fs::remove_dir_all(folder.dir.path().join("y")).unwrap();
    folder.engine.models().refresh_settings();
    assert_eq!(folder.engine.models().aliases(), [("y".to_owned(), "a".to_owned())]);
}

fn add(models: &Path, id: &str) {
    tiny_model::write(models, id, &TinyModel::default());
}

#[test]
fn an_unknown_alias_does_not_hide_a_model_before_the_first_scan() {
    let folder = start(&["a", "x"], "[aliases]\nx = 'a'", 1 << 30);
    assert_eq!(folder.target("x"), None);
}

#[test]
fn a_settings_file_in_a_models_folder_does_not_reload_the_model() {
    let folder = start(&["a"], "", 1 << 30);
    let first = folder.engine.models().load("a").unwrap();
    fs::write(folder.dir.path().join("a/model.toml"), "aliases = ['gpt-4o']\n[defaults]\ntop_k = 3").unwrap();
    folder.engine.models().refresh_settings();
    assert!(Arc::ptr_eq(&first, &folder.engine.models().load("a").unwrap()));
    assert_eq!(folder.target("gpt-4o").as_deref(), Some("a"));
    assert_eq!(folder.engine.models().generation_defaults("a").sampling.top_k, Some(3));
}

#[test]
fn settings_of_moderation_that_mean_nothing_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[models.a.moderation]\nthreshold = 0\nlabel = 1\n[models.a.moderation.labels]\nA = 'hate'\nB = 'bad'\n";
    fs::write(folder.path().join("models.toml"), text).unwrap();
    let settings = InstalledSettings::read(folder.path());
    let expected = [
        "models.toml:2: models.a.moderation.threshold is 0; it must be above 0, and at most 1",
        "models.toml:3: unknown key 'models.a.moderation.label'; did you mean 'labels'?",
        "models.toml:6: models.a.moderation.labels.B must be \"safe\", \"unsafe\" or one of the categories \"harassment\", ",
    ];
    let problems = settings.problems();
    assert_eq!(problems.len(), expected.len(), "{problems:?}");
    assert!(problems.iter().zip(expected).all(|(problem, start)| problem.starts_with(start)), "{problems:?}");
}
