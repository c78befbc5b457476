//! Operations that move elements. Results never share storage with their inputs.

use std::ops::Range;

use candle_core::Tensor as Array;

use super::device::{Candle, tensor};
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::error::{ModelError, Result};

pub fn to_vec(x: &Tensor<Candle>) -> Result<Vec<f32>> {
    Ok(x.data.flatten_all()?.to_vec1()?)
}

/// A range of rows.
pub fn rows(x: &Tensor<Candle>, rows: Range<usize>) -> Result<Tensor<Candle>> {
    checks::rows(x, &rows)?;
    let data = x.data.narrow(0, rows.start, rows.len())?;
    tensor([1, rows.len(), 1, x.channels], &data.force_contiguous()?)
}

pub fn gather_rows(candle: &Candle, x: &Tensor<Candle>, rows: &[usize]) -> Result<Tensor<Candle>> {
    checks::row_indices(x, rows)?;
    let indices = candle.row_indices(rows.iter().copied())?;
    tensor([1, rows.len(), 1, x.channels], &x.data.index_select(&indices, 0)?)
}

/// Replaces rows: in place, unless gradients are needed.
fn replace_rows(x: &mut Tensor<Candle>, first: usize, y: &Array) -> Result<()> {
    match x.data.track_op() || y.track_op() {
        true => x.data = x.data.slice_scatter0(y, first)?,
        false if y.elem_count() > 0 => x.data.slice_set(y, 0, first)?,
        false => {}
    }
    Ok(())
}

pub fn write_rows(x: &mut Tensor<Candle>, first: usize, y: &Tensor<Candle>) -> Result<()> {
    checks::rows_from(x, first, y)?;
    replace_rows(x, first, &y.data)
}

pub fn add_rows(candle: &Candle, x: &mut Tensor<Candle>, first: usize, y: &Tensor<Candle>) -> Result<()> {
    checks::rows_from(x, first, y)?;
    let sum = (x.data.narrow(0, first, y.rows())? + &y.data)?;
    replace_rows(x, first, &sum)?;
    candle.pause()
}

pub fn concat_channels(candle: &Candle, x: &Tensor<Candle>, y: &Tensor<Candle>) -> Result<Tensor<Candle>> {
    checks::concat_channels(x, y)?;
    let data = Array::cat(&[&x.data, &y.data], 1)?;
    let out = tensor([x.images, x.size[0], x.size[1], x.channels + y.channels], &data)?;
    candle.pause()?;
    Ok(out)
}

pub fn concat_tokens(candle: &Candle, x: &Tensor<Candle>, y: &Tensor<Candle>) -> Result<Tensor<Candle>> {
    checks::concat_tokens(x, y)?;
    let data = Array::cat(&[x.by_image()?, y.by_image()?], 1)?;
    let out = tensor([x.images, x.pixels() + y.pixels(), 1, x.channels], &data)?;
    candle.pause()?;
    Ok(out)
}

pub fn split_tokens(candle: &Candle, x: &Tensor<Candle>, count: usize) -> Result<[Tensor<Candle>; 2]> {
    let rest = checks::split_tokens(x, count)?;
    let images = x.by_image()?;
    let part = |first: usize, count: usize| {
        tensor([x.images, count, 1, x.channels], &images.narrow(1, first, count)?.force_contiguous()?)
    };
    let parts = [part(0, count)?, part(count, rest)?];
    candle.pause()?;
    Ok(parts)
}

pub fn repeat(candle: &Candle, x: &Tensor<Candle>, images: usize) -> Result<Tensor<Candle>> {
    checks::repeat(x)?;
    let data = x.by_image()?.broadcast_as((images, x.pixels(), x.channels))?.force_contiguous()?;
    let out = tensor([images, x.size[0], x.size[1], x.channels], &data)?;
    candle.pause()?;
    Ok(out)
}

/// Selects lines, then columns. Output `i` of `n` is input `floor(i · old / n)`.
pub fn resize(candle: &Candle, x: &Tensor<Candle>, [height, width]: [usize; 2]) -> Result<Tensor<Candle>> {
    let [old_height, old_width] = x.size;
    if x.is_empty() {
        return Err(ModelError::Compute(format!("an image of {:?} cannot be resized", x.shape())));
    }
    let lines = candle.row_indices((0..height).map(|line| line * old_height / height))?;
    let columns = candle.row_indices((0..width).map(|column| column * old_width / width))?;
    let data = x.data.reshape((x.images, old_height, old_width * x.channels))?.index_select(&lines, 1)?;
    let data = data.reshape((x.images * height, old_width, x.channels))?.index_select(&columns, 1)?;
    let out = tensor([x.images, height, width, x.channels], &data)?;
    candle.pause()?;
    Ok(out)
}

pub fn permute(
    candle: &Candle,
    x: &Tensor<Candle>,
    order: &[u32],
    [height, width]: [usize; 2],
    channels: usize,
) -> Result<Tensor<Candle>> {
    checks::permute(x, order, [height, width], channels)?;
    let len = x.pixels() * x.channels;
    let data = x.data.reshape((x.images, len))?.index_select(&candle.indices(order.to_vec())?, 1)?;
    let out = tensor([x.images, height, width, channels], &data)?;
    candle.pause()?;
    Ok(out)
}
