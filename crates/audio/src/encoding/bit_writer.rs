//! Bits, the most significant one first.

#[derive(Default)]
pub struct BitWriter {
    bytes: Vec<u8>,
    /// Bits that do not fill a byte yet, and how many.
    partial: u64,
    count: u32,
}

impl BitWriter {
    /// Writes the lowest `count` bits of `value`; at most 32.
    pub fn write(&mut self, value: u32, count: u32) {
        let mask = (1_u64 << count) - 1;
        self.partial = self.partial << count | u64::from(value) & mask;
        self.count += count;
        while self.count >= 8 {
            self.count -= 8;
            self.bytes.extend(u8::try_from(self.partial >> self.count & 0xFF));
        }
        self.partial &= (1 << self.count) - 1;
    }

    /// Writes a number as so many zeros and a one.
    pub fn write_unary(&mut self, mut zeros: u32) {
        while zeros >= 32 {
            self.write(0, 32);
            zeros -= 32;
        }
        self.write(1, zeros + 1);
    }

    /// Fills the last byte with zeros.
    pub fn align(&mut self) {
        if self.count > 0 {
            self.write(0, 8 - self.count);
        }
    }

    /// The whole bytes so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::BitWriter;

    #[test]
    fn bits_are_written_in_order() {
        let mut bits = BitWriter::default();
        bits.write(0b101, 3);
        bits.write(0xFFFF_FFFF, 32);
        bits.write(0, 0);
        bits.write_unary(3);
        bits.align();
        assert_eq!(bits.into_bytes(), [0b1011_1111, 0xFF, 0xFF, 0xFF, 0b1110_0010]);
        let mut bits = BitWriter::default();
        bits.write_unary(70);
        bits.align();
        assert_eq!(bits.into_bytes(), [0, 0, 0, 0, 0, 0, 0, 0, 0b0000_0010]);
    }
}
