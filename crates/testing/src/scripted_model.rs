//! Writes a tiny chat model that generates given texts: a real GGUF file, whose weights are computed and not trained.
//!
//! Its first layer is a convolution that puts the last [`WINDOW`] tokens side by side. Each neuron of the feed-forward network
//! after it recognizes one such window and answers with the next token of a script. The other layer does nothing.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::tiny_model::{self, Random, TensorRow, TinyModel, vocabulary};

/// The tokens that the next one depends on.
pub const WINDOW: usize = 32;
/// Elements of a token's code, which are the bits of its ID, and one that is always 1.
const CODE: usize = 10;
const SEGMENT: usize = CODE + 1;
const WIDTH: usize = WINDOW * SEGMENT;
/// How strongly a neuron answers.
const STRENGTH: f32 = 40.;

/// What the model generates after a prompt with this end. Both may contain special tokens and markers of the model. The end of
/// the prompt is tokenized by bytes, so it must not contain what the tokenizer merges.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    pub after: &'static str,
    pub output: &'static str,
}

/// Writes `<dir>/<name>/<name>.gguf`.
pub fn write(dir: &Path, name: &str, options: &TinyModel, scripts: &[Script]) -> PathBuf {
    let folder = dir.join(name);
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{name}.gguf"));
    fs::write(&path, bytes(options, scripts)).unwrap();
    path
}

/// The bytes of the GGUF file. Of `options`, all but the sizes of the network count.
pub fn bytes(options: &TinyModel, scripts: &[Script]) -> Vec<u8> {
    let options = TinyModel {
        architecture: "lfm2",
        blocks: 2,
        zero_blocks: 0,
        width: WIDTH,
        quantized: false,
        tied: false,
        conv_kernel: WINDOW,
        ..options.clone()
    };
    let tokens = vocabulary(&options);
    let steps = steps(&tokens, scripts);
    tiny_model::bytes_with_tensors(&options, |tensors| {
        tensors.iter_mut().for_each(|tensor| set(tensor, tokens.len(), &steps));
    })
}

/// For each window of tokens, the newest last, the token that follows.
fn steps(tokens: &[String], scripts: &[Script]) -> Vec<(Vec<usize>, usize)> {
    let mut steps: HashMap<Vec<usize>, usize> = HashMap::new();
    for Script { after, output } in scripts {
        let mut text = tokenized(tokens, after);
        for next in tokenized(tokens, output) {
            let window = text[text.len().saturating_sub(WINDOW)..].to_vec();
            let other = steps.insert(window, next);
            assert!(
                other.is_none_or(|other| other == next),
                "two scripts go on differently after the same {WINDOW} tokens, at {next} of {output:?}"
            );
            text.push(next);
        }
    }
    let mut steps: Vec<_> = steps.into_iter().collect();
    steps.sort();
    assert!(steps.len() <= 2 * WIDTH, "the scripts have {} tokens", steps.len());
    steps
}

/// The tokens of a text: special tokens and markers, otherwise bytes.
fn tokenized(tokens: &[String], text: &str) -> Vec<usize> {
    let bytes = tiny_model::bytes_in_order();
    let (mut ids, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.bytes().next() {
        let marked = tokens.iter().enumerate().filter(|(_, token)| token.len() > 3 && rest.starts_with(token.as_str()));
        if let Some((id, token)) = marked.max_by_key(|(_, token)| token.len()) {
            ids.push(id);
            rest = &rest[token.len()..];
            continue;
        }
        assert!(first.is_ascii(), "{text:?} has a character beyond ASCII");
        ids.extend(bytes.iter().position(|byte| *byte == first));
        rest = &rest[1..];
    }
    ids
}

/// The code of the next token: elements of -1 and 1.
fn output_code(token: usize) -> impl Iterator<Item = f32> {
    let mut random = Random(2 ^ ((token as u64) << 20));
    (0..WIDTH).map(move |_| random.number().signum())
}

fn input_code(token: usize) -> Vec<f32> {
    (0..CODE).map(|bit| if token >> bit & 1 == 1 { 1. } else { -1. }).chain([1.]).collect()
}

fn set((name, shape, _, data): &mut TensorRow, tokens: usize, steps: &[(Vec<usize>, usize)]) {
    let mut values = vec![0f32; shape.iter().product()];
    let columns = shape.last().copied().unwrap_or(1);
    let constant = SEGMENT - 1;
    let mut put = |row: usize, column: usize, value: f32| values[row * columns + column] += value;
    match name.as_str() {
        "token_embd.weight" => {
            for token in 0..tokens {
                let segment = input_code(token);
                (0..WIDTH).for_each(|column| put(token, column, segment[column % SEGMENT]));
            }
        }
        "output.weight" => {
            for token in 0..tokens {
                output_code(token).enumerate().for_each(|(column, value)| put(token, column, value));
            }
        }
        "blk.0.shortconv.in_proj.weight" => {
            for row in 0..WIDTH {
                put(row, constant, 1.);
                put(WIDTH + row, constant, 1.);
                put(2 * WIDTH + row, row, 1.);
            }
        }
        // What is added to the newest token makes an older one of it.
        "blk.0.shortconv.conv.weight" => {
            for row in 0..WIDTH {
                put(row, WINDOW - 1 - row / SEGMENT, 1.);
                put(row, WINDOW - 1, -1.);
            }
        }
        "blk.0.shortconv.out_proj.weight" => (0..WIDTH).for_each(|row| put(row, row, 1.)),
        "blk.0.ffn_gate.weight" => {
            for (row, (window, _)) in steps.iter().enumerate() {
                put(row, constant, STRENGTH);
                for (age, token) in window.iter().rev().enumerate() {
                    let segment = age * SEGMENT;
                    let elements = input_code(*token);
                    (0..CODE).for_each(|at| put(row, segment + at, STRENGTH * elements[at]));
                    put(row, segment + constant, -STRENGTH * CODE as f32);
                }
            }
        }
        "blk.0.ffn_up.weight" => (0..steps.len()).for_each(|row| put(row, constant, 1.)),
        "blk.0.ffn_down.weight" => {
            for (column, (_, next)) in steps.iter().enumerate() {
                output_code(*next).enumerate().for_each(|(row, value)| put(row, column, 10. * value));
            }
        }
        _ if name.ends_with("norm.weight") => values.fill(1.),
        _ => {}
    }
    *data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
}
