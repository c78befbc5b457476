//! 8-bit floats, FP8 (Micikevicius et al. 2022, "FP8 Formats for Deep Learning", <https://arxiv.org/abs/2209.05433>).

use half::f16;

/// The bits of the exponent and of the mantissa; one more is the sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8Format {
    E4M3,
    E5M2,
}

impl Fp8Format {
    /// The format of the numbers of a type of safetensors.
    pub fn named(dtype: &str) -> Option<Self> {
        match dtype {
            "F8_E4M3" => Some(Self::E4M3),
            "F8_E5M2" => Some(Self::E5M2),
            _ => None,
        }
    }

    /// The values of all 256 codes.
    pub fn numbers(self) -> [f32; 256] {
        std::array::from_fn(|code| self.number(code as u8))
    }

    fn number(self, code: u8) -> f32 {
        match self {
            Self::E4M3 => e4m3(code),
            // The first half of a float of 16 bits.
            Self::E5M2 => f16::from_bits(u16::from(code) << 8).to_f32(),
        }
    }
}

/// There are no infinities, and one code of each sign is not a number.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (code & 0x7f, exponent) {
        (0x7f, _) => f32::NAN,
        (_, 0) => mantissa * 2f32.powi(-9),
        _ => (1. + mantissa / 8.) * 2f32.powi(exponent - 7),
    };
    if code < 0x80 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use outpost_testing::fixtures::fixture;

    use super::*;
    use crate::safetensors::ModelFolder;
    use crate::weights::Weights;

    /// The bits of a number; all that are not numbers have the same.
    fn bits(number: f32) -> u32 {
        if number.is_nan() { f32::NAN.to_bits() } else { number.to_bits() }
    }

    #[test]
    fn all_codes_have_the_numbers_of_torch() {
        let reference = ModelFolder::open_file(&fixture("fp8.safetensors")).unwrap();
        for (format, not_numbers) in [(Fp8Format::E4M3, 2), (Fp8Format::E5M2, 6)] {
            let expected = reference.rows(&format!("{format:?}"), 0, 256).unwrap().floats().unwrap();
            let found = format.numbers();
            assert!(found.iter().copied().map(bits).eq(expected.iter().copied().map(bits)), "{format:?}: {found:?}");
            assert_eq!(found.iter().filter(|number| number.is_nan()).count(), not_numbers, "{format:?}");
        }
        assert_eq!((Fp8Format::E4M3.numbers()[0x7e], Fp8Format::E4M3.numbers()[1]), (448., 2f32.powi(-9)));
    }
}
