//! The ONNX graph of Kokoro-82M, to the names of its PyTorch checkpoint.
//!
//! The export gave names of its own to weights that it transformed: it folded weight normalization, transposed the
//! matrices of linear layers, and joined the directions of LSTMs, with the gates in another order. The table
//! `kokoro_initializers.txt` lists these. Other weights have their PyTorch name after a prefix.

use std::collections::BTreeMap;
use std::path::Path;

use super::onnx;
use super::safetensors_writer;
use super::tensor::Tensor;
use crate::catalog::error::PullError;
use crate::catalog::staging::Staging;

/// The graph.
pub const GRAPH: &str = "kokoro.onnx";

/// One row a line: the initializer, what to do with it, and the tensor or module that it becomes.
const TABLE: &str = include_str!("kokoro_initializers.txt");
/// Constants of the vocoder's Fourier transform, which the server computes itself.
const STFT: &str = "decoder.generator.stft.";
/// ONNX has the gates in the order input, output, forget, cell; PyTorch has input, forget, cell, output.
const GATES: [u64; 4] = [0, 2, 3, 1];

/// Writes the weights.
pub fn convert(inputs: &Path, staging: &Staging) -> Result<(), PullError> {
    let path = inputs.join(GRAPH);
    let tensors = onnx::initializers(&path).and_then(rename);
    let tensors = tensors.map_err(|why| PullError::Unconvertible { file: GRAPH.into(), why: format!("it {why}") })?;
    safetensors_writer::write(&tensors, &path, staging)
}

fn rename(mut initializers: BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>, String> {
    let mut tensors = BTreeMap::new();
    for row in TABLE.lines() {
        let [name, operation, target] = row.split(' ').collect::<Vec<_>>()[..] else { continue };
        let tensor = initializers.remove(name).ok_or_else(|| format!("has no initializer {name}"))?;
        add(&mut tensors, &tensor, operation, target)
            .map_err(|why| format!("has the initializer {name}, which {why}"))?;
    }
    for (name, tensor) in initializers {
        let rest = name
            .strip_prefix("encoder.")
            .or_else(|| name.strip_prefix("decoder.").filter(|rest| rest.starts_with("decoder.")));
        // Everything else is a constant of the graph.
        let Some(target) = rest.filter(|rest| !rest.starts_with(STFT)) else { continue };
        tensors.insert(target.to_owned(), tensor);
    }
    Ok(tensors)
}

fn add(tensors: &mut BTreeMap<String, Tensor>, tensor: &Tensor, operation: &str, target: &str) -> Result<(), String> {
    match operation {
        "copy" => drop(tensors.insert(target.to_owned(), tensor.clone())),
        "transpose" => drop(tensors.insert(target.to_owned(), tensor.transposed()?)),
        "lstm-input" => add_lstm_weight(tensors, tensor, &format!("{target}.weight_ih_l0"))?,
        "lstm-hidden" => add_lstm_weight(tensors, tensor, &format!("{target}.weight_hh_l0"))?,
        _ => add_lstm_biases(tensors, tensor, target)?,
    }
    Ok(())
}

/// `[2, 4 · hidden, columns]`: both directions.
fn add_lstm_weight(tensors: &mut BTreeMap<String, Tensor>, tensor: &Tensor, target: &str) -> Result<(), String> {
    let &[2, rows, columns] = tensor.shape.as_slice() else {
        return Err(format!("has the shape {:?}, which is no bidirectional LSTM", tensor.shape));
    };
    for (direction, suffix) in [(0, ""), (4, "_reverse")] {
        let blocks = GATES.map(|gate| direction + gate);
        tensors.insert(format!("{target}{suffix}"), tensor.blocks(8, &blocks, vec![rows, columns])?);
    }
    Ok(())
}

/// `[2, 8 · hidden]`: in both directions, the biases of the input's products and of the hidden state's.
fn add_lstm_biases(tensors: &mut BTreeMap<String, Tensor>, tensor: &Tensor, target: &str) -> Result<(), String> {
    let &[2, both] = tensor.shape.as_slice() else {
        return Err(format!("has the shape {:?}, which is no bidirectional LSTM", tensor.shape));
    };
    for (direction, suffix) in [(0, ""), (8, "_reverse")] {
        for (half, name) in [(0, "bias_ih_l0"), (4, "bias_hh_l0")] {
            let blocks = GATES.map(|gate| direction + half + gate);
            tensors.insert(format!("{target}.{name}{suffix}"), tensor.blocks(16, &blocks, vec![both / 2])?);
        }
    }
    Ok(())
}
