//! FLAC (RFC 9639): 16 bits, mono, with fixed predictors, written block by block.
//!
//! The existing crate needs the whole signal before it writes the first byte.

use super::bit_writer::BitWriter;
use super::sample_bytes::{ENCODER_RATE, to_i16};

/// Samples of a block.
const BLOCK: usize = 4096;
const BITS: u32 = 16;
/// The highest order of the fixed predictors.
const MAX_ORDER: usize = 4;
/// Residuals of a block are coded in up to 2^5 parts.
const MAX_PARTITION_ORDER: u32 = 5;
/// The largest parameter of the Rice code with four bits.
const MAX_PARAMETER: u32 = 14;

/// Writes frames. The header comes before them.
#[derive(Default)]
pub struct FlacEncoder {
    pending: Vec<i32>,
    frames: u32,
}

/// How the residuals of a block are coded.
struct Residuals {
    order: usize,
    /// Mapped to numbers that are not negative.
    values: Vec<u32>,
    /// The Rice parameter of each part.
    parameters: Vec<u32>,
    bits: u64,
}

impl FlacEncoder {
    /// The signature and the block `STREAMINFO`. A length of 0 is unknown.
    pub fn header(samples: Option<u64>) -> Vec<u8> {
        let mut bits = BitWriter::default();
        for byte in *b"fLaC" {
            bits.write(byte.into(), 8);
        }
        // The last block of metadata, of type 0, of 34 bytes.
        bits.write(0x80, 8);
        bits.write(34, 24);
        let block = u32::try_from(BLOCK).unwrap_or_default();
        bits.write(block, 16);
        bits.write(block, 16);
        // The sizes of frames are unknown.
        bits.write(0, 24);
        bits.write(0, 24);
        bits.write(ENCODER_RATE, 20);
        // One channel.
        bits.write(0, 3);
        bits.write(BITS - 1, 5);
        let samples = samples.filter(|samples| *samples < 1 << 36).unwrap_or(0);
        bits.write(u32::try_from(samples >> 32).unwrap_or_default(), 4);
        bits.write(u32::try_from(samples & 0xFFFF_FFFF).unwrap_or_default(), 32);
        // The digest is unknown.
        for _ in 0..4 {
            bits.write(0, 32);
        }
        bits.into_bytes()
    }

    pub fn push(&mut self, samples: &[f32]) -> Vec<u8> {
        self.pending.extend(to_i16(samples).map(i32::from));
        let mut bytes = Vec::new();
        while self.pending.len() >= BLOCK {
            let rest = self.pending.split_off(BLOCK);
            let block = std::mem::replace(&mut self.pending, rest);
            bytes.extend(self.frame(&block));
        }
        bytes
    }

    pub fn finish(mut self) -> Vec<u8> {
        let block = std::mem::take(&mut self.pending);
        if block.is_empty() { Vec::new() } else { self.frame(&block) }
    }

    fn frame(&mut self, block: &[i32]) -> Vec<u8> {
        let mut bits = BitWriter::default();
        // Synchronisation, blocks of a fixed size.
        bits.write(0xFFF8, 16);
        // The size follows in 16 bits; 24 kHz.
        bits.write(0x77, 8);
        // Mono, 16 bits.
        bits.write(0x08, 8);
        write_number(&mut bits, self.frames);
        bits.write(u32::try_from(block.len() - 1).unwrap_or_default(), 16);
        let check = crc8(bits.bytes());
        bits.write(check, 8);
        subframe(&mut bits, block);
        bits.align();
        let check = crc16(bits.bytes());
        bits.write(check, 16);
        self.frames += 1;
        bits.into_bytes()
    }
}

/// The predictor whose residuals take the least space, or the samples as they are.
fn subframe(bits: &mut BitWriter, block: &[i32]) {
    if let Some(first) = block.first().filter(|first| block.iter().all(|sample| sample == *first)) {
        bits.write(0, 8);
        write_signed(bits, *first);
        return;
    }
    let orders = 0..=MAX_ORDER.min(block.len() - 1);
    let best = orders.map(|order| residuals(block, order)).min_by_key(|residuals| residuals.bits);
    match best.filter(|best| best.bits < block.len() as u64 * u64::from(BITS)) {
        Some(best) => write_residuals(bits, block, &best),
        None => {
            bits.write(1 << 1, 8);
            block.iter().for_each(|sample| write_signed(bits, *sample));
        }
    }
}

