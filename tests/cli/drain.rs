//! T19: SIGTERM with streams open.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::process::{MODEL, Serving, folder, rest, run};
use crate::tiny_model::TinyModel;

#[test]
fn streams_end_properly_and_the_store_is_clean_after_a_stop() {
    // Four layers of 256 and a long answer: the queue is full of work when the signal comes.
    let folder = folder(&TinyModel { context: 8192, blocks: 4, width: 256, ..TinyModel::default() });
    let mut serving = Serving::start(folder.path(), &[]);
    let body = json!({
        "model": MODEL, "stream": true, "max_tokens": 400, "ignore_eos": true,
        "messages": [{ "role": "user", "content": "go on" }],
    });
    let outcomes: Vec<(u16, String)> = std::thread::scope(|scope| {
        let crowd: Vec<_> = (0..100)
            .map(|_| {
                scope.spawn(|| {
                    let response = serving.request(reqwest::Method::POST, "/v1/chat/completions", Some(&body));
                    (response.status().as_u16(), rest(response))
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(1500));
        serving.signal("TERM");
        crowd.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let stopped = Instant::now();
    assert_eq!(serving.wait(Duration::from_secs(30)), Some(0));
    assert!(stopped.elapsed() < Duration::from_secs(30));
    let mut finished = 0;
    for (status, text) in &outcomes {
        let ended_well = text.trim_end().ends_with("data: [DONE]");
        let ended_with_error = text.contains("\"code\":\"shutting_down\"") && !text.contains("[DONE]");
        let refused = *status == 503;
        assert!(ended_well || ended_with_error || refused, "{status}: …{}", &text[text.len().saturating_sub(300)..]);
        finished += usize::from(ended_well);
    }
    assert!(finished > 0, "what was running when the signal came was let to its end");
    assert!(run(folder.path(), &["check"]).status.success());
}
