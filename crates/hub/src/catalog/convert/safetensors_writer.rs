//! Writes safetensors files: the length of a JSON header, the header, and the elements of all tensors, in the order of
//! their names. Tensors are copied from another file one at a time, in bounded memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::tensor::{Data, Tensor};
use crate::catalog::error::{FolderError, PullError};
use crate::catalog::staging::Staging;

/// The name that a model's weights have.
pub const WEIGHTS: &str = "model.safetensors";
/// The header's length is a multiple of this, so that the elements are aligned.
const ALIGNMENT: usize = 8;

/// Writes [`WEIGHTS`] of the staged model from tensors of the file at `input`.
pub fn write(tensors: &BTreeMap<String, Tensor>, input: &Path, staging: &Staging) -> Result<(), PullError> {
    let (file, path) = staging.create(WEIGHTS)?;
    let mut out = BufWriter::new(file);
    let header = header(tensors);
    out.write_all(&header).map_err(FolderError::at(&path))?;
    let mut input_file = File::open(input).map_err(FolderError::at(input))?;
    for tensor in tensors.values() {
        copy(tensor, &mut input_file, &mut out).map_err(FolderError::at(&path))?;
    }
    Ok(out.flush().map_err(FolderError::at(&path))?)
}

/// With its length. Names are plain ASCII or escaped by the JSON writer.
fn header(tensors: &BTreeMap<String, Tensor>) -> Vec<u8> {
    let mut entries = serde_json::Map::new();
    entries.insert("__metadata__".into(), serde_json::json!({"format": "pt"}));
    let mut at = 0;
    for (name, tensor) in tensors {
        let end = at + tensor.bytes();
        let entry = serde_json::json!({
            "dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [at, end],
        });
        entries.insert(name.clone(), entry);
        at = end;
    }
    let mut json = serde_json::Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(ALIGNMENT), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    header
}

fn copy(tensor: &Tensor, input: &mut File, out: &mut impl Write) -> io::Result<()> {
    match &tensor.data {
        Data::Ranges(ranges) => ranges.iter().try_for_each(|(offset, bytes)| {
            input.seek(SeekFrom::Start(*offset))?;
            match io::copy(&mut input.take(*bytes), out)? == *bytes {
                true => Ok(()),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }),
        Data::Strided { offset, strides } => {
            input.seek(SeekFrom::Start(*offset))?;
            let mut data = Vec::new();
            input.take(tensor.bytes()).read_to_end(&mut data)?;
            gather(tensor, strides, &data, out)
        }
    }
}

/// Writes the elements in order, last dimension fastest.
fn gather(tensor: &Tensor, strides: &[u64], data: &[u8], out: &mut impl Write) -> io::Result<()> {
    let size = tensor.dtype.bytes();
    let mut index = vec![0_u64; tensor.shape.len()];
    for _ in 0..tensor.bytes() / size {
        let at: u64 = index.iter().zip(strides).map(|(index, stride)| index * stride).sum();
        let start = usize::try_from(at * size).map_err(io::Error::other)?;
        let end = start + if size == 2 { 2 } else { 4 };
        out.write_all(data.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?)?;
        for (digit, limit) in index.iter_mut().zip(&tensor.shape).rev() {
            *digit += 1;
            if *digit < *limit {
                break;
            }
            *digit = 0;
        }
    }
    Ok(())
}
