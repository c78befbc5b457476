//! The names of files, and the keys of their contents.
//!
//! A block's name is a keyed hash of the name of the block before it, its tokens and the media in it, so it stands for the whole
//! text up to the block, as the path of a node in the prefix cache does. Names reveal nothing about a text without the key.

use std::fs::File;
use std::io::Read as _;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{Context, SHA256};
use ring::hmac;

use crate::ids::Tenant;
use crate::text::prompt::BlockKey;

/// The name of a block of a text, without its group.
pub type BlockName = [u8; 16];

/// The number of a folder.
pub type FolderId = u32;

/// What a folder of blocks is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FolderPath {
    /// The hash of the model's ID.
    pub model: [u8; 16],
    /// The hash of what else decides the contents of its blocks.
    pub identity: [u8; 16],
    pub tenant: Tenant,
}

/// The root of a project's texts for a model or one of its adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRoot {
    pub folder: FolderId,
    pub name: BlockName,
}

/// The keys of the files of a folder.
pub struct FolderKeys {
    names: hmac::Key,
    /// `None` only if the key had a wrong length.
    contents: Option<LessSafeKey>,
}

/// The beginning of a file with this format.
const MAGIC: &[u8; 4] = b"OPC1";

impl FolderKeys {
    pub fn new(key: &hmac::Key, path: &FolderPath) -> Self {
        let derive = |label: &[u8]| hash(key, &[label, &path.model, &path.identity, &path.tenant.to_be_bytes()]);
        let contents = UnboundKey::new(&AES_256_GCM, &derive(b"contents")).ok().map(LessSafeKey::new);
        Self { names: hmac::Key::new(hmac::HMAC_SHA256, &derive(b"names")), contents }
    }

    /// The name that comes before the first block of a text.
    pub fn root(&self, adapter: Option<u64>, long: bool) -> BlockName {
        let adapter = adapter.map_or(Vec::new(), |hash| hash.to_be_bytes().to_vec());
        short_hash(&self.names, &[b"root", &adapter, &[u8::from(long)]])
    }

    /// The name of the block that follows the one with the name `parent`.
    pub fn next(&self, parent: &BlockName, block: &BlockKey) -> BlockName {
        let tokens: Vec<u8> = block.tokens.iter().flat_map(|token| token.to_be_bytes()).collect();
        short_hash(&self.names, &[parent, &tokens, &block.media.to_be_bytes()])
    }

    /// The contents of a file with this name. `nonce` must be random.
    pub fn seal(&self, file: &str, nonce: [u8; NONCE_LEN], mut contents: Vec<u8>) -> Option<Vec<u8>> {
        let aad = Aad::from(file.as_bytes());
        let tag =
            self.contents.as_ref()?.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), aad, &mut contents);
        let tag = tag.ok()?;
        Some([MAGIC, &nonce[..], &contents, tag.as_ref()].concat())
    }

    /// What was sealed; `None`: the file was damaged, or has another name.
    pub fn open(&self, file: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, contents) = sealed.strip_prefix(MAGIC)?.split_first_chunk::<NONCE_LEN>()?;
        let (mut contents, aad) = (contents.to_vec(), Aad::from(file.as_bytes()));
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = self.contents.as_ref()?.open_in_place(nonce, aad, &mut contents).ok()?.len();
        contents.truncate(length);
        Some(contents)
    }
}

fn hash(key: &hmac::Key, parts: &[&[u8]]) -> [u8; 32] {
    let mut context = hmac::Context::with_key(key);
    for part in parts {
        // Lengths keep ("ab", "c") and ("a", "bc") apart.
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.sign().as_ref());
    out
}

/// The beginning of a keyed hash.
pub fn short_hash(key: &hmac::Key, parts: &[&[u8]]) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&hash(key, parts)[..16]);
    short
}

/// The hash of the program that runs. Another build may round differently, so it must not continue from the blocks of this one.
pub fn program_hash() -> std::io::Result<[u8; 32]> {
    // On Linux, the program that runs, also if another one has taken its place on disk.
    let file = File::open("/proc/self/exe").or_else(|_| File::open(std::env::current_exe()?));
    let (mut file, mut hash) = (file?, Context::new(&SHA256));
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
    }
    let mut out = [0; 32];
    out.copy_from_slice(hash.finish().as_ref());
    Ok(out)
}
