//! Writes to KV blocks on every instruction set of this CPU: slots and converted values.

#[path = "common/rng.rs"]
mod rng;

use half::{bf16, f16};
use outpost_kernels::{BLOCK_POSITIONS, Isa, KvBlockMut, KvPair, KvWrite, Pool, kv_write, quantise_q8};
use rng::Rng;

const HEADS: usize = 3;

/// Values of blocks, each `[keys and values, HEADS * width * 16]`.
type KvBlocks<T> = Vec<[Vec<T>; 2]>;

fn blocks<T: Clone>(count: usize, size: usize, value: T) -> KvBlocks<T> {
    (0..count).map(|_| [vec![value.clone(); size], vec![value.clone(); size]]).collect()
}

/// Rows of a step: block, first slot and count.
const FILLS: [(usize, usize, usize); 4] = [(2, 5, 1), (0, 0, 16), (3, 0, 7), (1, 9, 7)];

fn fills<'a>(cells: impl Iterator<Item = KvBlockMut<'a>>) -> Vec<KvWrite<'a>> {
    let mut cells: Vec<_> = cells.map(Some).collect();
    let (mut row, mut fills) = (0, Vec::new());
    for (block, slot, count) in FILLS {
        fills.extend(cells[block].take().map(|cells| KvWrite { cells, row, slot, count }));
        row += count;
    }
    fills
}

/// Calls `check` with each written value; returns how many there are.
fn each(width: usize, mut check: impl FnMut(usize, [usize; 2], usize)) {
    let mut first = 0;
    for (block, slot, count) in FILLS {
        for (index, head) in (0..count).flat_map(|index| (0..HEADS).map(move |head| (index, head))) {
            for at in 0..width {
                let key = (head * width + at) * BLOCK_POSITIONS + slot + index;
                let value = (head * BLOCK_POSITIONS + slot + index) * width + at;
                check(block, [key, value], ((first + index) * HEADS + head) * width + at);
            }
        }
        first += count;
    }
}

#[test]
fn rows_come_to_their_places_and_to_no_others() {
    let mut rng = Rng(1);
    for (width, isa) in
        [64, 80, 7, 16].into_iter().flat_map(|width| Isa::available().into_iter().map(move |isa| (width, isa)))
    {
        let pool = Pool::with_isa(2, isa);
        let (rows, size) = (31, HEADS * width * BLOCK_POSITIONS);
        let mut keys: Vec<f32> = (0..rows * HEADS * width).map(|_| rng.normal()).collect();
        keys.iter_mut().zip([70_000.0, -1e-7, 6e-8, f32::INFINITY, 65_519.0, -0.0]).for_each(|(x, edge)| *x = edge);
        let values: Vec<f32> = (0..rows * HEADS * width).map(|_| rng.normal()).collect();

        let mut floats = blocks(4, size, f32::NAN);
        let cells = floats.iter_mut().map(|[keys, values]| KvBlockMut::F32(KvPair { keys, values }));
        kv_write(&pool, [HEADS, width], &keys, &values, &mut fills(cells));
        let mut halves = blocks(4, size, f16::NAN);
        let cells = halves.iter_mut().map(|[keys, values]| KvBlockMut::F16(KvPair { keys, values }));
        kv_write(&pool, [HEADS, width], &keys, &values, &mut fills(cells));
        each(width, |block, [key, value], from| {
            let ([k, v], [hk, hv]) = (&mut floats[block], &mut halves[block]);
            assert_eq!([k[key], v[value]], [keys[from], values[from]], "{isa:?}");
            let expected = [keys[from], values[from]].map(|x| f16::from_f32(x).to_bits());
            assert_eq!([hk[key], hv[value]].map(f16::to_bits), expected, "{isa:?}");
            (k[key], v[value], hk[key], hv[value]) = (f32::NAN, f32::NAN, f16::NAN, f16::NAN);
        });
        assert!(floats.iter().flatten().flatten().all(|x| x.is_nan()), "nothing else was written");
        assert!(halves.iter().flatten().flatten().all(|x| x.is_nan()), "nothing else was written");

        keys[3] = 1.0; // Infinity has no bytes.
        let (mut bytes, mut factors) = (blocks(4, size, 99i8), blocks(4, HEADS * BLOCK_POSITIONS, f32::NAN));
        let cells = bytes.iter_mut().zip(&mut factors).map(|([keys, values], [key_factors, value_factors])| {
            KvBlockMut::Q8(KvPair { keys: (keys, key_factors), values: (values, value_factors) })
        });
        kv_write(&pool, [HEADS, width], &keys, &values, &mut fills(cells));
        let mut expected = [vec![0i8; width], vec![0i8; width]];
        let mut scales = [0f32; 2];
        each(width, |block, [key, value], from| {
            let (row, at) = (from / width * width, from % width);
            if at == 0 {
                scales = [
                    quantise_q8(&keys[row..row + width], &mut expected[0]),
                    quantise_q8(&values[row..row + width], &mut expected[1]),
                ];
                let (head, slot) = (key / BLOCK_POSITIONS / width, key % BLOCK_POSITIONS);
                let place = head * BLOCK_POSITIONS + slot;
                assert_eq!([factors[block][0][place], factors[block][1][place]], scales, "{isa:?}");
            }
            let [k, v] = &mut bytes[block];
            assert_eq!([k[key], v[value]], [expected[0][at], expected[1][at]], "{isa:?}");
            (k[key], v[value]) = (99, 99);
        });
        assert!(bytes.iter().flatten().flatten().all(|x| *x == 99), "nothing else was written");
    }
}

