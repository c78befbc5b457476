//! Building blocks of random cases. Shapes come from proptest, which can shrink them; the values come from a seed.

use outpost_kernels::{Isa, Pool};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use crate::rng::Rng;

/// `cases` cases, or as many as proptest's own variable asks for; cases that failed before are stored in `file` and tried
/// first.
pub fn config(cases: u32, file: &'static str) -> ProptestConfig {
    let default = ProptestConfig::default();
    let asked = std::env::var_os("PROPTEST_CASES").map(|_| default.cases);
    // Miri takes a thousand times as long, and shows no files.
    let (few, kept) =
        if cfg!(miri) { (4, FileFailurePersistence::Off) } else { (cases, FileFailurePersistence::Direct(file)) };
    ProptestConfig { cases: asked.unwrap_or(few), failure_persistence: Some(Box::new(kept)), ..default }
}

/// A pool for each instruction set of this CPU.
pub fn pools(threads: usize) -> impl Iterator<Item = Pool> {
    Isa::available().into_iter().map(move |isa| Pool::with_isa(threads, isa))
}

/// Distributions of values.
#[derive(Clone, Copy, Debug)]
pub enum Spread {
    Normal,
    /// A few values among zeros.
    Sparse,
    /// A single magnitude, which takes integers to their limits.
    Signs,
    /// From thousandths to thousands.
    Wide,
}

pub fn spread() -> impl Strategy<Value = Spread> {
    prop_oneof![3 => Just(Spread::Normal), 1 => Just(Spread::Sparse), 1 => Just(Spread::Signs), 1 => Just(Spread::Wide)]
}

pub fn numbers(rng: &mut Rng, spread: Spread, count: usize) -> Vec<f32> {
    let mut number = || match spread {
        Spread::Normal => rng.normal(),
        Spread::Sparse if rng.unit() > 0.05 => 0.0,
        Spread::Sparse => rng.normal(),
        Spread::Signs => {
            if rng.unit() < 0.5 {
                0.7
            } else {
                -0.7
            }
        }
        Spread::Wide => rng.normal() * 10f32.powf(rng.unit() * 6.0 - 3.0),
    };
    (0..count).map(|_| number()).collect()
}
