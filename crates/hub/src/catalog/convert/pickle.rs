//! Reads the pickle of a PyTorch state dict, and nothing else.
//!
//! A pickle is a program for a stack machine. In Python it can import any module and call any function. Here only the
//! instructions exist that `torch.save` (protocol 2) writes for dicts of numbers and tensors. The four names that such
//! a file refers to are constants, "calls" of them only build values, and any other name or instruction is refused.

use std::collections::HashMap;
use std::rc::Rc;

use super::pickle_value::{Global, PickledTensor, Storage, Tuple, Value};
use super::tensor::MAX_RANK;

/// Max bytes of a pickle; that of large-v3 has about 200 kB.
pub const MAX_BYTES: u64 = 16 << 20;
const PROTOCOL: u8 = 2;

/// Reads a pickle.
///
/// # Errors
/// If it is truncated or malformed, or does anything but describe a dict of numbers and tensors.
pub fn read(bytes: &[u8]) -> Result<Value, String> {
    let mut machine = Machine { rest: bytes, stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() };
    if machine.byte()? != 0x80 || machine.byte()? != PROTOCOL {
        return Err(format!("is no pickle of protocol {PROTOCOL}"));
    }
    loop {
        if let Some(value) = machine.step()? {
            return Ok(value);
        }
    }
}

struct Machine<'p> {
    rest: &'p [u8],
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
}

