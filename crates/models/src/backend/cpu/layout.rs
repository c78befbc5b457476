//! Operations that move elements.

use std::ops::Range;

use outpost_kernels as kernels;

use super::device::Cpu;
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::error::Result;

/// A range of rows.
pub fn rows(cpu: &Cpu, x: &Tensor<Cpu>, rows: Range<usize>) -> Result<Tensor<Cpu>> {
    checks::rows(x, &rows)?;
    cpu.tensor(&x.data()[rows.start * x.channels..rows.end * x.channels], [1, rows.len(), 1, x.channels])
}

/// The rows of `x` from `first` on that `y` replaces or is added to.
pub fn rows_mut<'a>(x: &'a mut Tensor<Cpu>, first: usize, y: &Tensor<Cpu>) -> Result<&'a mut [f32]> {
    checks::rows_from(x, first, y)?;
    let start = first * x.channels;
    Ok(&mut x.data_mut()[start..start + y.len()])
}

pub fn gather_rows(cpu: &Cpu, x: &Tensor<Cpu>, rows: &[usize]) -> Result<Tensor<Cpu>> {
    checks::row_indices(x, rows)?;
    let width = x.channels.max(1);
    let mut out = cpu.alloc([1, rows.len(), 1, x.channels]);
    for (row, out) in rows.iter().zip(out.data_mut().chunks_exact_mut(width)) {
        out.copy_from_slice(&x.data()[row * width..(row + 1) * width]);
    }
    Ok(out)
}

pub fn concat_channels(cpu: &Cpu, x: &Tensor<Cpu>, y: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
    checks::concat_channels(x, y)?;
    let mut out = cpu.alloc_like(x, x.channels + y.channels);
    kernels::concat_channels(&cpu.pool, [x.data(), y.data()], [x.channels, y.channels], out.data_mut());
    cpu.pause()?;
    Ok(out)
}

pub fn concat_tokens(cpu: &Cpu, x: &Tensor<Cpu>, y: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
    checks::concat_tokens(x, y)?;
    let mut out = cpu.alloc([x.images, x.pixels() + y.pixels(), 1, x.channels]);
    let lengths = [x, y].map(|map| map.pixels() * map.channels);
    kernels::concat_channels(&cpu.pool, [x.data(), y.data()], lengths, out.data_mut());
    cpu.pause()?;
    Ok(out)
}

pub fn split_tokens(cpu: &Cpu, x: &Tensor<Cpu>, count: usize) -> Result<[Tensor<Cpu>; 2]> {
    let rest = checks::split_tokens(x, count)?;
    let mut outputs = [count, rest].map(|count| cpu.alloc([x.images, count, 1, x.channels]));
    let [head, tail] = &mut outputs;
    let (head_len, tail_len) = (count * x.channels, rest * x.channels);
    let heads = head.data_mut().chunks_exact_mut(head_len.max(1));
    for (x, head) in x.per_image().zip(heads) {
        head.copy_from_slice(&x[..head_len]);
    }
    let tails = tail.data_mut().chunks_exact_mut(tail_len.max(1));
    for (x, tail) in x.per_image().zip(tails) {
        tail.copy_from_slice(&x[head_len..]);
    }
    cpu.pause()?;
    Ok(outputs)
}

pub fn repeat(cpu: &Cpu, x: &Tensor<Cpu>, images: usize) -> Result<Tensor<Cpu>> {
    checks::repeat(x)?;
    let mut out = cpu.alloc([images, x.size[0], x.size[1], x.channels]);
    out.data_mut().chunks_exact_mut(x.len().max(1)).for_each(|image| image.copy_from_slice(x.data()));
    cpu.pause()?;
    Ok(out)
}

pub fn permute(cpu: &Cpu, x: &Tensor<Cpu>, order: &[u32], size: [usize; 2], channels: usize) -> Result<Tensor<Cpu>> {
    checks::permute(x, order, size, channels)?;
    let mut out = cpu.alloc([x.images, size[0], size[1], channels]);
    for (x, out) in x.per_image().zip(out.per_image_mut()) {
        out.iter_mut().zip(order).for_each(|(out, index)| *out = x[*index as usize]);
    }
    cpu.pause()?;
    Ok(out)
}
