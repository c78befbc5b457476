//! Attention over the KV cache.

use std::sync::Arc;

use super::super::Candle;
use super::super::kv_batch::CandleBatch;
use super::{assert_close, candle, random, random_tensor};
use crate::backend::cpu::Cpu;
use crate::backend::interface::{Backend, Tensor};
use crate::backend::paged_attention::PagedAttention;
use crate::backend::types::AttentionShape;
use crate::block_arena::BlockArena;
use crate::error::ModelError;
use crate::kv::{BLOCK, BlockId, KvArena, KvShape, KvType, SequenceSlice};

const SHAPE: AttentionShape =
    AttentionShape { heads: 6, kv_heads: 2, width: 8, scale: 0.3, causal: true, window: None, soft_cap: None };

/// A sequence of the batch: tokens, the position of the first, positions before the padding, and blocks.
struct Sequence {
    count: usize,
    start: usize,
    visible: Option<usize>,
    blocks: Vec<BlockId>,
}

fn sequence(count: usize, start: usize, blocks: &[BlockId]) -> Sequence {
    Sequence { count, start, visible: None, blocks: blocks.to_vec() }
}

fn slices(sequences: &[Sequence]) -> Vec<SequenceSlice> {
    let mut offset = 0;
    let mut found = Vec::new();
    for Sequence { count, start, visible, blocks } in sequences {
        found.push(SequenceSlice { offset, count: *count, start: *start, visible: *visible, blocks: blocks.clone() });
        offset += count;
    }
    found
}

fn kv_shape(shape: &AttentionShape, kv_type: KvType) -> KvShape {
    KvShape { layers: 2, kv_heads: shape.kv_heads, head_width: shape.width, kv_type }
}

fn arena<B: PagedAttention>(backend: &B, shape: KvShape, blocks: BlockId) -> B::KvArena {
    let mut arena = backend.new_kv_arena(shape);
    (0..blocks).for_each(|block| arena.ensure(block).unwrap());
    arena
}

/// Keys or values of tokens, for [`SHAPE`].
fn rows<B: PagedAttention>(backend: &B, tokens: usize, seed: u64) -> Tensor<B> {
    random_tensor(backend, [1, tokens, 1, SHAPE.kv_heads * SHAPE.width], seed)
}

/// Fills the blocks of earlier positions, then writes the batch's tokens and attends, in both layers.
fn run<B: PagedAttention>(
    backend: &B,
    kv_type: KvType,
    blocks: BlockId,
    prefixes: &[Sequence],
    batch: &[Sequence],
    (shape, has_sinks): (&AttentionShape, bool),
) -> Vec<f32> {
    let sinks: Vec<f32> = random(shape.heads, 6).iter().map(|sink| 3. * sink).collect();
    let sinks = has_sinks.then(|| backend.vector(sinks).unwrap());
    let mut arena = arena(backend, kv_shape(shape, kv_type), blocks);
    let rows = |tokens, seed| random_tensor(backend, [1, tokens, 1, shape.kv_heads * shape.width], seed);
    let mut found = Vec::new();
    let prefix = (!prefixes.is_empty()).then(|| backend.batch(slices(prefixes)).unwrap());
    let batch_on_device = backend.batch(slices(batch)).unwrap();
    let count = |sequences: &[Sequence]| sequences.iter().map(|sequence| sequence.count).sum::<usize>();
    for layer in 0..2 {
        let seed = 100 * layer as u64;
        if let Some(prefix) = &prefix {
            let [k, v] = [1, 2].map(|i| rows(count(prefixes), seed + i));
            backend.write_kv(&mut arena, layer, prefix, [&k, &v]).unwrap();
        }
        let [k, v] = [3, 4].map(|i| rows(count(batch), seed + i));
        backend.write_kv(&mut arena, layer, &batch_on_device, [&k, &v]).unwrap();
        let q = random_tensor(backend, [1, count(batch), 1, shape.heads * shape.width], seed + 5);
        let out = backend.kv_attention(&arena, layer, &batch_on_device, shape, sinks.as_ref(), &q).unwrap();
        assert_eq!(out.shape(), q.shape());
        found.extend(backend.to_vec(&out).unwrap());
    }
    found
}

