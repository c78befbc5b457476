//! Writes to KV blocks on every instruction set of this CPU: slots and converted values.

#[path = "common/rng.rs"]
mod rng;

use half::{bf16, f16};
use outpost_kernels::{BLOCK_POSITIONS, Isa, KvBlockMut, KvPair, KvWrite, Pool, kv_write, quantise_q8};
use rng::Rng;

const HEADS: usize = 3;

/// Keys and values of blocks, `[blocks, 2, HEADS * width * 16]`.
type KvBlocks<T> = Vec<[Vec<T>; 2]>;

fn blocks<T: Clone>(count: usize, size: usize, value: T) -> KvBlocks<T> {
    (0..count).map(|_| [vec![value.clone(); size], vec![value.clone(); size]]).collect()
}

/// Writes of a step: block, first slot and number of rows.
const WRITES: [(usize, usize, usize); 4] = [(2, 5, 1), (0, 0, 16), (3, 0, 7), (1, 9, 7)];

fn writes<'a>(blocks: impl Iterator<Item = KvBlockMut<'a>>) -> Vec<KvWrite<'a>> {
    let mut blocks: Vec<_> = blocks.map(Some).collect();
    let (mut row, mut writes) = (0, Vec::new());
    for (block, slot, count) in WRITES {
        writes.extend(blocks[block].take().map(|block| KvWrite { block, row, slot, count }));
        row += count;
    }
    writes
}

/// Calls `check` for each written element with the block, the indices of key and value in it, and the index in the
/// rows.
fn for_each_element(width: usize, mut check: impl FnMut(usize, [usize; 2], usize)) {
    let mut first = 0;
    for (block, slot, count) in WRITES {
        for (index, head) in (0..count).flat_map(|index| (0..HEADS).map(move |head| (index, head))) {
            for element in 0..width {
                let key = (head * width + element) * BLOCK_POSITIONS + slot + index;
                let value = (head * BLOCK_POSITIONS + slot + index) * width + element;
                check(block, [key, value], ((first + index) * HEADS + head) * width + element);
            }
        }
        first += count;
    }
}

#[test]
fn rows_are_written_to_their_slots_only() {
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
        let views = floats.iter_mut().map(|[keys, values]| KvBlockMut::F32(KvPair { keys, values }));
        kv_write(&pool, [HEADS, width], &keys, &values, &mut writes(views));
        let mut halves = blocks(4, size, f16::NAN);
        let views = halves.iter_mut().map(|[keys, values]| KvBlockMut::F16(KvPair { keys, values }));
        kv_write(&pool, [HEADS, width], &keys, &values, &mut writes(views));
        for_each_element(width, |block, [key, value], row_index| {
            let ([k, v], [hk, hv]) = (&mut floats[block], &mut halves[block]);
            assert_eq!([k[key], v[value]], [keys[row_index], values[row_index]], "{isa:?}");
            let expected = [keys[row_index], values[row_index]].map(|x| f16::from_f32(x).to_bits());
            assert_eq!([hk[key], hv[value]].map(f16::to_bits), expected, "{isa:?}");
            (k[key], v[value], hk[key], hv[value]) = (f32::NAN, f32::NAN, f16::NAN, f16::NAN);
        });
        assert!(floats.iter().flatten().flatten().all(|x| x.is_nan()), "no other element was written");
        assert!(halves.iter().flatten().flatten().all(|x| x.is_nan()), "no other element was written");

        keys[3] = 1.0; // Infinity cannot be quantised.
        let (mut codes, mut scales) = (blocks(4, size, 99i8), blocks(4, HEADS * BLOCK_POSITIONS, f32::NAN));
        let views = codes.iter_mut().zip(&mut scales).map(|([keys, values], [key_scales, value_scales])| {
            KvBlockMut::Q8(KvPair { keys: (keys, key_scales), values: (values, value_scales) })
        });
        kv_write(&pool, [HEADS, width], &keys, &values, &mut writes(views));
        let mut expected = [vec![0i8; width], vec![0i8; width]];
        let mut expected_scales = [0f32; 2];
        for_each_element(width, |block, [key, value], row_index| {
            let (row, element) = (row_index / width * width, row_index % width);
            if element == 0 {
                expected_scales = [
                    quantise_q8(&keys[row..row + width], &mut expected[0]),
                    quantise_q8(&values[row..row + width], &mut expected[1]),
                ];
                let (head, slot) = (key / BLOCK_POSITIONS / width, key % BLOCK_POSITIONS);
                let index = head * BLOCK_POSITIONS + slot;
                assert_eq!([scales[block][0][index], scales[block][1][index]], expected_scales, "{isa:?}");
            }
            let [k, v] = &mut codes[block];
            assert_eq!([k[key], v[value]], [expected[0][element], expected[1][element]], "{isa:?}");
            (k[key], v[value]) = (99, 99);
        });
        assert!(codes.iter().flatten().flatten().all(|x| *x == 99), "no other element was written");
    }
}

