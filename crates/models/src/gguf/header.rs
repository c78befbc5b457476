//! Parses and checks a header: magic number, version, metadata and tensor table.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::cursor::Cursor;
use super::value::{Metadata, Value};
use super::{GgufError, StoredType, TensorInfo};

/// A checked header: all tensors are inside the file.
#[derive(Clone, Debug)]
pub struct Header {
    pub version: u32,
    pub metadata: Metadata,
    pub tensors: Vec<TensorInfo>,
}

impl Header {
    /// The layers that only draft, which come last.
    pub fn draft_layers(&self) -> Range<u64> {
        let number = |key: &str| {
            let architecture = self.metadata.text("general.architecture")?;
            self.metadata.integer(&format!("{architecture}.{key}"))
        };
        let count = number("block_count").unwrap_or(0);
        count.saturating_sub(number("nextn_predict_layers").unwrap_or(0))..count
    }
}

/// Minimum bytes of a metadata entry.
const MIN_ENTRY_BYTES: u64 = 8 + 4 + 1;
/// Minimum bytes of an entry of the tensor table.
const MIN_TENSOR_INFO_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

/// Parses and checks a header. `bytes` is the start of a file of `length` bytes.
///
/// # Errors
/// [`GgufError::Short`] if the header is longer than `bytes`; other errors if the file is damaged or not supported.
pub fn parse_header(bytes: &[u8], length: u64) -> Result<Header, GgufError> {
    let mut cursor = Cursor::new(bytes, length);
    let magic = cursor.magic()?;
    if &magic != b"GGUF" {
        return Err(GgufError::NotGguf(magic));
    }
    let version = cursor.u32(&|| "the version".to_owned())?;
    if !matches!(version, 2 | 3) {
        return Err(GgufError::Version(version));
    }
    let tensor_count = cursor.count(MIN_TENSOR_INFO_BYTES, &|| "the tensor count".to_owned())?;
    let entries = cursor.count(MIN_ENTRY_BYTES, &|| "the metadata count".to_owned())?;
    let metadata = read_metadata(&mut cursor, entries)?;
    let alignment = alignment(&metadata)?;
    let mut tensors = Vec::new();
    for index in 0..tensor_count {
        tensors.push(TensorInfo::read(&mut cursor, index)?);
    }
    let start = cursor.position().next_multiple_of(alignment);
    resolve_offsets(&mut tensors, start, alignment, length)?;
    check_no_overlap(&tensors)?;
    Ok(Header { version, metadata, tensors })
}

fn read_metadata(cursor: &mut Cursor<'_>, entries: usize) -> Result<Metadata, GgufError> {
    let mut map = HashMap::new();
    for index in 0..entries {
        let key = cursor.text(&|| format!("the name of metadata entry {index}"))?;
        let value = Value::read(cursor, &|| format!("the value of {key}"))?;
        if map.contains_key(&key) {
            return Err(GgufError::damaged(format!("the metadata key {key} is duplicated")));
        }
        map.insert(key, value);
    }
    Ok(Metadata(map))
}

/// The alignment of tensors. The format requires a multiple of 8.
fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    const KEY: &str = "general.alignment";
    match (metadata.get(KEY), metadata.integer(KEY)) {
        (None, _) => Ok(32),
        (_, Some(value)) if value.is_power_of_two() && (8..=1 << 20).contains(&value) => Ok(value),
        (Some(value), _) => {
            Err(GgufError::damaged(format!("{KEY} is {value:?}, it must be a power of two from 8 to 1048576")))
        }
    }
}

/// Converts offsets in the data section to offsets in the file, and checks that the tensors are inside the file.
fn resolve_offsets(tensors: &mut [TensorInfo], data: u64, alignment: u64, length: u64) -> Result<(), GgufError> {
    for tensor in tensors {
        let name = &tensor.name;
        if tensor.start % alignment != 0 {
            let text = format!("tensor {name} starts at offset {}, which is not aligned to {alignment}", tensor.start);
            return Err(GgufError::damaged(text));
        }
        let end = data.checked_add(tensor.start).and_then(|start| start.checked_add(tensor.bytes));
        match end {
            Some(end) if end <= length => tensor.start += data,
            _ => {
                let what = format!("tensor {name}");
                return Err(GgufError::Truncated { what, end: end.unwrap_or(u64::MAX), length });
            }
        }
    }
    Ok(())
}

fn check_no_overlap(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut names = HashSet::new();
    if let Some(duplicate) = tensors.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
        return Err(GgufError::damaged(format!("the tensor {} is duplicated", duplicate.name)));
    }
    let mut sorted: Vec<_> = tensors.iter().collect();
    sorted.sort_unstable_by_key(|tensor| tensor.start);
    for pair in sorted.windows(2) {
        if let [tensor, next] = pair
            && tensor.start + tensor.bytes > next.start
        {
            return Err(GgufError::damaged(format!("tensors {} and {} overlap", tensor.name, next.name)));
        }
    }
    Ok(())
}

impl Header {
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    pub fn parameters(&self) -> u64 {
        self.tensors.iter().map(TensorInfo::elements).sum()
    }

    /// The type of most weights, such as `Q4_1`.
    pub fn quantization(&self) -> Option<&'static str> {
        self.most_frequent_type(|tensor| tensor.shape.len() > 1)
    }

    /// The type of most of the weights that are converted when they are loaded, if there are any.
    pub fn converted_type(&self) -> Option<&'static str> {
        self.most_frequent_type(|tensor| matches!(tensor.stored, StoredType::Converted(_)))
    }

    fn most_frequent_type(&self, is_counted: impl Fn(&TensorInfo) -> bool) -> Option<&'static str> {
        let counted = self.tensors.iter().filter(|tensor| is_counted(tensor));
        super::tensor::most_frequent_type(counted.map(|tensor| (tensor.stored, tensor.elements())))
    }
}
