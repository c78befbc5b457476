//! Compares the starter chat model with llama.cpp on the same file. `tests/fixtures/make_smollm2_reference.py` wrote the
//! expected values. The first run pulls the model.
#![cfg(test)]

mod minilm;
mod pictogram;
mod qwen_coder;
#[path = "../common/starter.rs"]
mod starter;

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::Device;
use outpost::app::SystemClockRng;
use outpost::engine::{Engine, Message, Settings, TextModel};
use outpost::models::ModelError;
use outpost::models::backend::{Candle, Cpu, DType, Recurrent};
use outpost::models::causal_lm::{BatchRow, CausalLm, LogitsAt};
use outpost::models::decoder::Decoder;
use outpost::models::decoder_config::DecoderConfig;
use outpost::models::gguf::GgufFile;
use outpost::models::kv::{KvType, blocks_for};
use outpost::models::sequence_state::SequenceState;
use outpost::models::weights::{DecoderCheckpoint, Role, Rows, Weights};
use serde::Deserialize;

const MODEL: &str = "smollm2-135m-instruct";

#[derive(Deserialize)]
struct Reference {
    sample_every: usize,
    /// Texts of many kinds and their token IDs in llama.cpp.
    texts: Vec<(String, Vec<u32>)>,
    /// With the quantized weights of the file. llama.cpp quantizes activations to 8 bits, in its own blocks.
    quantized: Answers,
    /// With the weights converted to F32, without quantization of activations.
    widened: Answers,
}

#[derive(Deserialize)]
struct Answers {
    logits_sample: Vec<f32>,
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<(String, String)>,
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    /// The two highest logits of llama.cpp at each position.
    top2: Vec<[(u32, f32); 2]>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("../fixtures/smollm2_reference.json")).unwrap()
}

fn file() -> GgufFile {
    file_of(MODEL)
}

fn file_of(model: &str) -> GgufFile {
    let folder = starter::models().join(model);
    let file = folder
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|p: &PathBuf| p.extension() == Some("gguf".as_ref()));
    GgufFile::open(&file.unwrap()).unwrap()
}

fn load(weights: &dyn DecoderCheckpoint) -> Decoder<Cpu> {
    Decoder::load(weights, &Cpu::new(2)).unwrap()
}

fn load_on_candle(weights: &dyn DecoderCheckpoint) -> Decoder<Candle> {
    Decoder::load(weights, &Candle::new(Device::Cpu, Cpu::new(2))).unwrap()
}

fn model() -> Decoder<Cpu> {
    load(&file())
}

/// Reads the weights as f32.
struct Widened(GgufFile);

impl DecoderCheckpoint for Widened {
    fn decoder_config(&self) -> Result<DecoderConfig, ModelError> {
        self.0.decoder_config()
    }
}

impl Weights for Widened {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        self.0.name(stem, role)
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.shape(name)
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        self.0.dtype(name).map(|_| DType::F32)
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError> {
        let narrow = self.0.rows(name, first, count)?;
        let bytes = narrow.floats()?.into_iter().flat_map(f32::to_le_bytes).collect();
        Rows::from_bytes(DType::F32, count, narrow.columns, bytes)
    }

    fn names(&self) -> Vec<String> {
        self.0.names()
    }
}

fn cache<B: Recurrent>(model: &Decoder<B>) -> SequenceState {
    SequenceState::new(model.new_arenas(KvType::F32))
}

fn argmax(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).reduce(|best, at| if logits[at] > logits[best] { at } else { best });
    u32::try_from(best.unwrap()).unwrap()
}

/// The largest difference among the sampled logits after the first chat's prompt.
fn largest_difference<B: Recurrent>(model: &Decoder<B>, answers: &Answers, sample_every: usize) -> f32 {
    let logits = model.extend(&answers.chats[0].prompt, &mut cache(model)).unwrap();
    let pairs = logits.iter().step_by(sample_every).zip(&answers.logits_sample);
    let largest = pairs.map(|(ours, reference)| (ours - reference).abs()).fold(0.0, f32::max);
    println!("largest difference of {} logits: {largest}", answers.logits_sample.len());
    largest
}