#[test]
fn bf16_pairs_are_written_to_their_slots_only() {
    let mut rng = Rng(2);
    for (width, isa) in
        [64, 40, 6].into_iter().flat_map(|width| Isa::available().into_iter().map(move |isa| (width, isa)))
    {
        let pool = Pool::with_isa(2, isa);
        let [keys, values] = [(); 2].map(|()| -> Vec<f32> { (0..31 * HEADS * width).map(|_| rng.normal()).collect() });
        let mut pairs = blocks(4, HEADS * width * BLOCK_POSITIONS, bf16::NAN);
        let views = pairs.iter_mut().map(|[keys, values]| KvBlockMut::Bf16(KvPair { keys, values }));
        kv_write(&pool, [HEADS, width], &keys, &values, &mut writes(views));
        for_each_element(width, |block, [key, value], row_index| {
            let (head, element, slot) =
                (key / BLOCK_POSITIONS / width, key / BLOCK_POSITIONS % width, key % BLOCK_POSITIONS);
            assert_eq!(value, (head * BLOCK_POSITIONS + slot) * width + element);
            let start = head * BLOCK_POSITIONS * width;
            let key = start + element / 2 * 2 * BLOCK_POSITIONS + 2 * slot + element % 2;
            let value = start + slot / 2 * 2 * width + 2 * element + slot % 2;
            let [k, v] = &mut pairs[block];
            assert_eq!([k[key], v[value]], [keys[row_index], values[row_index]].map(bf16::from_f32), "{isa:?}");
            (k[key], v[value]) = (bf16::NAN, bf16::NAN);
        });
        assert!(pairs.iter().flatten().flatten().all(|x| x.is_nan()), "no other element was written");
    }
}

#[test]
fn many_rows_are_split_among_threads() {
    let (pool, width, count) = (Pool::new(3), 64, 100);
    let rows: Vec<f32> = (0..count * BLOCK_POSITIONS * HEADS * width).map(|at| at as f32).collect();
    let mut floats = blocks(count, HEADS * width * BLOCK_POSITIONS, 0f32);
    let mut writes: Vec<KvWrite<'_>> = floats
        .iter_mut()
        .enumerate()
        .map(|(index, [keys, values])| KvWrite {
            block: KvBlockMut::F32(KvPair { keys, values }),
            row: index * BLOCK_POSITIONS,
            slot: 0,
            count: BLOCK_POSITIONS,
        })
        .collect();
    kv_write(&pool, [HEADS, width], &rows, &rows, &mut writes);
    for (index, [keys, values]) in floats.iter().enumerate() {
        for (slot, head) in (0..BLOCK_POSITIONS).flat_map(|slot| (0..HEADS).map(move |head| (slot, head))) {
            let row = &rows[((index * BLOCK_POSITIONS + slot) * HEADS + head) * width..][..width];
            assert_eq!(&values[(head * BLOCK_POSITIONS + slot) * width..][..width], row);
            assert!(row.iter().enumerate().all(|(at, x)| keys[(head * width + at) * BLOCK_POSITIONS + slot] == *x));
        }
    }
}
