//! Reads `model.bin` of CTranslate2, version 6: a header, variables with their elements, and aliases of variables.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use super::dtype::Dtype;
use super::tensor::{MAX_RANK, Tensor};

const VERSION: u32 = 6;
const MAX_VARIABLES: u32 = 1 << 16;
const MAX_NAME_BYTES: u16 = 1024;

/// A model file, without the elements of its tensors.
#[derive(Debug)]
pub struct Ctranslate2Model {
    /// The type of the model, such as `WhisperSpec`.
    pub specification: String,
    /// Tensors of floating-point numbers.
    pub tensors: BTreeMap<String, Tensor>,
    /// Settings: integers without dimensions.
    pub settings: BTreeMap<String, i64>,
    /// `(new name, name of the variable)`.
    pub aliases: Vec<(String, String)>,
}

impl Ctranslate2Model {
    /// Reads the file's structure.
    ///
    /// # Errors
    /// If it is truncated or malformed, or has tensors of other types than f16 and f32.
    pub fn read(path: &Path) -> Result<Self, String> {
        let file = File::open(path).map_err(|e| format!("cannot be read: {e}"))?;
        let length = file.metadata().map_err(|e| format!("cannot be read: {e}"))?.len();
        let mut reader = Reader { file: BufReader::new(file), at: 0, length };
        let version = reader.u32()?;
        if version != VERSION {
            return Err(format!("is of version {version} of the format; version {VERSION} is supported"));
        }
        let specification = reader.text()?;
        let _revision = reader.u32()?;
        let mut model =
            Self { specification, tensors: BTreeMap::new(), settings: BTreeMap::new(), aliases: Vec::new() };
        for _ in 0..reader.count()? {
            model.read_variable(&mut reader)?;
        }
        for _ in 0..reader.count()? {
            model.aliases.push((reader.text()?, reader.text()?));
        }
        match reader.at == length {
            true => Ok(model),
            false => Err("has data after its end".into()),
        }
    }

    fn read_variable(&mut self, reader: &mut Reader) -> Result<(), String> {
        let name = reader.text()?;
        let rank = usize::from(reader.u8()?);
        if rank > MAX_RANK {
            return Err(format!("has the variable {name} with {rank} dimensions"));
        }
        let shape = (0..rank).map(|_| reader.u32().map(u64::from)).collect::<Result<Vec<_>, _>>()?;
        let (kind, bytes) = (reader.u8()?, u64::from(reader.u32()?));
        let start = reader.at;
        let end = start.checked_add(bytes).filter(|end| *end <= reader.length).ok_or("is truncated")?;
        let twice = match (kind, shape.is_empty(), bytes) {
            (1..=3, true, 1 | 2 | 4) => self.settings.insert(name.clone(), reader.int(bytes)?).is_some(),
            (0 | 4, _, _) => {
                let dtype = if kind == 0 { Dtype::F32 } else { Dtype::F16 };
                let tensor =
                    Tensor::contiguous(dtype, shape, start, end).map_err(|why| format!("has {name}, which {why}"))?;
                if tensor.bytes() != bytes {
                    return Err(format!("has {name} with {bytes} bytes instead of {}", tensor.bytes()));
                }
                self.tensors.insert(name.clone(), tensor).is_some()
            }
            _ => return Err(format!("has the variable {name} of type {kind}; weights in f16 and f32 are supported")),
        };
        reader.skip_to(end)?;
        if twice { Err(format!("has the variable {name} twice")) } else { Ok(()) }
    }
}

struct Reader {
    file: BufReader<File>,
    at: u64,
    length: u64,
}

impl Reader {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes).map_err(|_| "is truncated")?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn u8(&mut self) -> Result<u8, String> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn count(&mut self) -> Result<u32, String> {
        let count = self.u32()?;
        if count <= MAX_VARIABLES { Ok(count) } else { Err(format!("claims to have {count} variables")) }
    }

    /// A signed number of 1, 2 or 4 bytes.
    fn int(&mut self, bytes: u64) -> Result<i64, String> {
        match bytes {
            1 => self.array().map(|bytes| i8::from_le_bytes(bytes).into()),
            2 => self.array().map(|bytes| i16::from_le_bytes(bytes).into()),
            _ => self.array().map(|bytes| i32::from_le_bytes(bytes).into()),
        }
    }

    /// A text that ends with a zero byte, after its length.
    fn text(&mut self) -> Result<String, String> {
        let length = self.array().map(u16::from_le_bytes)?;
        if !(1..=MAX_NAME_BYTES).contains(&length) {
            return Err("has a name of an impossible length".into());
        }
        let mut bytes = vec![0; usize::from(length)];
        self.file.read_exact(&mut bytes).map_err(|_| "is truncated")?;
        self.at += u64::from(length);
        let text = bytes.strip_suffix(&[0]).and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.map(str::to_owned).ok_or_else(|| "has a malformed name".into())
    }

    fn skip_to(&mut self, end: u64) -> Result<(), String> {
        self.file.seek(SeekFrom::Start(end)).map_err(|e| format!("cannot be read: {e}"))?;
        self.at = end;
        Ok(())
    }
}
