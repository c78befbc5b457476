//! Arrays of the CPU as slices.

use std::ops::{Deref, Range};

use candle_core::{CpuStorage, Error, Result as ArrayResult, Storage, StorageRef, Tensor as Array};

/// The elements of a contiguous array of the CPU.
pub struct HostArray<'a> {
    storage: StorageRef<'a>,
    range: Range<usize>,
}

impl Deref for HostArray<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &*self.storage {
            Storage::Cpu(CpuStorage::F32(elements)) => &elements[self.range.clone()],
            _ => &[],
        }
    }
}

/// # Errors
/// If it is not contiguous, not in f32, or on another device.
pub fn host(array: &Array) -> ArrayResult<HostArray<'_>> {
    let (storage, layout) = array.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::F32(_)), Some((start, end))) => Ok(HostArray { storage, range: start..end }),
        _ => Err(Error::Msg("the elements are not on the host".to_owned())),
    }
}
