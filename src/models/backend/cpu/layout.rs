//! Operations that move elements.

use std::ops::Range;

use outpost_kernels as kernels;

use super::device::Cpu;
use crate::models::backend::interface::{Backend, Tensor};
use crate::models::error::{ModelError, Result};

fn mismatch<T>(x: &Tensor<Cpu>, y: &Tensor<Cpu>, action: &str) -> Result<T> {
    Err(ModelError::Compute(format!("tensors of {:?} and {:?} cannot be {action}", x.shape(), y.shape())))
}

/// A range of rows.
pub fn rows(cpu: &Cpu, x: &Tensor<Cpu>, rows: Range<usize>) -> Result<Tensor<Cpu>> {
    let range = rows.start * x.channels..rows.end * x.channels;
    let Some(elements) = x.data().get(range) else {
        return Err(ModelError::Compute(format!("there are {} rows, not the rows {rows:?}", x.rows())));
    };
    cpu.tensor(elements, [1, rows.len(), 1, x.channels])
}

/// The rows of `x` from `first` on that `y` replaces or is added to.
pub fn rows_mut<'a>(x: &'a mut Tensor<Cpu>, first: usize, y: &Tensor<Cpu>) -> Result<&'a mut [f32]> {
    let (start, count, channels) = (first * x.channels, x.rows(), x.channels);
    match x.data_mut().get_mut(start..start + y.len()) {
        Some(rows) if y.channels == channels => Ok(rows),
        _ => Err(ModelError::Compute(format!("{} rows do not fit after the first {first} of {count}", y.rows()))),
    }
}

pub fn gather_rows(cpu: &Cpu, x: &Tensor<Cpu>, rows: &[usize]) -> Result<Tensor<Cpu>> {
    let width = x.channels.max(1);
    let mut out = cpu.alloc([1, rows.len(), 1, x.channels]);
    for (row, out) in rows.iter().zip(out.data_mut().chunks_exact_mut(width)) {
        match x.data().get(row * width..(row + 1) * width) {
            Some(src) => out.copy_from_slice(src),
            None => return Err(ModelError::Compute(format!("there are {} rows, no row {row}", x.rows()))),
        }
    }
    Ok(out)
}

pub fn concat_channels(cpu: &Cpu, x: &Tensor<Cpu>, y: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
    if (x.images, x.size) != (y.images, y.size) || x.is_empty() || y.is_empty() {
        return mismatch(x, y, "concatenated along channels");
    }
    let mut out = cpu.alloc_like(x, x.channels + y.channels);
    kernels::concat_channels(&cpu.pool, [x.data(), y.data()], [x.channels, y.channels], out.data_mut());
    cpu.pause()?;
    Ok(out)
}

pub fn concat_tokens(cpu: &Cpu, x: &Tensor<Cpu>, y: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
    if x.images != y.images || x.channels != y.channels || x.is_empty() || y.is_empty() {
        return mismatch(x, y, "concatenated along tokens");
    }
    let mut out = cpu.alloc([x.images, x.pixels() + y.pixels(), 1, x.channels]);
    let lengths = [x, y].map(|map| map.pixels() * map.channels);
    kernels::concat_channels(&cpu.pool, [x.data(), y.data()], lengths, out.data_mut());
    cpu.pause()?;
    Ok(out)
}

pub fn split_tokens(cpu: &Cpu, x: &Tensor<Cpu>, count: usize) -> Result<[Tensor<Cpu>; 2]> {
    let Some(rest) = x.pixels().checked_sub(count) else {
        return Err(ModelError::Compute(format!("a text of {} tokens cannot be split after {count}", x.pixels())));
    };
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
    if x.images != 1 {
        return Err(ModelError::Compute(format!("{} images cannot be repeated", x.images)));
    }
    let mut out = cpu.alloc([images, x.size[0], x.size[1], x.channels]);
    out.data_mut().chunks_exact_mut(x.len().max(1)).for_each(|image| image.copy_from_slice(x.data()));
    cpu.pause()?;
    Ok(out)
}

pub fn permute(cpu: &Cpu, x: &Tensor<Cpu>, order: &[u32], size: [usize; 2], channels: usize) -> Result<Tensor<Cpu>> {
    let len = x.pixels() * x.channels;
    let valid = order.len() == len && size[0] * size[1] * channels == len;
    if !valid || order.iter().any(|index| *index as usize >= len) {
        return Err(ModelError::Compute(format!("the elements of {:?} cannot be reordered", x.shape())));
    }
    let mut out = cpu.alloc([x.images, size[0], size[1], channels]);
    for (x, out) in x.per_image().zip(out.per_image_mut()) {
        out.iter_mut().zip(order).for_each(|(out, index)| *out = x[*index as usize]);
    }
    cpu.pause()?;
    Ok(out)
}