fn residuals(block: &[i32], order: usize) -> Residuals {
    let mut differences = block.to_vec();
    for _ in 0..order {
        differences = differences.windows(2).map(|pair| pair[1] - pair[0]).collect();
    }
    // Signs go to the lowest bit.
    let values: Vec<u32> = differences.iter().map(|value| (value << 1 ^ value >> 31).cast_unsigned()).collect();
    let partition_orders = 0..=MAX_PARTITION_ORDER;
    let possible = partition_orders
        .filter(|partition| block.len().is_multiple_of(1 << partition) && block.len() >> partition > order);
    let parameters = |partition: u32| -> (Vec<u32>, u64) {
        let length = block.len() >> partition;
        let first = values.get(..length - order).unwrap_or_default();
        let rest = values.get(length - order..).unwrap_or_default().chunks(length);
        let parts = [first].into_iter().chain(rest).map(best_parameter);
        parts.fold((Vec::new(), 0), |(mut parameters, bits), (parameter, more)| {
            parameters.push(parameter);
            (parameters, bits + more)
        })
    };
    let best = possible.map(parameters).min_by_key(|(_, bits)| *bits);
    let (parameters, bits) = best.unwrap_or((Vec::new(), u64::MAX / 2));
    Residuals { order, values, parameters, bits: bits + u64::from(BITS) * order as u64 }
}

/// The Rice parameter for these values, and the bits that they take.
fn best_parameter(values: &[u32]) -> (u32, u64) {
    let bits = |parameter: u32| -> u64 {
        4 + values.iter().map(|value| u64::from(value >> parameter) + 1 + u64::from(parameter)).sum::<u64>()
    };
    // The best one is near the logarithm of the mean.
    let sum: u64 = values.iter().map(|value| u64::from(*value)).sum();
    let mean = sum.checked_div(values.len() as u64).unwrap_or_default();
    let near = mean.checked_ilog2().unwrap_or_default().min(MAX_PARAMETER);
    let range = near.saturating_sub(1)..=(near + 1).min(MAX_PARAMETER);
    let best = range.map(|parameter| (parameter, bits(parameter))).min_by_key(|(_, bits)| *bits);
    best.unwrap_or_default()
}

fn write_residuals(bits: &mut BitWriter, block: &[i32], residuals: &Residuals) {
    let order = residuals.order;
    bits.write(0b0001_0000 | u32::try_from(order).unwrap_or_default() << 1, 8);
    block.iter().take(order).for_each(|sample| write_signed(bits, *sample));
    // Rice parameters of four bits.
    bits.write(0, 2);
    bits.write(residuals.parameters.len().ilog2(), 4);
    let length = block.len() / residuals.parameters.len();
    let mut values = residuals.values.iter();
    for (part, parameter) in residuals.parameters.iter().enumerate() {
        bits.write(*parameter, 4);
        let count = if part == 0 { length - order } else { length };
        for value in values.by_ref().take(count) {
            bits.write_unary(value >> parameter);
            bits.write(*value, *parameter);
        }
    }
}

fn write_signed(bits: &mut BitWriter, sample: i32) {
    bits.write(sample.cast_unsigned(), BITS);
}

/// A number in the encoding that UTF-8 was, of up to 31 bits.
fn write_number(bits: &mut BitWriter, number: u32) {
    if number < 0x80 {
        bits.write(number, 8);
        return;
    }
    // A sequence of `following` + 1 bytes has 6 bits in each that follows and 6 - `following` in the first.
    let following = (1..=5).find(|following| number >> (6 * following + 6 - following) == 0).unwrap_or(5);
    let mark = 0xFF << (7 - following) & 0xFF;
    bits.write(mark | number >> (6 * following), 8);
    for at in (0..following).rev() {
        bits.write(0x80 | number >> (6 * at) & 0x3F, 8);
    }
}

fn crc8(bytes: &[u8]) -> u32 {
    crc(bytes, 8, 0x07)
}

fn crc16(bytes: &[u8]) -> u32 {
    crc(bytes, 16, 0x8005)
}

fn crc(bytes: &[u8], width: u32, polynomial: u32) -> u32 {
    let mask = (1 << width) - 1;
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte) << (width - 8), |crc, _| {
            let shifted = crc << 1;
            if crc >> (width - 1) & 1 == 1 { (shifted ^ polynomial) & mask } else { shifted & mask }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{BitWriter, crc8, crc16, write_number};

    #[test]
    fn numbers_are_written_like_characters_of_utf8() {
        for number in [0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x1_0000, 0x10_FFFF] {
            let mut bits = BitWriter::default();
            write_number(&mut bits, number);
            if let Some(character) = char::from_u32(number) {
                assert_eq!(bits.into_bytes(), character.to_string().into_bytes());
            }
        }
        let mut bits = BitWriter::default();
        write_number(&mut bits, 0x7FFF_FFFF);
        assert_eq!(bits.into_bytes(), [0xFD, 0xBF, 0xBF, 0xBF, 0xBF, 0xBF]);
    }

    #[test]
    fn checksums_have_their_known_values() {
        assert_eq!(crc8(b"123456789"), 0xF4);
        assert_eq!(crc16(b"123456789"), 0xFEE8);
    }
}