impl Machine<'_> {
    /// Runs one instruction; returns the result at the last.
    fn step(&mut self) -> Result<Option<Value>, String> {
        let code = self.byte()?;
        match code {
            b'.' => return self.finish().map(Some),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.stack.push(Value::None),
            0x88 | 0x89 => self.stack.push(Value::Bool),
            b'K' => self.push_int(1)?,
            b'M' => self.push_int(2)?,
            b'J' => self.push_int(4)?,
            0x8a => self.push_long()?,
            b'X' => self.push_text()?,
            b'}' => self.stack.push(Value::Dict(Rc::default())),
            b')' => self.push_tuple(0)?,
            0x85 => self.push_tuple(1)?,
            0x86 => self.push_tuple(2)?,
            0x87 => self.push_tuple(3)?,
            b't' => {
                let count = self.since_mark()?;
                self.push_tuple(count)?;
            }
            b's' => self.set_items(2)?,
            b'u' => {
                let count = self.since_mark()?;
                self.set_items(count)?;
            }
            b'q' | b'r' => self.memoize(code == b'q')?,
            b'h' | b'j' => self.recall(code == b'h')?,
            b'c' => self.push_global()?,
            b'Q' => self.push_storage()?,
            b'R' => self.build()?,
            other => return Err(format!("has the pickle instruction 0x{other:02x}, which no state dict needs")),
        }
        Ok(None)
    }

    fn finish(&mut self) -> Result<Value, String> {
        let value = self.pop()?;
        match self.stack.is_empty() && self.marks.is_empty() && self.rest.is_empty() {
            true => Ok(value),
            false => Err("has data after the end of its pickle".into()),
        }
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.take(1).map(|bytes| bytes.first().copied().unwrap_or_default())
    }

    fn take(&mut self, count: usize) -> Result<&[u8], String> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or("has a truncated pickle")?;
        self.rest = rest;
        Ok(taken)
    }

    /// An unsigned little-endian number; signed if it has four bytes.
    fn push_int(&mut self, size: usize) -> Result<(), String> {
        let bytes = self.take(size)?;
        let value = match *bytes {
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
            _ => bytes.iter().rev().fold(0, |value, byte| value << 8 | i64::from(*byte)),
        };
        self.stack.push(Value::Int(value));
        Ok(())
    }

    fn push_long(&mut self) -> Result<(), String> {
        let size = usize::from(self.byte()?);
        let bytes = self.take(size)?;
        if size > 8 {
            return Err("has a number of more than 64 bits".into());
        }
        let negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
        let start = if negative { -1 } else { 0 };
        let value = bytes.iter().rev().fold(start, |value, byte| value << 8 | i64::from(*byte));
        self.stack.push(Value::Int(value));
        Ok(())
    }

    fn push_text(&mut self) -> Result<(), String> {
        let length = self.number(4)?;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| "has a text that is not UTF-8")?.into();
        self.stack.push(Value::Text(text));
        Ok(())
    }

    fn number(&mut self, size: usize) -> Result<usize, String> {
        let bytes = self.take(size)?;
        let value = bytes.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        usize::try_from(value).map_err(|_| "has a number that is too large".into())
    }

    fn pop(&mut self) -> Result<Value, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err("takes a value from an empty stack".into());
        }
        self.stack.pop().ok_or_else(|| "takes a value from an empty stack".into())
    }

    /// Removes the newest mark; returns the number of values above it.
    fn since_mark(&mut self) -> Result<usize, String> {
        let mark = self.marks.pop().ok_or("uses a mark that it has not set")?;
        Ok(self.stack.len().saturating_sub(mark))
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<Value>, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let start = self.stack.len().checked_sub(count).filter(|start| *start >= floor);
        Ok(self.stack.split_off(start.ok_or("takes a value from an empty stack")?))
    }

    fn push_tuple(&mut self, count: usize) -> Result<(), String> {
        let items = self.pop_many(count)?;
        self.stack.push(Value::Tuple(Tuple::new(items)?));
        Ok(())
    }

    /// Adds keys and values to the dict below them.
    fn set_items(&mut self, count: usize) -> Result<(), String> {
        let mut items = self.pop_many(count)?.into_iter();
        let Value::Dict(mut entries) = self.pop()? else {
            return Err("sets items of something that is no dict".into());
        };
        // The memo has the dict as it was when it was empty, and a state dict never refers to it again.
        let added = Rc::make_mut(&mut entries);
        while let Some(key) = items.next() {
            let (Value::Text(key), Some(value)) = (key, items.next()) else {
                return Err("has a dict whose keys are not texts".into());
            };
            // Two levels, so that dropping it cannot exhaust the stack.
            let dicts = |value: &Value| {
                value.entries().is_some_and(|inner| inner.iter().any(|(_, value)| value.entries().is_some()))
            };
            if dicts(&value) {
                return Err("nests dicts too deeply".into());
            }
            added.push((key, value));
        }
        self.stack.push(Value::Dict(entries));
        Ok(())
    }

    fn memoize(&mut self, short: bool) -> Result<(), String> {
        let index = self.index(short)?;
        match self.stack.last() {
            Some(Value::Dict(_)) => {}
            Some(value) => drop(self.memo.insert(index, value.clone())),
            None => return Err("takes a value from an empty stack".into()),
        }
        Ok(())
    }

    fn recall(&mut self, short: bool) -> Result<(), String> {
        let index = self.index(short)?;
        let value = self.memo.get(&index).ok_or("refers to a value that it has not stored")?.clone();
        self.stack.push(value);
        Ok(())
    }

    fn index(&mut self, short: bool) -> Result<u32, String> {
        let index = self.number(if short { 1 } else { 4 })?;
        u32::try_from(index).map_err(|_| "has a number that is too large".into())
    }

    fn push_global(&mut self) -> Result<(), String> {
        let (module, name) = (self.line()?, self.line()?);
        let refused = || format!("refers to '{module}.{name}', which no state dict needs; nothing of it was run");
        self.stack.push(Value::Global(Global::named(&module, &name).ok_or_else(refused)?));
        Ok(())
    }

    fn line(&mut self) -> Result<String, String> {
        let end = self.rest.iter().take(256).position(|byte| *byte == b'\n').ok_or("has a truncated name")?;
        let line = String::from_utf8_lossy(self.take(end)?).into_owned();
        self.take(1)?;
        Ok(line)
    }

    /// A persistent ID: `("storage", type, key, location, count)`.
    fn push_storage(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let Value::Tuple(id) = &id else { return Err("has a storage that is no tuple".into()) };
        let [Value::Text(kind), Value::Global(Global::Storage(dtype)), Value::Text(key), Value::Text(_), count] =
            id.items()
        else {
            return Err("has a storage of an unknown form".into());
        };
        let plain = !key.is_empty() && key.len() <= 9 && key.bytes().all(|byte| byte.is_ascii_digit());
        let (true, true, Some(count)) = (&**kind == "storage", plain, count.count()) else {
            return Err("has a storage of an unknown form".into());
        };
        self.stack.push(Value::Storage(Storage { key: key.clone(), dtype: *dtype, count }));
        Ok(())
    }

    /// Builds what a "call" stands for: an empty dict, or a tensor.
    fn build(&mut self) -> Result<(), String> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let (Value::Global(callee), Value::Tuple(arguments)) = (&callee, &arguments) else {
            return Err("calls something that is no known name".into());
        };
        let built = match (callee, arguments.items()) {
            (Global::OrderedDict, []) => Value::Dict(Rc::default()),
            (Global::RebuildTensor, [Value::Storage(storage), offset, shape, strides, Value::Bool, Value::Dict(_)]) => {
                // A few bytes can name a tuple of any length, again and again.
                let numbers = (offset.count(), shape.counts(MAX_RANK), strides.counts(MAX_RANK));
                let (Some(offset), Some(shape), Some(strides)) = numbers else {
                    return Err("has a tensor of an unknown form".into());
                };
                Value::Tensor(Rc::new(PickledTensor { storage: storage.clone(), offset, shape, strides }))
            }
            _ => return Err("has a tensor of an unknown form".into()),
        };
        self.stack.push(built);
        Ok(())
    }
}
