//! The prefix cache on disk: texts are found after a restart, and output does not depend on it.

use std::path::{Path, PathBuf};

use outpost_common::disk_space::DiskReserve;
use outpost_engine::{GenerationRequest, PrefixDiskKey, PrefixDiskSettings, Settings};

use crate::harness::{Rig, greedy, memory, outputs, pieces, prompt, rig};
use crate::tiny_model::{self, TinyModel};
use crate::wait::until;

const CONTEXT: TinyModel = TinyModel { context: 2048, ..tiny_model::DEFAULT };
const RECURRENT: TinyModel = TinyModel { blocks: 4, ..CONTEXT };
/// Attention, windows, and all kinds of recurrent layers.
const MODELS: [TinyModel; 5] = [
    CONTEXT,
    TinyModel { architecture: "gemma3", blocks: 6, ..CONTEXT },
    TinyModel { architecture: "lfm2", ..RECURRENT },
    TinyModel { architecture: "qwen35", ..RECURRENT },
    TinyModel { architecture: "granitehybrid", ..RECURRENT },
];

fn with_disk(settings: &mut Settings, folder: &Path) {
    settings.prefix_disk = Some(PrefixDiskSettings {
        folder: folder.join("prefixes"),
        max_bytes: 1 << 30,
        key: PrefixDiskKey([5; 32]),
        reserve: DiskReserve::new(folder, Some(0)),
    });
}

fn on_disk(model: &TinyModel, folder: &Path) -> Rig {
    rig(model, |settings| with_disk(settings, folder))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = folder.read_dir().into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Each turn of a chat computes its new tokens and at most one block more, although the server was restarted before it.
#[tokio::test]
async fn a_chat_continues_after_restarts() {
    for model in &MODELS {
        let folder = tempfile::tempdir().unwrap();
        let memory = rig(model, |_| ());
        let mut text = prompt(1, 40);
        for turn in 0..6 {
            let request = || GenerationRequest { logprobs: Some(0), ..greedy(text.clone(), 20) };
            let restarted = on_disk(model, folder.path());
            let ticket = restarted.engine.submit(&restarted.model, request()).unwrap();
            let all = pieces(ticket.deltas).await.unwrap();
            let computed = text.len() as u32 - all[0].cached;
            let bound = if turn == 0 { 40 } else { 23 + 16 };
            assert!(computed <= bound, "{}: turn {turn} computed {computed} of {}", model.architecture, text.len());
            assert_eq!(outputs(&all, 1), memory.run(request()).await, "{}, turn {turn}", model.architecture);
            text.extend(all.iter().flat_map(|piece| &piece.tokens).map(|info| info.token.id));
            text.extend(prompt(10 + turn, 23));
        }
    }
}

#[tokio::test]
async fn other_tenants_and_changed_models_find_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let text = || greedy(prompt(1, 100), 4);
    let expected = on_disk(&CONTEXT, folder.path()).run_cached(text()).await;
    assert_eq!(expected.0, 0);
    let restarted = on_disk(&CONTEXT, folder.path());
    assert_eq!(restarted.run_cached(GenerationRequest { tenant: 2, ..text() }).await, expected);
    assert_eq!(restarted.run_cached(text()).await, (96, expected.1.clone()));
    assert_eq!(restarted.engine.tenants_on_disk(), [1, 2].into());
    restarted.engine.forget_on_disk(1);
    assert_eq!(restarted.engine.tenants_on_disk(), [2].into());
    drop(restarted);
    let forgotten = on_disk(&CONTEXT, folder.path());
    assert_eq!(forgotten.run_cached(text()).await, expected);
    drop(forgotten);
    let q8 = rig(&CONTEXT, |settings| {
        with_disk(settings, folder.path());
        settings.kv_type = outpost_engine::KvType::Q8;
    });
    assert_eq!(q8.run_cached(text()).await.0, 0, "another type of keys and values");
    drop(q8);
    let tied = on_disk(&TinyModel { tied: !CONTEXT.tied, ..CONTEXT }, folder.path());
    assert_eq!(tied.run_cached(text()).await.0, 0);
    drop(tied);
    assert_eq!(
        on_disk(&CONTEXT, folder.path()).run_cached(text()).await.0,
        0,
        "the files of a changed model were deleted"
    );
}