#[test]
fn pairs_come_to_their_places_and_to_no_others() {
    let mut rng = Rng(2);
    for (width, isa) in
        [64, 40, 6].into_iter().flat_map(|width| Isa::available().into_iter().map(move |isa| (width, isa)))
    {
        let pool = Pool::with_isa(2, isa);
        let [keys, values] = [(); 2].map(|()| -> Vec<f32> { (0..31 * HEADS * width).map(|_| rng.normal()).collect() });
        let mut pairs = blocks(4, HEADS * width * BLOCK_POSITIONS, bf16::NAN);
        let cells = pairs.iter_mut().map(|[keys, values]| KvBlockMut::Bf16(KvPair { keys, values }));
        kv_write(&pool, [HEADS, width], &keys, &values, &mut fills(cells));
        each(width, |block, [key, value], from| {
            let (head, at, slot) =
                (key / BLOCK_POSITIONS / width, key / BLOCK_POSITIONS % width, key % BLOCK_POSITIONS);
            assert_eq!(value, (head * BLOCK_POSITIONS + slot) * width + at);
            let start = head * BLOCK_POSITIONS * width;
            let key = start + at / 2 * 2 * BLOCK_POSITIONS + 2 * slot + at % 2;
            let value = start + slot / 2 * 2 * width + 2 * at + slot % 2;
            let [k, v] = &mut pairs[block];
            assert_eq!([k[key], v[value]], [keys[from], values[from]].map(bf16::from_f32), "{isa:?}");
            (k[key], v[value]) = (bf16::NAN, bf16::NAN);
        });
        assert!(pairs.iter().flatten().flatten().all(|x| x.is_nan()), "nothing else was written");
    }
}

#[test]
fn many_rows_are_shared_among_threads() {
    let (pool, width, count) = (Pool::new(3), 64, 100);
    let rows: Vec<f32> = (0..count * BLOCK_POSITIONS * HEADS * width).map(|at| at as f32).collect();
    let mut floats = blocks(count, HEADS * width * BLOCK_POSITIONS, 0f32);
    let mut all: Vec<KvWrite<'_>> = floats
        .iter_mut()
        .enumerate()
        .map(|(index, [keys, values])| KvWrite {
            cells: KvBlockMut::F32(KvPair { keys, values }),
            row: index * BLOCK_POSITIONS,
            slot: 0,
            count: BLOCK_POSITIONS,
        })
        .collect();
    kv_write(&pool, [HEADS, width], &rows, &rows, &mut all);
    for (index, [keys, values]) in floats.iter().enumerate() {
        for (slot, head) in (0..BLOCK_POSITIONS).flat_map(|slot| (0..HEADS).map(move |head| (slot, head))) {
            let row = &rows[((index * BLOCK_POSITIONS + slot) * HEADS + head) * width..][..width];
            assert_eq!(&values[(head * BLOCK_POSITIONS + slot) * width..][..width], row);
            assert!(row.iter().enumerate().all(|(at, x)| keys[(head * width + at) * BLOCK_POSITIONS + slot] == *x));
        }
    }
}
