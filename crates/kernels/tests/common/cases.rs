//! Random test inputs. proptest draws the shapes, so that it can shrink them. Values come from a seed.

use outpost_kernels::{Isa, Pool};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use crate::rng::Rng;

/// A configuration with `cases` cases, or with the number in `PROPTEST_CASES`. Failed cases are stored in `file` and run
/// first.
pub fn config(cases: u32, file: &'static str) -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases_from_env = std::env::var_os("PROPTEST_CASES").map(|_| default.cases);
    // Miri is a thousand times slower and has no access to files.
    let (cases, persistence) =
        if cfg!(miri) { (4, FileFailurePersistence::Off) } else { (cases, FileFailurePersistence::Direct(file)) };
    ProptestConfig {
        cases: cases_from_env.unwrap_or(cases),
        failure_persistence: Some(Box::new(persistence)),
        ..default
    }
}

/// A pool for each instruction set of this CPU.
pub fn pools(threads: usize) -> impl Iterator<Item = Pool> {
    Isa::available().into_iter().map(move |isa| Pool::with_isa(threads, isa))
}

/// A distribution of random values.
#[derive(Clone, Copy, Debug)]
pub enum Distribution {
    Normal,
    /// Mostly zeros.
    Sparse,
    /// One magnitude with random signs, which takes integer sums to their limits.
    Signs,
    /// Magnitudes from thousandths to thousands.
    Wide,
}

pub fn distribution() -> impl Strategy<Value = Distribution> {
    prop_oneof![3 => Just(Distribution::Normal), 1 => Just(Distribution::Sparse), 1 => Just(Distribution::Signs), 1 => Just(Distribution::Wide)]
}

/// `count` random values.
pub fn random_values(rng: &mut Rng, distribution: Distribution, count: usize) -> Vec<f32> {
    let mut value = || match distribution {
        Distribution::Normal => rng.normal(),
        Distribution::Sparse if rng.unit() > 0.05 => 0.0,
        Distribution::Sparse => rng.normal(),
        Distribution::Signs => {
            if rng.unit() < 0.5 {
                0.7
            } else {
                -0.7
            }
        }
        Distribution::Wide => rng.normal() * 10f32.powf(rng.unit() * 6.0 - 3.0),
    };
    (0..count).map(|_| value()).collect()
}
