//! The real starter model against llama.cpp on the same file. The expected answers were written by
//! `tests/fixtures/make_smollm2_reference.py`; the model is pulled on the first run.

#[path = "../common/starter.rs"]
mod starter;

use std::path::PathBuf;

use outpost::engine::{Engine, Message, Settings};
use outpost::models::gguf::GgufFile;
use outpost::models::llama::Llama;
use serde::Deserialize;

const MODEL: &str = "smollm2-135m-instruct";

#[derive(Deserialize)]
struct Reference {
    sample_every: usize,
    logits_sample: Vec<f32>,
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<(String, String)>,
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    /// The two highest logits of llama.cpp at each place.
    top2: Vec<[(u32, f32); 2]>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("../fixtures/smollm2_reference.json")).unwrap()
}

fn model() -> Llama {
    let folder = starter::models().join(MODEL);
    let file = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).find(|p: &PathBuf| p.extension() == Some("gguf".as_ref()));
    Llama::load(&GgufFile::open(&file.unwrap()).unwrap()).unwrap()
}

fn argmax(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).reduce(|best, at| if logits[at] > logits[best] { at } else { best });
    u32::try_from(best.unwrap()).unwrap()
}

#[test]
fn prompts_have_the_reference_s_tokens() {
    let settings = Settings { threads: 1, ..Settings::new(starter::models(), 2 << 30) };
    let engine = Engine::start(settings, std::sync::Arc::new(outpost::app::Machine::new())).unwrap();
    let model = engine.models().load(MODEL).unwrap();
    for chat in reference().chats {
        let turn = |(role, content): (String, String)| Message { role, content, name: None };
        let messages: Vec<Message> = chat.messages.into_iter().map(turn).collect();
        assert_eq!(model.prompt(&messages).unwrap(), chat.prompt, "{:?}", messages[0].content);
    }
}

#[test]
fn logits_after_a_prompt_are_the_reference_s() {
    let (model, reference) = (model(), reference());
    let logits = model.forward(&reference.chats[0].prompt, &mut model.cache(256).unwrap()).unwrap();
    let sample = logits.iter().step_by(reference.sample_every);
    let differences: Vec<f32> = sample.zip(&reference.logits_sample).map(|(ours, theirs)| (ours - theirs).abs()).collect();
    let largest = differences.iter().copied().fold(0.0, f32::max);
    println!("largest difference of {} logits: {largest}", differences.len());
    // Both quantise activations to 8 bits, with other block sums; the logits span about 50.
    assert!(largest < 0.5, "{largest}");
}

#[test]
fn greedy_text_is_the_reference_s_up_to_a_near_tie() {
    let model = model();
    for (number, chat) in reference().chats.iter().enumerate() {
        let mut cache = model.cache(256).unwrap();
        let mut logits = model.forward(&chat.prompt, &mut cache).unwrap();
        for (place, expected) in chat.tokens.iter().enumerate() {
            let ours = argmax(&logits);
            if ours != *expected {
                let [(_, first), (second, second_logit)] = chat.top2[place];
                println!(
                    "chat {number} parts at token {place}: theirs {expected} ({first}) over {second} ({second_logit}), ours {ours} ({}) over {expected} ({})",
                    logits[ours as usize], logits[*expected as usize]
                );
                assert_eq!(ours, second, "chat {number}, token {place}: not even the reference's second choice");
                assert!(first - second_logit < 0.5, "chat {number}, token {place}: no near tie");
                break;
            }
            logits = model.forward(&[ours], &mut cache).unwrap();
        }
    }
}