fn compare(what: &str, blocks: BlockId, prefixes: &[Sequence], batch: &[Sequence], shape: &AttentionShape) {
    for has_sinks in [false, true] {
        let shape = (shape, has_sinks);
        let expected = run(&Cpu::new(2), KvType::F32, blocks, prefixes, batch, shape);
        // A small limit computes rows in several parts, and splits groups.
        for limit in [usize::MAX, 2000, 1] {
            let found = run(&candle().with_max_elements(limit), KvType::F32, blocks, prefixes, batch, shape);
            assert_close(&found, &expected, 3e-6, &format!("{what}, sinks: {has_sinks}, up to {limit} elements"));
        }
    }
}

/// Sequences of different lengths: decode, a long prefill, a short one that shares a block, and speculated tokens.
fn ragged() -> (Vec<Sequence>, Vec<Sequence>) {
    let long: Vec<BlockId> = (20..60).rev().collect();
    let prefixes =
        vec![sequence(37, 0, &[3, 1, 5]), sequence(16, 0, &[7]), sequence(590, 0, &long), sequence(3, 0, &[11])];
    let batch = vec![
        sequence(1, 37, &[3, 1, 5]),
        sequence(70, 0, &[0, 2, 4, 6, 8]),
        sequence(5, 16, &[7, 9]),
        sequence(1, 16, &[7, 10]),
        sequence(9, 590, &long),
        sequence(1, 3, &[11]),
        sequence(48, 0, &[12, 13, 14]),
    ];
    (prefixes, batch)
}

#[test]
fn ragged_batches_match() {
    let (prefixes, batch) = ragged();
    for (window, soft_cap) in [(None, None), (Some(5), None), (Some(64), Some(2.)), (None, Some(0.5))] {
        let shape = AttentionShape { window, soft_cap, ..SHAPE };
        compare(&format!("window {window:?}, soft cap {soft_cap:?}"), 60, &prefixes, &batch, &shape);
    }
    for kv_heads in [1, 3, 6] {
        compare(&format!("{kv_heads} key-value heads"), 60, &prefixes, &batch, &AttentionShape { kv_heads, ..SHAPE });
    }
}

#[test]
fn single_rows_match() {
    for start in [0, 15, 16, 40] {
        let blocks = [2, 0, 1];
        let prefix = (start > 0).then(|| sequence(start, 0, &blocks)).into_iter().collect::<Vec<_>>();
        compare(&format!("position {start}"), 3, &prefix, &[sequence(1, start, &blocks)], &SHAPE);
    }
    compare("whole blocks", 3, &[], &[sequence(48, 0, &[2, 0, 1])], &SHAPE);
    compare("equal rows", 6, &[], &[sequence(32, 0, &[2, 0]), sequence(32, 0, &[5, 4])], &SHAPE);
}

#[test]
fn encoders_see_later_positions_but_no_padding() {
    let texts = || {
        vec![
            Sequence { visible: Some(11), ..sequence(20, 0, &[0, 1]) },
            Sequence { visible: Some(1), ..sequence(5, 0, &[2]) },
            Sequence { visible: None, ..sequence(90, 0, &[3, 4, 5, 6, 7, 8]) },
            Sequence { visible: Some(60), ..sequence(64, 0, &[9, 10, 11, 12]) },
        ]
    };
    let shape = AttentionShape { causal: false, kv_heads: 2, ..SHAPE };
    compare("padding", 13, &[], &texts(), &shape);
    let whole: Vec<_> = texts().into_iter().map(|text| Sequence { visible: None, ..text }).collect();
    compare("window", 13, &[], &whole, &AttentionShape { window: Some(9), ..shape });
}

#[test]
fn small_types_round_keys_and_values() {
    let (prefixes, batch) = ragged();
    let exact = run(&candle(), KvType::F32, 60, &prefixes, &batch, (&SHAPE, false));
    for kv_type in [KvType::F16, KvType::Q8] {
        let rounded = run(&candle(), kv_type, 60, &prefixes, &batch, (&SHAPE, false));
        let far = super::difference(&rounded, &exact);
        assert!(far > 0. && far < 1e-3, "{kv_type:?}: {far}");
    }
}

