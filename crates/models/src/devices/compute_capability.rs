//! Which cards can run code that is compiled for a compute capability.
//!
//! candle compiles its quantized kernels to machine code for one compute capability, and the build takes most of its
//! time there. A card that cannot run the code is refused at the start, because the first kernel would fail otherwise.

/// Whether machine code for `compiled`, such as `80`, `90a` or `121f`, runs on a card of the capability `major.minor`.
///
/// NVIDIA's rules: code runs on cards of the same major and no smaller minor version; with the suffix `a` on exactly that
/// capability; with `f` within the family, which is the same rule as without a suffix.
pub fn runs_on(compiled: &str, (major, minor): (u32, u32)) -> bool {
    let Some((compiled_major, compiled_minor)) = split(compiled) else { return false };
    let is_exact = compiled.ends_with('a');
    major == compiled_major && if is_exact { minor == compiled_minor } else { minor >= compiled_minor }
}

/// `90a` as `9.0`.
pub fn display(compiled: &str) -> String {
    split(compiled).map_or_else(|| compiled.to_owned(), |(major, minor)| format!("{major}.{minor}"))
}

fn split(compiled: &str) -> Option<(u32, u32)> {
    let number: u32 = compiled.trim_end_matches(['a', 'f']).parse().ok()?;
    Some((number / 10, number % 10))
}

#[cfg(test)]
mod tests {
    use super::{display, runs_on};

    #[test]
    fn code_runs_on_cards_of_its_generation_that_are_not_older() {
        let cases = [
            ("80", vec![(8, 0), (8, 6), (8, 9)], vec![(7, 5), (9, 0), (12, 0)]),
            ("86", vec![(8, 6), (8, 9)], vec![(8, 0), (9, 0)]),
            ("90a", vec![(9, 0)], vec![(8, 9), (10, 0)]),
            ("120a", vec![(12, 0)], vec![(12, 1), (10, 0)]),
            ("121f", vec![(12, 1)], vec![(12, 0)]),
            ("", vec![], vec![(0, 0), (8, 0)]),
        ];
        for (compiled, good, bad) in cases {
            assert!(good.iter().all(|card| runs_on(compiled, *card)), "{compiled}");
            assert!(!bad.iter().any(|card| runs_on(compiled, *card)), "{compiled}");
        }
    }

    #[test]
    fn capabilities_are_displayed_as_nvidia_writes_them() {
        assert_eq!([display("80"), display("90a"), display("120a")], ["8.0", "9.0", "12.0"]);
    }
}