#[tokio::test]
async fn damaged_files_are_computed_again() {
    let folder = tempfile::tempdir().unwrap();
    for model in &MODELS {
        let text = || greedy(prompt(1, 200), 20);
        let expected = on_disk(model, folder.path()).run_cached(text()).await.1;
        let written = files(folder.path());
        for path in written.iter().step_by(3) {
            let mut bytes = std::fs::read(path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
            std::fs::write(path, bytes).unwrap();
        }
        let restarted = on_disk(model, folder.path());
        let (cached, output) = restarted.run_cached(text()).await;
        assert!(cached < 192 && output == expected, "{}: {cached}", model.architecture);
        assert!(restarted.counter_with_label("prefix_cache_disk_blocks", "damaged") > 0);
        assert_eq!(restarted.run_cached(text()).await, (192, expected), "{}", model.architecture);
        drop(restarted);
        std::fs::remove_dir_all(folder.path().join("prefixes")).unwrap();
    }
}

#[tokio::test]
async fn a_model_that_was_unloaded_finds_its_texts() {
    let folder = tempfile::tempdir().unwrap();
    let rig = on_disk(&CONTEXT, folder.path());
    let expected = rig.run_cached(greedy(prompt(1, 100), 4)).await;
    until(|| "the text is on disk", || files(folder.path()).len() == 6);
    // Its files have changed, and then it is as before.
    tiny_model::write(rig.dir.path(), "tiny", &TinyModel { tied: !CONTEXT.tied, ..CONTEXT });
    rig.engine.models().rescan();
    tiny_model::write(rig.dir.path(), "tiny", &CONTEXT);
    rig.engine.models().rescan();
    let Rig { engine, model: old, clock, dir } = rig;
    drop(old);
    let reloaded = Rig { model: engine.models().load("tiny").unwrap(), engine, clock, dir };
    assert_eq!(reloaded.run_cached(greedy(prompt(1, 100), 4)).await, (96, expected.1));
}

/// Memory is full of other texts, some of which a restore evicts.
#[tokio::test]
async fn blocks_that_take_the_place_of_evicted_ones_keep_their_contents() {
    for model in &MODELS {
        let folder = tempfile::tempdir().unwrap();
        let texts: Vec<_> = (0..12).map(|at| greedy(prompt(at, 150 + at * 3), 30)).collect();
        let first = on_disk(model, folder.path());
        let mut expected = Vec::new();
        for text in &texts {
            expected.push(first.run_cached(text.clone()).await.1);
        }
        let resident = memory(&first.engine, "weights") + memory(&first.engine, "scratch");
        drop(first);
        let full = rig(model, |settings| {
            with_disk(settings, folder.path());
            settings.memory_bytes = resident + 90 * 8_192;
        });
        for (index, text) in texts.iter().enumerate().cycle().take(36) {
            let (cached, output) = full.run_cached(text.clone()).await;
            assert_eq!(output, expected[index], "{}, text {index}", model.architecture);
            assert!(cached >= 144, "{}, text {index}: {cached} tokens", model.architecture);
        }
        full.wait_until_idle().await;
    }
}

#[tokio::test]
async fn requests_that_wait_for_the_disk_run_beside_others() {
    for model in &MODELS {
        let folder = tempfile::tempdir().unwrap();
        let requests: Vec<_> =
            (0..6).map(|at| GenerationRequest { choices: 1 + at % 3, ..greedy(prompt(at, 150), 40) }).collect();
        let first = on_disk(model, folder.path());
        let mut expected = Vec::new();
        for request in &requests {
            expected.push(first.run(request.clone()).await);
        }
        let resident = memory(&first.engine, "weights") + memory(&first.engine, "scratch");
        drop(first);
        for blocks in [60, 4_000] {
            let restarted = rig(model, |settings| {
                with_disk(settings, folder.path());
                settings.memory_bytes = resident + blocks * 8_192;
            });
            let one = |request: &GenerationRequest| restarted.run(request.clone());
            let together = futures_util::future::join_all(requests.iter().map(one)).await;
            assert_eq!(together, expected, "{}, {blocks} blocks", model.architecture);
            restarted.wait_until_idle().await;
            assert!(restarted.counter("cached_prompt_tokens") > 0);
        }
    }
}
