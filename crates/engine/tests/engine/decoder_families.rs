//! Compares every decoder family, in both formats, with transformers: tiny random models, with logits written by
//! `tests/fixtures/make_families_reference.py`.

use outpost_models::backend::{Cpu, Isa, Pool, Recurrent};
use outpost_models::causal_lm::{BatchRow, CausalLm, EmbeddedTokens, LogitsAt};
use outpost_models::decoder::Decoder;
use outpost_models::gguf::GgufFile;
use outpost_models::kv::{KvType, blocks_for};
use outpost_models::peft::LoadedAdapter;
use outpost_models::safetensors::ModelFolder;
use outpost_models::state_layout::{StateGroup, StateKind, StateUpdate};
use outpost_models::weights::Weights;

use crate::decoder_cases::{Case, Cases, cases, expected, root};
use crate::harness::{candle, candle_tolerance};

/// The tolerance to transformers, which computes in f32; with f32 weights only the order of sums differs. Products of
/// quantized weights round their input to 8 bits, and those of BF16 weights to bf16 if the CPU has an instruction for
/// it; random weights amplify the difference. candle has no MXFP4 and computes with floats. Weights in FP8 become Q8_0; they are
/// small, so that they amplify less.
fn tolerance(case: &str, on_candle: bool, rounds_to_bf16: bool) -> f32 {
    let is_quantised = case.ends_with("-quantised") || (case.ends_with("-mxfp4") && !on_candle);
    match is_quantised || rounds_to_bf16 {
        true => 0.4,
        false if case.contains("-fp8") => 0.15,
        false => 1e-4,
    }
}

/// The format of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Format {
    Safetensors,
    Gguf,
}

impl Format {
    /// Loads the model of a case.
    pub fn load<B: Recurrent>(self, name: &str, backend: &B) -> Decoder<B> {
        let path = root().join(name);
        match self {
            Self::Safetensors => Decoder::load(&ModelFolder::open(&path).unwrap(), backend),
            Self::Gguf => Decoder::load(&GgufFile::open(&path.join("model.gguf")).unwrap(), backend),
        }
        .unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn has(self, case: &Case) -> bool {
        match self {
            Self::Safetensors => case.folder,
            Self::Gguf => case.gguf,
        }
    }
}

fn difference(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0., f32::max)
}

/// The largest difference at any position when the prompt is prefilled in chunks of this size.
pub fn in_chunks<B: Recurrent>(
    model: &Decoder<B>,
    adapter: Option<&LoadedAdapter>,
    prompt: &[u32],
    expected: &[Vec<f32>],
    size: usize,
) -> f32 {
    let mut arenas = model.new_arenas(KvType::F32);
    let blocks: Vec<u32> = (0..blocks_for(prompt.len()) as u32).collect();
    blocks.iter().for_each(|block| arenas.ensure_positions(*block).unwrap());
    (0..2).for_each(|block| arenas.ensure_state(block).unwrap());
    let mut state = StateUpdate { read: None, write: 0 };
    let (mut start, mut largest, long) = (0, 0f32, model.is_long(prompt.len()));
    for tokens in prompt.chunks(size) {
        let row = BatchRow {
            tokens,
            embedded: &[],
            start,
            tables: std::slice::from_ref(&blocks),
            state: Some(state),
            logits: LogitsAt::All,
            long,
            adapter,
            hidden: None,
        };
        let mut logits = model.forward(&[row], &mut arenas).unwrap();
        for (logits, expected) in logits.rows()[0].iter().zip(&expected[start..]) {
            largest = largest.max(difference(logits, expected));
        }
        start += tokens.len();
        state = StateUpdate { read: Some(state.write), write: 1 - state.write };
    }
    largest
}