/// Positions at which the greedy text differs from the reference: `(chat, token, difference of the reference's top two
/// logits, difference of our logits of the two tokens)`.
fn divergences<B: Recurrent>(model: &Decoder<B>, chats: &[Chat]) -> Vec<(usize, usize, f32, f32)> {
    let mut found = Vec::new();
    for (number, chat) in chats.iter().enumerate() {
        let mut cache = cache(model);
        let mut logits = model.extend(&chat.prompt, &mut cache).unwrap();
        for (position, expected) in chat.tokens.iter().enumerate() {
            let ours = argmax(&logits);
            if ours != *expected {
                let [(_, first), (second, runner_up)] = chat.top2[position];
                let gap = logits[ours as usize] - logits[*expected as usize];
                println!(
                    "chat {number} diverges at token {position}: reference {expected} ({first}) over {second} ({runner_up}), Outpost {ours} over {expected} by {gap}"
                );
                found.push((number, position, first - runner_up, gap));
                break;
            }
            logits = model.extend(&[ours], &mut cache).unwrap();
        }
    }
    found
}

fn text_model() -> Arc<TextModel> {
    text_model_of(MODEL)
}

fn text_model_of(model: &str) -> Arc<TextModel> {
    text_model_in(starter::models(), model)
}

fn text_model_in(models: PathBuf, model: &str) -> Arc<TextModel> {
    let settings = Settings { threads: 1, ..Settings::new(models, 2 << 30) };
    Engine::start(settings, Arc::new(SystemClockRng::new())).unwrap().models().load(model).unwrap()
}

#[test]
fn tokens_match_the_reference_and_decode_to_the_text() {
    let (model, reference) = (text_model(), reference());
    assert!(reference.texts.len() > 60);
    for (text, expected) in reference.texts {
        assert_eq!(model.encode(&text).unwrap(), expected, "{text:?}");
        let bytes: Vec<u8> = expected.iter().flat_map(|id| model.token_bytes(*id)).copied().collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }
}

#[test]
fn prompt_tokens_match_the_reference() {
    check_prompts(&text_model(), &reference().quantized.chats);
}

fn check_prompts(model: &TextModel, chats: &[Chat]) {
    for chat in chats {
        let turn = |(role, content): &(String, String)| Message::new(role, content);
        let messages: Vec<Message> = chat.messages.iter().map(turn).collect();
        assert_eq!(model.prompt(&messages).unwrap(), chat.prompt, "{:?}", messages[0].content);
    }
}

#[test]
fn logits_with_f32_weights_match_the_reference() {
    let (model, reference) = (load(&Widened(file())), reference());
    let largest = largest_difference(&model, &reference.widened, reference.sample_every);
    assert!(largest < 2e-3, "{largest}");
    for (chat, token, gap, _) in divergences(&model, &reference.widened.chats) {
        assert!(gap < 2e-3, "chat {chat}, token {token}: not a tie ({gap})");
    }
}

#[test]
fn generated_text_matches_the_reference_up_to_near_ties() {
    let (model, reference) = (model(), reference());
    // llama.cpp's quantization of activations changes these logits by 1.7. Their range is 50.
    let largest = largest_difference(&model, &reference.quantized, reference.sample_every);
    assert!(largest < 2.5, "{largest}");
    for (chat, token, reference, ours) in divergences(&model, &reference.quantized.chats) {
        assert!(reference < 0.5 && ours < 0.5, "chat {chat}, token {token}: gaps {reference} and {ours}");
    }
}

