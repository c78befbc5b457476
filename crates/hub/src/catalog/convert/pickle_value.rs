//! The values that a pickled state dict consists of.

use std::rc::Rc;

use super::dtype::Dtype;

/// Max nesting of tuples; a state dict needs four levels.
const MAX_DEPTH: usize = 16;

/// A value on the stack of the pickle machine. Clones are cheap: they share their content.
#[derive(Clone, Debug)]
pub enum Value {
    None,
    Bool,
    Int(i64),
    Text(Rc<str>),
    Tuple(Tuple),
    Dict(Rc<Vec<(Rc<str>, Value)>>),
    Global(Global),
    Storage(Storage),
    Tensor(Rc<PickledTensor>),
}

/// A tuple, with how deeply it is nested, so that dropping it cannot exhaust the stack.
#[derive(Clone, Debug)]
pub struct Tuple {
    items: Rc<[Value]>,
    depth: usize,
}

/// A name that a state dict may refer to. It is never looked up or called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Global {
    OrderedDict,
    RebuildTensor,
    Storage(Dtype),
}

/// A file of elements that belongs to the checkpoint.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Digits.
    pub key: Rc<str>,
    pub dtype: Dtype,
    /// Number of elements.
    pub count: u64,
}

/// A view of a storage. Not checked yet.
#[derive(Debug)]
pub struct PickledTensor {
    pub storage: Storage,
    /// In elements.
    pub offset: u64,
    pub shape: Vec<u64>,
    pub strides: Vec<u64>,
}

impl Tuple {
    pub fn new(items: Vec<Value>) -> Result<Self, String> {
        // A tensor's empty dict of hooks is the only one.
        if items.iter().any(|item| item.entries().is_some_and(|entries| !entries.is_empty())) {
            return Err("has a dict in a tuple".into());
        }
        let depths = items.iter().map(|item| if let Value::Tuple(tuple) = item { tuple.depth + 1 } else { 0 });
        let depth = depths.max().unwrap_or(0);
        if depth > MAX_DEPTH {
            return Err("nests tuples too deeply".into());
        }
        Ok(Self { items: items.into(), depth })
    }

    pub fn items(&self) -> &[Value] {
        &self.items
    }
}

impl Global {
    /// The global of that name, if a state dict needs it.
    pub fn named(module: &str, name: &str) -> Option<Self> {
        match (module, name) {
            ("collections", "OrderedDict") => Some(Self::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Some(Self::RebuildTensor),
            ("torch", "HalfStorage") => Some(Self::Storage(Dtype::F16)),
            ("torch", "FloatStorage") => Some(Self::Storage(Dtype::F32)),
            _ => None,
        }
    }
}

impl Value {
    /// The entries of a dict.
    pub fn entries(&self) -> Option<&[(Rc<str>, Value)]> {
        if let Self::Dict(entries) = self { Some(entries) } else { None }
    }

    /// The value of a key of a dict.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries()?.iter().find(|(name, _)| &**name == key).map(|(_, value)| value)
    }

    /// A number that is not negative.
    pub fn count(&self) -> Option<u64> {
        if let Self::Int(value) = self { u64::try_from(*value).ok() } else { None }
    }

    /// A tuple of at most `max` numbers that are not negative.
    pub fn counts(&self, max: usize) -> Option<Vec<u64>> {
        let Self::Tuple(tuple) = self else { return None };
        if tuple.items().len() > max {
            return None;
        }
        tuple.items().iter().map(Value::count).collect()
    }
}