fn check<B: Recurrent>(format: Format, backend: &B, name: &str, rounds_to_bf16: bool) {
    let Cases { vocabulary, cases } = cases();
    let mut wrong = Vec::new();
    for case in cases.iter().filter(|case| format.has(case)) {
        let model = format.load(&case.name, backend);
        for run in &case.runs {
            let (prompt, expected) = (&case.prompt[..run.positions], expected(case, run, vocabulary));
            let [whole, chunked, stepped] =
                [prompt.len(), 8, 1].map(|size| in_chunks(&model, None, prompt, &expected, size));
            println!(
                "{:<16} {format:?} {:>2} {name:<11}: whole {whole:.2e}, chunks {chunked:.2e}, tokens {stepped:.2e}",
                case.name, run.positions,
            );
            let tolerance = match name {
                "candle" => candle_tolerance(tolerance(&case.name, true, false), 0.6),
                _ => tolerance(&case.name, false, rounds_to_bf16),
            };
            if ![whole, chunked, stepped].iter().all(|difference| *difference <= tolerance) {
                wrong.push(format!("{} {format:?} {name}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "far from the reference: {wrong:?}");
}

fn check_cpu(format: Format) {
    for isa in Isa::available() {
        check(format, &Cpu::with_pool(Pool::with_isa(2, isa)), isa.name(), isa == Isa::Avx512Bf16);
    }
}

#[test]
fn safetensors_families_match_transformers() {
    check_cpu(Format::Safetensors);
}

#[test]
fn gguf_families_match_transformers() {
    check_cpu(Format::Gguf);
}

#[test]
fn safetensors_families_match_transformers_on_candle() {
    check(Format::Safetensors, &candle(), "candle", false);
}

#[test]
fn gguf_families_match_transformers_on_candle() {
    check(Format::Gguf, &candle(), "candle", false);
}

/// The logits of all positions, computed in chunks. `reuse`: in groups with a window, blocks that no later token sees are
/// used again.
fn logits_in_chunks<B: Recurrent>(model: &Decoder<B>, prompt: &[u32], chunk: usize, reuse: bool) -> Vec<f32> {
    let groups = model.state_groups(KvType::F32);
    let mut arenas = model.new_arenas(KvType::F32);
    let mut all = Vec::new();
    for (start, tokens) in (0..).step_by(chunk).zip(prompt.chunks(chunk)) {
        let mut tables: Vec<Vec<u32>> = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            let blocks = 0..blocks_for(start + tokens.len());
            let few = group.max_blocks(1 << 20, chunk);
            let id = |block: usize| if reuse { block.max(group.first_needed(start)) % few } else { block };
            let table: Vec<u32> = blocks.map(|block| id(block) as u32).collect();
            table.iter().for_each(|block| arenas.ensure(index, *block).unwrap());
            tables.push(table);
        }
        let row = BatchRow {
            tokens,
            embedded: &[],
            start,
            tables: &tables,
            state: None,
            logits: LogitsAt::All,
            long: false,
            adapter: None,
            hidden: None,
        };
        let mut logits = model.forward(&[row], &mut arenas).unwrap();
        all.extend(logits.rows()[0].iter().flat_map(|logits| logits.iter().copied()));
    }
    all
}

fn windows<B: Recurrent>(model: &Decoder<B>) -> Vec<Option<usize>> {
    model
        .state_groups(KvType::F32)
        .iter()
        .map(|group| match group.kind {
            StateKind::Attention { window } => window,
            StateKind::Recurrent => panic!("no layer is recurrent"),
        })
        .collect()
}

/// A text from its beginning.
fn row<'a>(tokens: &'a [u32], tables: &'a [Vec<u32>], logits: LogitsAt) -> BatchRow<'a> {
    BatchRow { tokens, embedded: &[], start: 0, tables, state: None, logits, long: false, adapter: None, hidden: None }
}

/// Tokens with embeddings of their own are computed like the tokens of which these are the embeddings.
fn embeddings_replace_tokens<B: Recurrent>(backend: &B) {
    for name in ["llama", "gemma3"] {
        let folder = ModelFolder::open(&root().join(name)).unwrap();
        let model = Decoder::load(&folder, backend).unwrap();
        let table = folder.rows("model.embed_tokens.weight", 0, model.vocabulary()).unwrap().floats().unwrap();
        let (width, scale) = (model.config().width, model.config().embedding_scale);
        let prompt: Vec<u32> = (0..24).map(|index| index * 7 % 64).collect();
        let embedding = |id: &u32| table[*id as usize * width..][..width].iter().map(|value| value * scale);
        let embeddings: Vec<f32> = prompt[9..20].iter().flat_map(embedding).collect();
        let (first, second) = embeddings.split_at(4 * width);
        let embedded = [(9, 4, first), (13, 7, second)];
        let embedded = embedded.map(|(first, count, embeddings)| EmbeddedTokens { first, count, embeddings });
        let placeholders = [&prompt[..9], &[0; 11], &prompt[20..]].concat();
        let mut arenas = model.new_arenas(KvType::F32);
        let tables: Vec<Vec<u32>> = model.state_groups(KvType::F32).iter().map(|_| vec![0, 1]).collect();
        let tables_of_other: Vec<Vec<u32>> = tables.iter().map(|_| vec![2, 3]).collect();
        (0..4).for_each(|id| arenas.ensure_positions(id).unwrap());
        let plain = row(&prompt, &tables, LogitsAt::All);
        let replaced = BatchRow { tokens: &placeholders, embedded: &embedded, tables: &tables_of_other, ..plain };
        let mut logits = model.forward(&[plain, replaced], &mut arenas).unwrap();
        let rows = logits.rows();
        let [expected, replaced_logits] = [0, 1].map(|row: usize| rows[row].concat());
        assert_eq!(difference(&expected, &replaced_logits), 0., "{name}");
        for (count, embeddings) in [(4, &first[1..]), (2, first), (11, &embeddings[..])] {
            let wrong = BatchRow { embedded: &[EmbeddedTokens { first: 14, count, embeddings }], ..replaced };
            assert!(model.forward(&[wrong], &mut arenas).unwrap_err().to_string().contains("fit"));
        }
    }
}

/// The last layer computes only the tokens with logits after its mixer.
#[test]
fn a_token_has_the_same_logits_alone_and_among_all() {
    let prompt: Vec<u32> = (0..24).map(|index| index * 7 % 64).collect();
    for name in ["llama", "olmo2", "cohere2", "gpt-oss", "gemma4", "gemma4-per-layer"] {
        let model = Format::Safetensors.load(name, &Cpu::new(2));
        let tables: Vec<Vec<u32>> = model.state_groups(KvType::F32).iter().map(|_| vec![0, 1]).collect();
        let [all, last] = [LogitsAt::All, LogitsAt::Last].map(|logits| {
            let mut arenas = model.new_arenas(KvType::F32);
            (0..2).for_each(|id| arenas.ensure_positions(id).unwrap());
            model.forward(&[row(&prompt, &tables, logits)], &mut arenas).unwrap().rows()[0].concat()
        });
        assert_eq!((all.len(), last.len()), (24 * 64, 64));
        assert!(difference(&all[23 * 64..], &last) < 1e-5, "{name}");
    }
}

/// Layers after the last one with keys and values of its own compute only the tokens with logits.
fn rows_of_a_batch_equal_those_alone<B: Recurrent>(backend: &B) {
    let text = |seed: u32, count: u32| (0..count).map(|index| (index * 7 + seed) % 64).collect::<Vec<u32>>();
    let texts = [text(1, 24), text(2, 17), text(3, 9), text(4, 1)];
    let wanted = [LogitsAt::Last, LogitsAt::None, LogitsAt::All, LogitsAt::Last];
    for name in ["gemma4-per-layer", "gemma4-experts", "gemma4"] {
        let model = Format::Safetensors.load(name, backend);
        let compute = |rows: &[usize]| {
            let mut arenas = model.new_arenas(KvType::F32);
            (0..8).for_each(|id| arenas.ensure_positions(id).unwrap());
            let tables: Vec<Vec<Vec<u32>>> = (0..4).map(|index| vec![vec![2 * index, 2 * index + 1]]).collect();
            let rows: Vec<_> = rows.iter().map(|index| row(&texts[*index], &tables[*index], wanted[*index])).collect();
            let mut logits = model.forward(&rows, &mut arenas).unwrap();
            logits.rows().iter().map(|row| row.concat()).collect::<Vec<_>>()
        };
        let together = compute(&[0, 1, 2, 3]);
        assert_eq!(together.iter().map(Vec::len).collect::<Vec<_>>(), [64, 0, 9 * 64, 64], "{name}");
        for (index, together) in together.iter().enumerate() {
            let difference = difference(&compute(&[index])[0], together);
            assert!(difference <= candle_tolerance(1e-4, 0.05), "{name}, row {index}: {difference}");
        }
    }
}

#[test]
fn rows_of_a_batch_equal_those_alone_on_every_device() {
    rows_of_a_batch_equal_those_alone(&Cpu::new(2));
    rows_of_a_batch_equal_those_alone(&candle());
}

/// Keys and values of layers with different heads are in arenas of their own, and of layers that share them in none.
#[test]
fn layers_of_different_sizes_have_arenas_of_their_own() {
    let bytes = |name: &str| {
        let by_window = Format::Safetensors.load(name, &Cpu::new(2)).state_groups(KvType::F16);
        let whole = Format::Safetensors.load(name, &candle()).state_groups(KvType::F16);
        let bytes = |groups: &[StateGroup]| groups.iter().map(|group| group.block_bytes).collect::<Vec<_>>();
        [bytes(&by_window), bytes(&whole)]
    };
    // Keys and values of 16 positions in two bytes each: one head of 32, and twice two heads of 16.
    let global = 2 * 16 * 2 * 32;
    assert_eq!(bytes("gemma4"), [vec![global, 2 * global], vec![3 * global]]);
    // Two heads of 32, and two of 16; two more layers share them.
    assert_eq!(bytes("gemma4-per-layer"), [vec![2 * global, global], vec![3 * global]]);
}

#[test]
fn blocks_of_several_arenas_are_saved_and_restored() {
    let prompt: Vec<u32> = (0..32).map(|index| index * 7 % 64).collect();
    let model = Format::Safetensors.load("gemma4-per-layer", &candle());
    let (mut first, mut second) = (model.new_arenas(KvType::F16), model.new_arenas(KvType::F16));
    let tables = vec![vec![0, 1, 2]];
    (0..3).for_each(|id| first.ensure_positions(id).unwrap());
    (0..3).for_each(|id| second.ensure_positions(id).unwrap());
    model.forward(&[row(&prompt, &tables, LogitsAt::None)], &mut first).unwrap();
    for block in 0..2 {
        let mut saved = Vec::new();
        first.save(0, block, &mut saved).unwrap();
        assert!(
            second.load(0, block, &saved[..saved.len() - 1]).is_err() && second.load(0, block, &saved[..7]).is_err()
        );
        second.load(0, block, &saved).unwrap();
    }
    let next = BatchRow { start: 32, ..row(&[5], &tables, LogitsAt::Last) };
    let [mut one, mut other] = [&mut first, &mut second].map(|arenas| model.forward(&[next], arenas).unwrap());
    assert_eq!(one.rows(), other.rows());
}

#[test]
fn decoders_whose_layers_differ_do_not_encode_texts() {
    for name in ["gemma4", "gemma4-per-layer"] {
        let folder = ModelFolder::open(&root().join(name)).unwrap();
        let error = Decoder::load_encoder(&folder, None, None, &Cpu::new(1)).err().unwrap().to_string();
        assert!(error.contains("share keys and values"), "{error}");
    }
}

#[test]
fn embeddings_replace_tokens_on_every_device() {
    embeddings_replace_tokens(&Cpu::new(2));
    embeddings_replace_tokens(&candle());
}

#[test]
fn blocks_that_fell_out_of_a_window_are_not_read() {
    let prompt: Vec<u32> = (0..100).map(|index| index * 7 % 64).collect();
    let cases = [
        ("gemma2", 8),
        ("gemma3", 8),
        ("mistral", 16),
        ("phi3-window", 12),
        ("olmo3", 8),
        ("exaone4-window", 8),
        ("cohere2", 8),
        ("gpt-oss", 8),
        ("gemma4", 8),
        ("gemma4-per-layer", 8),
    ];
    for (name, window) in cases {
        let model = Format::Safetensors.load(name, &Cpu::new(2));
        assert_eq!(windows(&model), [None, Some(window)], "{name}");
        for chunk in [1, 5, 16, 40] {
            let [reused, kept] = [true, false].map(|reuse| logits_in_chunks(&model, &prompt, chunk, reuse));
            assert!(reused == kept, "{name} in chunks of {chunk}: {}", difference(&reused, &kept));
        }
        assert_eq!(windows(&Format::Safetensors.load(name, &candle())), [None], "its arenas do not release memory");
    }
}
