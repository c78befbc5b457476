//! The index of files, by last use.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::names::{BlockName, FolderId};

/// The file of a block of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockFile {
    pub folder: FolderId,
    pub name: BlockName,
    /// Index of the group.
    pub group: u8,
}

#[derive(Debug, Default)]
pub struct Index {
    files: HashMap<BlockFile, Entry>,
    by_use: BTreeSet<(u64, BlockFile)>,
    bytes: u64,
    /// A logical clock.
    uses: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    used: u64,
}

impl Index {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn contains(&self, file: &BlockFile) -> bool {
        self.files.contains_key(file)
    }

    /// Adds a file, which was used now.
    pub fn insert(&mut self, file: BlockFile, bytes: u64) {
        self.remove(&file);
        self.uses += 1;
        self.files.insert(file, Entry { bytes, used: self.uses });
        self.by_use.insert((self.uses, file));
        self.bytes += bytes;
    }

    pub fn remove(&mut self, file: &BlockFile) {
        if let Some(Entry { bytes, used }) = self.files.remove(file) {
            self.by_use.remove(&(used, *file));
            self.bytes -= bytes;
        }
    }

    /// Records a use. `false`: there is no such file.
    pub fn touch(&mut self, file: &BlockFile) -> bool {
        let bytes = self.files.get(file).map(|entry| entry.bytes);
        bytes.iter().for_each(|bytes| self.insert(*file, *bytes));
        bytes.is_some()
    }

    /// Removes the least recently used file.
    pub fn pop_oldest(&mut self) -> Option<BlockFile> {
        let (_, file) = *self.by_use.first()?;
        self.remove(&file);
        Some(file)
    }

    pub fn remove_folders(&mut self, folders: &HashSet<FolderId>) {
        if folders.is_empty() {
            return;
        }
        let gone: Vec<_> = self.files.keys().filter(|file| folders.contains(&file.folder)).copied().collect();
        gone.iter().for_each(|file| self.remove(file));
    }
}
