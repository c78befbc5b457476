//! Reads the initializers of an ONNX file: tensors that its graph is given, most of them weights.
//!
//! The file is a protocol buffer. Only the fields that lead to initializers are read; nodes and everything else are
//! skipped by their lengths. Elements stay in the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::dtype::Dtype;
use super::tensor::{MAX_RANK, Tensor};

const MAX_INITIALIZERS: usize = 1 << 16;
const MAX_NAME_BYTES: u64 = 1024;

/// Numbers of fields, from `onnx.proto`.
mod field {
    pub const MODEL_GRAPH: u64 = 7;
    pub const GRAPH_INITIALIZER: u64 = 5;
    pub const TENSOR_DIMS: u64 = 1;
    pub const TENSOR_TYPE: u64 = 2;
    pub const TENSOR_NAME: u64 = 8;
    pub const TENSOR_RAW_DATA: u64 = 9;
    pub const TENSOR_EXTERNAL_DATA: u64 = 13;
}

/// The initializers of floating-point numbers with raw elements, by name.
///
/// # Errors
/// If the file is truncated or malformed, has no graph or keeps elements in other files.
pub fn initializers(path: &Path) -> Result<BTreeMap<String, Tensor>, String> {
    let file = File::open(path).map_err(|e| format!("cannot be read: {e}"))?;
    let end = file.metadata().map_err(|e| format!("cannot be read: {e}"))?.len();
    let mut reader = Reader { file: BufReader::new(file), at: 0 };
    let mut found = None;
    while reader.at < end {
        let value = reader.field(end)?;
        match value {
            (field::MODEL_GRAPH, Value::Bytes(length)) if found.is_none() => {
                found = Some(read_graph(&mut reader, length)?)
            }
            (field::MODEL_GRAPH, _) => return Err("has not one graph".into()),
            (_, value) => reader.skip(value)?,
        }
    }
    found.ok_or_else(|| "is no ONNX file: it has no graph".into())
}

fn read_graph(reader: &mut Reader, length: u64) -> Result<BTreeMap<String, Tensor>, String> {
    let (mut tensors, end) = (BTreeMap::new(), reader.at + length);
    while reader.at < end {
        match reader.field(end)? {
            (field::GRAPH_INITIALIZER, Value::Bytes(length)) => {
                let Some((name, tensor)) = read_tensor(reader, length)? else { continue };
                if tensors.len() >= MAX_INITIALIZERS || tensors.insert(name.clone(), tensor).is_some() {
                    return Err(format!("has the initializer {name} twice, or too many"));
                }
            }
            (_, value) => reader.skip(value)?,
        }
    }
    Ok(tensors)
}

/// None for tensors of other types, such as the shapes and axes of operations.
fn read_tensor(reader: &mut Reader, length: u64) -> Result<Option<(String, Tensor)>, String> {
    let end = reader.at + length;
    let (mut name, mut kind, mut shape, mut data) = (None, 0, Vec::new(), None);
    while reader.at < end {
        match reader.field(end)? {
            (field::TENSOR_DIMS, Value::Number(size)) => shape.push(size),
            (field::TENSOR_DIMS, Value::Bytes(length)) => {
                let packed_end = reader.at + length;
                while reader.at < packed_end && shape.len() <= MAX_RANK {
                    shape.push(reader.varint(packed_end)?);
                }
            }
            (field::TENSOR_TYPE, Value::Number(number)) => kind = number,
            (field::TENSOR_NAME, Value::Bytes(length)) => name = Some(reader.text(length)?),
            (field::TENSOR_RAW_DATA, Value::Bytes(length)) => {
                data = Some((reader.at, reader.at + length));
                reader.skip(Value::Bytes(length))?;
            }
            (field::TENSOR_EXTERNAL_DATA, _) => return Err("keeps elements in another file".into()),
            (_, value) => reader.skip(value)?,
        }
        if shape.len() > MAX_RANK {
            return Err("has a tensor of too many dimensions".into());
        }
    }
    let dtype = match kind {
        1 => Dtype::F32,
        10 => Dtype::F16,
        _ => return Ok(None),
    };
    let (Some(name), Some((start, end))) = (name, data) else { return Ok(None) };
    // Scalars have no dimensions; empty tensors stand for absent arguments.
    if start == end {
        return Ok(None);
    }
    let tensor = Tensor::contiguous(dtype, shape, start, end).map_err(|why| format!("has {name}, which {why}"))?;
    match tensor.bytes() == end - start {
        true => Ok(Some((name, tensor))),
        false => Err(format!("has {name} with {} bytes instead of {}", end - start, tensor.bytes())),
    }
}

/// A field's value, or the length of the bytes that follow.
enum Value {
    Number(u64),
    Bytes(u64),
    Fixed(u64),
}

struct Reader {
    file: BufReader<File>,
    at: u64,
}

impl Reader {
    /// The number and value of the next field of a message that ends at `end`.
    fn field(&mut self, end: u64) -> Result<(u64, Value), String> {
        let key = self.varint(end)?;
        let value = match key & 7 {
            0 => Value::Number(self.varint(end)?),
            1 => Value::Fixed(8),
            2 => Value::Bytes(self.varint(end)?),
            5 => Value::Fixed(4),
            _ => return Err("is no ONNX file: it has a field of an unknown form".into()),
        };
        let length = if let Value::Bytes(length) | Value::Fixed(length) = value { length } else { 0 };
        match self.at.checked_add(length) {
            Some(last) if last <= end => Ok((key >> 3, value)),
            _ => Err("is truncated, or has a field that goes beyond its message".into()),
        }
    }

    fn varint(&mut self, end: u64) -> Result<u64, String> {
        let mut value: u64 = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            if self.at >= end || self.file.read_exact(&mut byte).is_err() {
                return Err("is truncated, or has a field that goes beyond its message".into());
            }
            self.at += 1;
            let [byte] = byte;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("has a number of more than 64 bits".into())
    }

    fn text(&mut self, length: u64) -> Result<String, String> {
        if length > MAX_NAME_BYTES {
            return Err("has a name that is too long".into());
        }
        let mut bytes = Vec::new();
        self.file.by_ref().take(length).read_to_end(&mut bytes).map_err(|e| format!("cannot be read: {e}"))?;
        self.at += length;
        String::from_utf8(bytes).map_err(|_| "has a name that is not UTF-8".into())
    }

    fn skip(&mut self, value: Value) -> Result<(), String> {
        let (Value::Bytes(length) | Value::Fixed(length)) = value else { return Ok(()) };
        let offset = i64::try_from(length).map_err(|_| "is truncated")?;
        self.file.seek_relative(offset).map_err(|e| format!("cannot be read: {e}"))?;
        self.at += length;
        Ok(())
    }
}