/// Padding must not read other sequences.
#[test]
fn a_sequence_that_is_not_finite_affects_no_other() {
    let b = &candle();
    let mut arena = arena(b, kv_shape(&SHAPE, KvType::F16), 8);
    let lengths = [(1, 40, vec![0, 1, 2]), (1, 17, vec![3, 4]), (1, 3, vec![5])];
    for (value, (_, start, blocks)) in [1., f32::NAN, 2.].into_iter().zip(&lengths) {
        let prefix = [sequence(start + 1, 0, blocks)];
        let kv = b.tensor(&vec![value; (start + 1) * 16], [1, start + 1, 1, 16]).unwrap();
        b.write_kv(&mut arena, 0, &b.batch(slices(&prefix)).unwrap(), [&kv, &kv]).unwrap();
    }
    let sequences: Vec<_> = lengths.iter().map(|(count, start, blocks)| sequence(*count, *start, blocks)).collect();
    let batch = b.batch(slices(&sequences)).unwrap();
    let out = b.kv_attention(&arena, 0, &batch, &SHAPE, None, &random_tensor(b, [1, 3, 1, 48], 1)).unwrap();
    assert_eq!(batch.plan(b, &SHAPE).unwrap().groups.len(), 1);
    let out = b.to_vec(&out).unwrap();
    let rows: Vec<_> = out.chunks(48).collect();
    assert!(rows[0].iter().all(|x| (x - 1.).abs() < 1e-3) && rows[2].iter().all(|x| (x - 2.).abs() < 1e-3));
    assert!(rows[1].iter().all(|x| x.is_nan()));
}

fn group_sizes(sequences: &[Sequence], shape: &AttentionShape) -> Vec<[usize; 3]> {
    let batch = CandleBatch::new(slices(sequences)).unwrap();
    let plan = batch.plan(&candle().with_max_elements(64 << 20), shape).unwrap();
    plan.groups.iter().map(|group| [group.rows, group.queries, group.positions]).collect()
}

#[test]
fn a_ragged_batch_is_a_few_groups() {
    let blocks: Vec<BlockId> = (0..1000).collect();
    let decode = |start: usize| sequence(1, start, &blocks);
    let equal: Vec<_> = (0..32).map(|_| decode(700)).collect();
    assert_eq!(group_sizes(&equal, &SHAPE), [[32, 1, 701]]);
    let similar: Vec<_> = (0..32).map(|index| decode(20 * index)).collect();
    assert!(group_sizes(&similar, &SHAPE).len() <= 2);
    // Lengths from 1 to 16,000: at most one group for each doubling.
    let different: Vec<_> = (0..128).map(|index| decode(index * 125)).collect();
    let groups = group_sizes(&different, &SHAPE);
    assert!(groups.len() <= 7, "{groups:?}");
    let padded: usize = groups.iter().map(|[rows, queries, positions]| rows * queries * positions).sum();
    let real: usize = (0..128).map(|index| index * 125 + 1).sum();
    assert!(padded <= 2 * real + 128 * 256, "{padded} positions instead of {real}");
    // A prefill does not pad the decode rows.
    let mixed = [sequence(512, 0, &blocks), decode(400), decode(500), sequence(500, 12, &blocks)];
    assert_eq!(group_sizes(&mixed, &SHAPE), [[2, 512, 512], [2, 1, 501]]);
    // A long prefill is computed in parts, which see only what the mask shows.
    let shape = AttentionShape { heads: 32, ..SHAPE };
    let long = group_sizes(&[sequence(4096, 0, &blocks)], &shape);
    assert!(
        long.len() > 1 && long.iter().all(|[rows, queries, positions]| rows * queries * positions * 32 <= 64 << 20)
    );
    assert_eq!(long.iter().map(|[rows, queries, _]| rows * queries).sum::<usize>(), 4096);
    // With a window, only its positions are gathered.
    let windowed = AttentionShape { window: Some(100), ..SHAPE };
    assert_eq!(group_sizes(&[decode(5000)], &windowed), [[1, 1, 105]]);
}

#[test]
fn arenas_grow_and_keep_their_contents() {
    let b = &candle();
    let mut arena = b.new_kv_arena(kv_shape(&SHAPE, KvType::F32));
    let written = |arena: &<Candle as PagedAttention>::KvArena, block: BlockId, count: usize| {
        let sequences = [sequence(1, count - 1, &[block])];
        let batch = b.batch(slices(&sequences)).unwrap();
        b.kv_attention(arena, 1, &batch, &SHAPE, None, &random_tensor(b, [1, 1, 1, 48], 1))
            .map(|out| b.to_vec(&out).unwrap())
    };
    let mut first = None;
    for block in [0, 1, 9, 5, 40] {
        arena.ensure(block).unwrap();
        let sequences = [sequence(BLOCK, 0, &[block])];
        let [k, v] = [2, 3].map(|seed| rows(b, BLOCK, seed + u64::from(block)));
        b.write_kv(&mut arena, 1, &b.batch(slices(&sequences)).unwrap(), [&k, &v]).unwrap();
        let of_first = written(&arena, 0, BLOCK).unwrap();
        assert_eq!(first.get_or_insert_with(|| of_first.clone()), &of_first, "after block {block}");
        assert_eq!(block == 0, written(&arena, block, BLOCK).unwrap() == of_first);
    }
    assert_eq!((arena.len(), arena.shape()), (5, kv_shape(&SHAPE, KvType::F32)));
    arena.release(9);
    assert_eq!(arena.len(), 4);
    assert!(matches!(written(&arena, 9, BLOCK), Err(ModelError::Compute(_))), "the block was released");
}