/// The largest logits' tokens of both backends over greedy texts of 64 tokens: where they differ first, if they do, as
/// `(chat, token, difference of the logits on the CPU, on candle)`.
fn backend_divergences(weights: &dyn DecoderCheckpoint, chats: &[Chat]) -> Vec<(usize, usize, f32, f32)> {
    let (ours, candle) = (load(weights), load_on_candle(weights));
    let mut found = Vec::new();
    for (number, chat) in chats.iter().enumerate() {
        let mut caches = (cache(&ours), cache(&candle));
        let mut next = chat.prompt.clone();
        for token in 0..64 {
            let logits = [ours.extend(&next, &mut caches.0), candle.extend(&next, &mut caches.1)].map(Result::unwrap);
            let [best, other] = logits.each_ref().map(|logits| argmax(logits));
            if best != other {
                let [gap, other_gap] = logits.map(|logits| (logits[best as usize] - logits[other as usize]).abs());
                found.push((number, token, gap, other_gap));
                break;
            }
            next = vec![best];
        }
    }
    println!("{} of {} texts are equal on both backends; {found:?}", chats.len() - found.len(), chats.len());
    found
}

#[test]
fn greedy_text_is_the_same_on_both_backends_up_to_near_ties() {
    for (chat, token, ours, candle) in backend_divergences(&file(), &reference().quantized.chats) {
        assert!(ours < 0.5 && candle < 0.5, "chat {chat}, token {token}: gaps {ours} and {candle}");
    }
}

#[derive(Deserialize)]
struct Perplexity {
    tokens: usize,
    perplexity: f64,
}

/// The perplexity of the tokens, with this type of KV cache.
fn perplexity(model: &Decoder<Cpu>, tokens: &[u32], kind: KvType) -> f64 {
    let mut arenas = model.new_arenas(kind);
    let blocks: Vec<u32> = (0..blocks_for(tokens.len()) as u32).collect();
    blocks.iter().for_each(|block| arenas.ensure_positions(*block).unwrap());
    let mut loss = 0.;
    for (index, chunk) in tokens.chunks(256).enumerate() {
        let start = index * 256;
        let row = BatchRow {
            tokens: chunk,
            embedded: &[],
            start,
            tables: std::slice::from_ref(&blocks),
            state: None,
            logits: LogitsAt::All,
            long: false,
            adapter: None,
            hidden: None,
        };
        let next = tokens[start + 1..].iter();
        let mut logits = model.forward(&[row], &mut arenas).unwrap();
        for (logits, next) in logits.rows()[0].iter().zip(next) {
            let best = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
            let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - best).exp()).sum();
            loss += best + sum.ln() - f64::from(logits[*next as usize]);
        }
    }
    (loss / (tokens.len() - 1) as f64).exp()
}

/// Run by `benches/peers/single_stream.py`, which compares the result with llama.cpp's.
#[test]
#[ignore = "prints the perplexity of the file in the variable GGUF"]
fn perplexity_of_a_gguf_file() {
    let path = PathBuf::from(std::env::var("GGUF").unwrap());
    let model = load(&GgufFile::open(&path).unwrap());
    let tokens = text_model_in(
        path.ancestors().nth(2).unwrap().to_owned(),
        path.parent().unwrap().file_name().unwrap().to_str().unwrap(),
    )
    .encode(include_str!("../fixtures/perplexity.txt"))
    .unwrap();
    println!("perplexity {}", perplexity(&model, &tokens, KvType::F16));
}

#[test]
fn perplexity_matches_the_reference() {
    let expected: Perplexity = serde_json::from_str(include_str!("../fixtures/perplexity.json")).unwrap();
    let tokens = text_model().encode(include_str!("../fixtures/perplexity.txt")).unwrap();
    assert_eq!(tokens.len(), expected.tokens);
    let model = model();
    for (kind, within) in [(KvType::F16, 0.01), (KvType::Q8, 0.01)] {
        let ours = perplexity(&model, &tokens, kind);
        println!("keys and values as {kind:?}: {ours:.3}, reference {:.3}", expected.perplexity);
        assert!((ours / expected.perplexity - 1.).abs() < within, "{kind:?}: {ours}");
    }
}
