//! Mixtures of experts.
//!
//! An expert has few tokens, so its products are short. The products of several experts are therefore one parallel section: threads
//! wait for each other once for all of them, and weights are read as one stream. A batch of experts has about as many rows as there
//! are tokens, at most, so it takes the memory that a single expert may need, and its activations stay in the cache.

use outpost_kernels::{self as kernels, Activations, Linear, RowShare};

use super::device::Cpu;
use crate::backend::checks;
use crate::backend::interface::{Backend, FeedForward, Matrix, RoutedExpert, Tensor};
use crate::backend::routing::batch_rows;
use crate::error::{ModelError, Result};

/// Rows of a batch for each thread. With more, activations are read from slower caches; with fewer, threads wait for each other more often.
const ROWS_PER_THREAD: usize = 64;

/// Adds each row of `y`, multiplied by its factor, to a row of `x`.
pub fn add_one(
    cpu: &Cpu,
    x: &mut Tensor<Cpu>,
    y: &Tensor<Cpu>,
    tokens: &[usize],
    weights: &Tensor<Cpu>,
    expert: usize,
) -> Result<()> {
    checks::expert(x, y, tokens, weights, expert)?;
    add_rows(cpu, x, y, tokens.iter().map(|token| (*token, expert)), weights)
}

/// Adds the outputs of experts to `out`, with the same bits as one expert after another.
pub fn add_all(
    cpu: &Cpu,
    out: &mut Tensor<Cpu>,
    experts: &[RoutedExpert<'_, Cpu>],
    x: &Tensor<Cpu>,
    weights: &Tensor<Cpu>,
) -> Result<()> {
    let Some(first) = experts.first() else { return Ok(()) };
    let inner = first.network.up.rows();
    for expert in experts {
        check(expert, first, [out, x, weights])?;
    }
    let limit = batch_rows(x.rows()).min(ROWS_PER_THREAD * cpu.pool.threads());
    let limit = limit.min(cpu.chunk_rows(3 * x.channels * inner));
    let mut rest = experts;
    while !rest.is_empty() {
        let ends = rest.iter().scan(0, |rows, expert| {
            *rows += expert.tokens.len();
            Some(*rows)
        });
        let count = ends.take_while(|rows| *rows <= limit).count().max(1);
        let (batch, others) = rest.split_at(count);
        add_batch(cpu, out, batch, x, weights)?;
        rest = others;
    }
    Ok(())
}

/// Checks that shapes fit, and that an expert has the form of the first one.
fn check(
    RoutedExpert { index, network, tokens }: &RoutedExpert<'_, Cpu>,
    first: &RoutedExpert<'_, Cpu>,
    [out, x, weights]: [&Tensor<Cpu>; 3],
) -> Result<()> {
    let FeedForward { gate, up, down, activation } = *network;
    let inner = first.network.up.rows();
    let takes = |weight: &Linear, rows: usize, columns: usize| {
        (weight.rows(), weight.k()) == (rows, columns) && !weight.is_paired()
    };
    let has_form = activation == first.network.activation && gate.is_some() == first.network.gate.is_some();
    let products_fit = [Some(up), gate].into_iter().flatten().all(|weight| takes(weight, inner, x.channels))
        && takes(down, out.channels, inner);
    let rows_fit = out.rows() == x.rows() && weights.rows() == x.rows() && tokens.iter().all(|token| *token < x.rows());
    match has_form && products_fit && rows_fit && *index < weights.channels {
        true => Ok(()),
        false => Err(ModelError::Compute(format!(
            "expert {index} ({up:?}, {down:?}) does not compute {:?} from {:?}",
            out.shape(),
            x.shape()
        ))),
    }
}

fn add_batch(
    cpu: &Cpu,
    out: &mut Tensor<Cpu>,
    experts: &[RoutedExpert<'_, Cpu>],
    x: &Tensor<Cpu>,
    weights: &Tensor<Cpu>,
) -> Result<()> {
    let Some(FeedForward { gate, activation, up, .. }) = experts.first().map(|expert| expert.network) else {
        return Ok(());
    };
    let inner = up.rows();
    let sizes: Vec<usize> = experts.iter().map(|expert| expert.tokens.len()).collect();
    let tokens: Vec<usize> = experts.iter().flat_map(|expert| expert.tokens).copied().collect();
    let ups: Vec<&Linear> = experts.iter().map(|expert| expert.network.up).collect();
    let gates: Vec<&Linear> = experts.iter().filter_map(|expert| expert.network.gate).collect();
    let downs: Vec<&Linear> = experts.iter().map(|expert| expert.network.down).collect();

    let mut up_out = cpu.alloc([1, tokens.len(), 1, inner]);
    let mut gate_out = gate.is_some().then(|| cpu.alloc([1, tokens.len(), 1, inner]));
    let input = Activations::gathered(&cpu.pool, x.data(), x.channels, &tokens, &sizes);
    let hidden = match &mut gate_out {
        Some(gate_out) => {
            kernels::matmul_parts(&input, &mut [(&gates[..], gate_out.data_mut()), (&ups[..], up_out.data_mut())]);
            kernels::activate(&cpu.pool, activation, gate_out.data_mut(), Some(up_out.data()));
            &*gate_out
        }
        None => {
            kernels::matmul_parts(&input, &mut [(&ups[..], up_out.data_mut())]);
            kernels::activate(&cpu.pool, activation, up_out.data_mut(), None);
            &up_out
        }
    };
    // Its buffers are free for the next product.
    drop(input);
    let mut y = cpu.alloc([1, tokens.len(), 1, out.channels]);
    let hidden = Activations::in_parts(&cpu.pool, hidden.data(), inner, &sizes);
    kernels::matmul_parts(&hidden, &mut [(&downs[..], y.data_mut())]);
    drop(hidden);
    let pairs = experts.iter().flat_map(|expert| expert.tokens.iter().map(|token| (*token, expert.index)));
    add_rows(cpu, out, &y, pairs, weights)
}

/// Adds each row of `y` to a row of `x`. `pairs`: the token and the expert of each row, which select its factor. The rows of a token
/// are added in their order.
fn add_rows(
    cpu: &Cpu,
    x: &mut Tensor<Cpu>,
    y: &Tensor<Cpu>,
    pairs: impl Iterator<Item = (usize, usize)> + Clone,
    weights: &Tensor<Cpu>,
) -> Result<()> {
    // First the starts of the tokens' shares, which become their ends.
    let mut ends = vec![0; weights.rows() + 1];
    pairs.clone().for_each(|(token, _)| ends[token + 1] += 1);
    let mut total = 0;
    ends.iter_mut().for_each(|end| {
        total += *end;
        *end = total;
    });
    let mut shares = vec![RowShare { row: 0, factor: 0. }; total];
    for (row, (token, expert)) in pairs.enumerate() {
        shares[ends[token]] = RowShare { row, factor: weights.data()[token * weights.channels + expert] };
        ends[token] += 1;
    }
    ends.pop();
    let width = x.channels;
    kernels::add_shares(&cpu.pool, x.data_mut(), y.data(), width, &shares, &ends);
    cpu.pause()
}
