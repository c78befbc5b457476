//! Splits GGUF files into parts, as llama.cpp's `gguf-split` does.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The alignment of tensors in files that do not name another one.
const ALIGNMENT: usize = 32;
/// The value types of `split.no` and `split.count`, and of `split.tensors.count`.
const U16: u32 = 2;
const I32: u32 = 5;

/// A GGUF file in memory.
struct Whole<'f> {
    bytes: &'f [u8],
    entries: u64,
    /// The metadata, as in the file.
    metadata: &'f [u8],
    /// In the order of their data.
    tensors: Vec<Tensor<'f>>,
}

struct Tensor<'f> {
    /// The name, the shape and the type, as in the file.
    description: &'f [u8],
    /// The bytes of the tensor in the file, with padding.
    data: Range<usize>,
}

/// Reads a file that is not damaged.
struct Reader<'f> {
    bytes: &'f [u8],
    at: usize,
}

impl Reader<'_> {
    fn number<const N: usize>(&mut self) -> u64 {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        u64::from_le_bytes(wide)
    }

    fn skip(&mut self, bytes: u64) {
        self.at += usize::try_from(bytes).unwrap();
    }

    fn skip_text(&mut self) {
        let length = self.number::<8>();
        self.skip(length);
    }

    fn skip_value(&mut self, kind: u64) {
        match kind {
            0 | 1 | 7 => self.skip(1),
            2 | 3 => self.skip(2),
            4..=6 => self.skip(4),
            10..=12 => self.skip(8),
            8 => self.skip_text(),
            9 => {
                let (kind, count) = (self.number::<4>(), self.number::<8>());
                (0..count).for_each(|_| self.skip_value(kind));
            }
            other => panic!("the value type {other}"),
        }
    }
}

impl<'f> Whole<'f> {
    fn read(bytes: &'f [u8]) -> Self {
        let mut reader = Reader { bytes, at: 8 };
        let (count, entries) = (reader.number::<8>(), reader.number::<8>());
        let start = reader.at;
        for _ in 0..entries {
            reader.skip_text();
            let kind = reader.number::<4>();
            reader.skip_value(kind);
        }
        let metadata = &bytes[start..reader.at];
        let mut tensors = Vec::new();
        for _ in 0..count {
            let start = reader.at;
            reader.skip_text();
            let rank = reader.number::<4>();
            reader.skip(8 * rank + 4);
            let description = &bytes[start..reader.at];
            tensors.push((usize::try_from(reader.number::<8>()).unwrap(), description));
        }
        let data = reader.at.next_multiple_of(ALIGNMENT);
        tensors.sort_unstable();
        let starts: Vec<usize> = tensors.iter().map(|(offset, _)| data + offset).chain([bytes.len()]).collect();
        let tensors = tensors.iter().zip(starts.windows(2));
        let tensors = tensors.map(|((_, description), ends)| Tensor { description, data: ends[0]..ends[1] }).collect();
        Self { bytes, entries, metadata, tensors }
    }

    fn part(&self, (number, count): (usize, usize), tensors: &[Tensor<'_>]) -> Vec<u8> {
        let (metadata, entries) = if number == 0 { (self.metadata, self.entries) } else { (&[][..], 0) };
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend((entries + 3).to_le_bytes());
        out.extend(metadata);
        let mut add = |key: &str, kind: u32, value: &[u8]| {
            out.extend((key.len() as u64).to_le_bytes());
            out.extend(key.as_bytes());
            out.extend(kind.to_le_bytes());
            out.extend(value);
        };
        add("split.no", U16, &u16::try_from(number).unwrap().to_le_bytes());
        add("split.count", U16, &u16::try_from(count).unwrap().to_le_bytes());
        add("split.tensors.count", I32, &i32::try_from(self.tensors.len()).unwrap().to_le_bytes());
        let mut offset = 0;
        for Tensor { description, data } in tensors {
            out.extend(*description);
            out.extend((offset as u64).to_le_bytes());
            offset += data.len().next_multiple_of(ALIGNMENT);
        }
        for Tensor { data, .. } in tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(&self.bytes[data.clone()]);
        }
        out
    }
}

/// The parts of a file. `counts` are the numbers of tensors of all parts but the last, which gets the others.
pub fn split(file: &[u8], counts: &[usize]) -> Vec<Vec<u8>> {
    let whole = Whole::read(file);
    let (mut rest, mut parts) = (whole.tensors.as_slice(), Vec::new());
    for number in 0..=counts.len() {
        let (own, others) = rest.split_at(counts.get(number).copied().unwrap_or(rest.len()));
        parts.push(whole.part((number, counts.len() + 1), own));
        rest = others;
    }
    parts
}

/// The names of the parts of a split file: `STEM-00001-of-00003.gguf` and so on.
pub fn names(stem: &str, count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("{stem}-{number:05}-of-{count:05}.gguf")).collect()
}

/// Writes the parts of [`split`] to a folder. Returns their paths.
pub fn write(folder: &Path, stem: &str, file: &[u8], counts: &[usize]) -> Vec<PathBuf> {
    fs::create_dir_all(folder).unwrap();
    let parts = split(file, counts);
    let paths: Vec<PathBuf> = names(stem, parts.len()).iter().map(|name| folder.join(name)).collect();
    paths.iter().zip(parts).for_each(|(path, part)| fs::write(path, part).unwrap());
    paths
}

/// Overwrites the value of a metadata key in a part.
pub fn set(part: &Path, key: &str, value: &[u8]) {
    let mut bytes = fs::read(part).unwrap();
    let at = bytes.windows(key.len()).position(|window| window == key.as_bytes()).unwrap() + key.len() + 4;
    bytes[at..at + value.len()].copy_from_slice(value);
    fs::write(part, bytes).unwrap();
}