/// All layers of a pass use the same batch.
#[test]
fn layers_share_indices() {
    let b = &candle();
    let batch = b.batch(slices(&[sequence(20, 0, &[0, 1]), sequence(3, 0, &[2])])).unwrap();
    let [first, again] = [(); 2].map(|()| batch.plan(b, &SHAPE).unwrap());
    assert!(Arc::ptr_eq(&first, &again));
    let windowed = AttentionShape { window: Some(7), ..SHAPE };
    assert!(!Arc::ptr_eq(&first, &batch.plan(b, &windowed).unwrap()));
    let [first, again] = [(); 2].map(|()| batch.device_writes(b, 32).unwrap());
    assert!(Arc::ptr_eq(&first, &again));
}

#[test]
fn batches_that_do_not_fit_are_errors() {
    let b = &candle();
    let mut arena = arena(b, kv_shape(&SHAPE, KvType::F32), 2);
    assert!(b.batch(slices(&[sequence(17, 0, &[0])])).is_err(), "there are too few blocks");
    assert!(b.batch(slices(&[sequence(0, 0, &[0])])).is_err(), "there are no tokens");
    let two = [sequence(1, 0, &[0]), sequence(1, 0, &[1])];
    let mut out_of_order = slices(&two);
    out_of_order.swap(0, 1);
    assert!(b.batch(out_of_order).is_err());
    let sequences = [sequence(3, 0, &[0]), sequence(3, 0, &[7])];
    let batch = b.batch(slices(&sequences)).unwrap();
    let [k, q] = [rows(b, 6, 1), random_tensor(b, [1, 6, 1, 48], 2)];
    assert!(matches!(b.write_kv(&mut arena, 0, &batch, [&k, &k]), Err(ModelError::Compute(_))));
    let first = [sequence(3, 0, &[0])];
    let first = b.batch(slices(&first)).unwrap();
    let one = b.rows(&q, 0..3).unwrap();
    assert!(b.kv_attention(&arena, 0, &first, &SHAPE, None, &one).is_err(), "nothing was written");
    let k = rows(b, 3, 1);
    b.write_kv(&mut arena, 0, &first, [&k, &k]).unwrap();
    assert!(b.kv_attention(&arena, 0, &first, &SHAPE, None, &one).is_ok());
    assert!(b.kv_attention(&arena, 0, &batch, &SHAPE, None, &q).is_err(), "a block has no memory");
    assert!(b.kv_attention(&arena, 1, &first, &SHAPE, None, &one).is_err(), "the layer was not written");
    assert!(b.kv_attention(&arena, 2, &first, &SHAPE, None, &one).is_err(), "there is no such layer");
    assert!(b.kv_attention(&arena, 0, &first, &SHAPE, None, &q).is_err(), "there are too many queries");
    assert!(b.kv_attention(&arena, 0, &first, &AttentionShape { kv_heads: 4, ..SHAPE }, None, &one).is_err());
    assert!(b.kv_attention(&arena, 0, &first, &AttentionShape { kv_heads: 1, ..SHAPE }, None, &one).is_err());
    for count in [1, 5, 7] {
        let sinks = b.vector(vec![0.; count]).unwrap();
        assert!(b.kv_attention(&arena, 0, &first, &SHAPE, Some(&sinks), &one).is_err(), "there are six heads");
    }
    assert!(b.write_kv(&mut arena, 2, &first, [&k, &k]).is_err(), "there is no such layer");
    let narrow = b.tensor(&random(3 * 8, 1), [1, 3, 1, 8]).unwrap();
    assert!(b.write_kv(&mut arena, 0, &first, [&k, &narrow]).is_err());
}
