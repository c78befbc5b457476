//! Reads checkpoints of `torch.save`: zip archives with a pickle and one file of raw elements for each storage.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use zip::{CompressionMethod, ZipArchive};

use super::pickle;
use super::pickle_value::{PickledTensor, Value};
use super::tensor::Tensor;

const PICKLE: &str = "/data.pkl";

/// An opened checkpoint.
pub struct TorchCheckpoint {
    archive: ZipArchive<BufReader<File>>,
    /// Folder in the archive.
    root: String,
    /// Ranges of storages that were looked up, `(offset, length)` in the file.
    storages: HashMap<String, (u64, u64)>,
}

impl TorchCheckpoint {
    /// Opens a checkpoint and reads its pickle.
    pub fn open(path: &Path) -> Result<(Self, Value), String> {
        let file = File::open(path).map_err(|e| format!("cannot be read: {e}"))?;
        let archive = ZipArchive::new(BufReader::new(file)).map_err(|e| format!("is no PyTorch checkpoint: {e}"))?;
        let pickles = archive.file_names().flatten().filter(|name| name.ends_with(PICKLE));
        let pickles: Vec<String> = pickles.map(|name| name.into_owned()).collect();
        let [pickle] = pickles.as_slice() else {
            return Err("is no PyTorch checkpoint: it has not one data.pkl".into());
        };
        let root = pickle.trim_end_matches(PICKLE).to_owned();
        let mut checkpoint = Self { archive, root, storages: HashMap::new() };
        checkpoint.check_byte_order()?;
        let bytes = checkpoint.small_file(pickle, pickle::MAX_BYTES)?;
        Ok((checkpoint, pickle::read(&bytes)?))
    }

    /// The place of a tensor's elements.
    pub fn locate(&mut self, tensor: &PickledTensor) -> Result<Tensor, String> {
        let storage = &tensor.storage;
        let (start, length) = self.storage(&storage.key)?;
        if storage.count.checked_mul(storage.dtype.bytes()) != Some(length) {
            return Err(format!("has the storage {} with {length} bytes, not {} elements", storage.key, storage.count));
        }
        let offset = tensor.offset.checked_mul(storage.dtype.bytes()).and_then(|offset| offset.checked_add(start));
        let offset = offset.ok_or("has an offset that is too large")?;
        Tensor::strided(storage.dtype, tensor.shape.clone(), tensor.strides.clone(), offset, start + length)
    }

    fn storage(&mut self, key: &str) -> Result<(u64, u64), String> {
        if let Some(range) = self.storages.get(key) {
            return Ok(*range);
        }
        let name = format!("{}/data/{key}", self.root);
        let entry = self.archive.by_name(&name).map_err(|e| format!("has no usable {name}: {e}"))?;
        // torch.save never compresses, so that storages can be mapped into memory.
        if entry.compression() != CompressionMethod::Stored || entry.encrypted() {
            return Err(format!("has a compressed or encrypted {name}"));
        }
        let start = entry.data_start().ok_or_else(|| format!("has no usable {name}"))?;
        let range = (start, entry.size());
        self.storages.insert(key.to_owned(), range);
        Ok(range)
    }

    fn check_byte_order(&mut self) -> Result<(), String> {
        let name = format!("{}/byteorder", self.root);
        // Older versions of PyTorch do not write it.
        if self.archive.index_for_name(&name).is_none() {
            return Ok(());
        }
        match self.small_file(&name, 16)?.as_slice() {
            b"little" => Ok(()),
            _ => Err("is not in little-endian byte order".into()),
        }
    }

    fn small_file(&mut self, name: &str, max: u64) -> Result<Vec<u8>, String> {
        let entry = self.archive.by_name(name).map_err(|e| format!("has no usable {name}: {e}"))?;
        let mut bytes = Vec::new();
        entry.take(max + 1).read_to_end(&mut bytes).map_err(|e| format!("has a damaged {name}: {e}"))?;
        match bytes.len() as u64 > max {
            true => Err(format!("has a {name} of more than {max} bytes")),
            false => Ok(bytes),
        }
    }
}
