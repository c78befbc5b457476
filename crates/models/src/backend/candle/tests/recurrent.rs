//! Recurrent layers.

use super::{Cpu, candle, compare, random, random_tensor};
use crate::backend::interface::{Backend, Tensor};
use crate::backend::recurrent::{
    CausalConv, DeltaRule, DeltaRuleInputs, Recurrent, RecurrentRow, StatePart, StateSpace, StateSpaceInputs,
};
use crate::backend::types::RecurrenceShape;
use crate::block_arena::BlockArena;
use crate::state_layout::StateUpdate;

const CHANNELS: usize = 24;
const KERNEL: usize = 4;

fn conv<B: Backend>(backend: &B, bias: bool) -> CausalConv<B> {
    CausalConv {
        weight: backend.vector(random(KERNEL * CHANNELS, 1)).unwrap(),
        bias: bias.then(|| backend.vector(random(CHANNELS, 2)).unwrap()),
        kernel: KERNEL,
        channels: CHANNELS,
    }
}

fn arena<B: Recurrent>(backend: &B, blocks: u32) -> B::StateArena {
    let mut arena = backend.new_state_arena(&[7, (KERNEL - 1) * CHANNELS]);
    (0..blocks).for_each(|block| arena.ensure(block).unwrap());
    arena
}

fn sequences(steps: &[(usize, Option<u32>, u32)]) -> Vec<RecurrentRow> {
    let mut offset = 0;
    let sequence = |&(count, read, write): &(usize, Option<u32>, u32)| {
        offset += count;
        RecurrentRow { offset: offset - count, count, update: StateUpdate { read, write } }
    };
    steps.iter().map(sequence).collect()
}

/// Two steps of four sequences: lengths repeat, but not those of neighbours, and some begin with the second step.
fn two_steps<B: Recurrent>(backend: &B, bias: bool) -> Tensor<B> {
    let (conv, mut arena) = (conv(backend, bias), arena(backend, 8));
    let mut step = |steps: &[(usize, Option<u32>, u32)], seed| {
        let sequences = sequences(steps);
        let tokens = sequences.iter().map(|sequence| sequence.count).sum();
        let states = StatePart { arena: &mut arena, part: 1, sequences: &sequences };
        backend.causal_conv(&conv, states, &random_tensor(backend, [1, tokens, 1, CHANNELS], seed)).unwrap()
    };
    let first = step(&[(1, None, 0), (5, None, 1), (1, None, 2), (2, None, 3)], 3);
    let second = step(&[(1, Some(0), 4), (3, None, 5), (1, Some(1), 6), (3, Some(2), 7)], 4);
    backend.concat_tokens(&first, &second).unwrap()
}

#[test]
fn convolutions_continue_from_the_states_that_were_written() {
    for bias in [false, true] {
        compare!("two steps", 1e-5, |b| two_steps(b, bias));
    }
}

#[test]
fn a_state_that_was_read_does_not_change() {
    fn check<B: Recurrent>(backend: &B) {
        let (conv, mut arena) = (conv(backend, true), arena(backend, 3));
        let x = random_tensor(backend, [1, 2, 1, CHANNELS], 5);
        let mut step = |read, write| {
            let sequences = sequences(&[(2, read, write)]);
            let states = StatePart { arena: &mut arena, part: 1, sequences: &sequences };
            backend.to_vec(&backend.causal_conv(&conv, states, &x).unwrap()).unwrap()
        };
        step(None, 0);
        let after = step(Some(0), 1);
        assert_eq!(step(Some(0), 2), after);
        assert_ne!(step(Some(1), 2), after);
    }
    check(&Cpu::new(2));
    check(&candle());
}

#[test]
fn states_that_do_not_fit_are_errors() {
    fn check<B: Recurrent>(backend: &B) {
        let (conv, mut arena) = (conv(backend, false), arena(backend, 2));
        arena.ensure(4).unwrap();
        arena.release(4);
        let x = random_tensor(backend, [1, 2, 1, CHANNELS], 5);
        for (part, steps) in [
            (1, vec![(2, None, 2)]),
            (1, vec![(2, Some(4), 0)]),
            (1, vec![(2, None, 4)]),
            (0, vec![(2, None, 0)]),
            (2, vec![(2, None, 0)]),
            (1, vec![(1, None, 0)]),
            (1, vec![(1, None, 0), (2, None, 1)]),
            (1, vec![(2, Some(1), 1)]),
        ] {
            let sequences = sequences(&steps);
            let states = StatePart { arena: &mut arena, part, sequences: &sequences };
            assert!(backend.causal_conv(&conv, states, &x).is_err(), "{part} {steps:?}");
        }
        assert_eq!((arena.len(), arena.block_bytes()), (2, 4 * (7 + 72)));
    }
    check(&Cpu::new(2));
    check(&candle());
}

fn rule<B: Backend>(backend: &B, shape: RecurrenceShape) -> DeltaRule<B> {
    let decay = random(shape.value_heads, 6).into_iter().map(|x| -x.abs()).collect();
    let bias = backend.vector(random(shape.value_heads, 7)).unwrap();
    DeltaRule { shape, decay: backend.vector(decay).unwrap(), bias }
}

/// Two steps of three sequences; the longest has several chunks. `step` computes so many tokens, with inputs by a seed.
fn in_two_steps<B: Recurrent>(
    backend: &B,
    shape: RecurrenceShape,
    step: impl Fn(StatePart<'_, B>, usize, u64) -> Tensor<B>,
) -> Tensor<B> {
    let mut arena = backend.new_state_arena(&[shape.state_len()]);
    (0..6).for_each(|block| arena.ensure(block).unwrap());
    let mut step = |steps: &[(usize, Option<u32>, u32)], seed| {
        let sequences = sequences(steps);
        let tokens = sequences.iter().map(|sequence| sequence.count).sum();
        step(StatePart { arena: &mut arena, part: 0, sequences: &sequences }, tokens, seed)
    };
    let first = step(&[(150, None, 0), (1, None, 1), (64, None, 2)], 10);
    let second = step(&[(1, Some(0), 3), (70, Some(1), 4), (1, Some(2), 5)], 20);
    backend.concat_tokens(&first, &second).unwrap()
}

fn delta_rule_in_two_steps<B: Recurrent>(backend: &B, shape: RecurrenceShape) -> Tensor<B> {
    let rule = rule(backend, shape);
    in_two_steps(backend, shape, |states, tokens, seed| {
        let input = |channels, seed| random_tensor(backend, [1, tokens, 1, channels], seed);
        let (qkv, a, b) =
            (input(shape.inputs_len(), seed), input(shape.value_heads, seed + 1), input(shape.value_heads, seed + 2));
        backend.delta_rule(&rule, states, DeltaRuleInputs { qkv, a: &a, b: &b }).unwrap()
    })
}

#[test]
fn the_delta_rule_in_chunks_matches_that_token_by_token() {
    for (tiled, value_width) in [(false, 16), (true, 20)] {
        let shape = RecurrenceShape { key_heads: 2, value_heads: 6, key_width: 24, value_width, tiled };
        compare!("the delta rule", 1e-4, |b| delta_rule_in_two_steps(b, shape));
    }
}

#[test]
fn state_spaces_in_chunks_match_those_token_by_token() {
    fn two_steps<B: Recurrent>(backend: &B, shape: RecurrenceShape) -> Tensor<B> {
        let DeltaRule { decay, bias, .. } = rule(backend, shape);
        let space = StateSpace { shape, decay, bias, skip: backend.vector(random(shape.value_heads, 8)).unwrap() };
        in_two_steps(backend, shape, |states, tokens, seed| {
            let input = |channels, seed| random_tensor(backend, [1, tokens, 1, channels], seed);
            let (xbc, steps) = (input(shape.inputs_len(), seed), input(shape.value_heads, seed + 1));
            backend.state_space(&space, states, StateSpaceInputs { xbc: &xbc, steps: &steps }).unwrap()
        })
    }
    let shape = RecurrenceShape { key_heads: 2, value_heads: 6, key_width: 24, value_width: 20, tiled: false };
    compare!("a state space", 2e-4, |b| two_steps(b, shape));
}

/// Equal keys and no decay: the updates of a chunk depend on each other as much as they can.
#[test]
fn the_delta_rule_stays_accurate_for_equal_keys() {
    let shape = RecurrenceShape { key_heads: 1, value_heads: 1, key_width: 8, value_width: 16, tiled: false };
    fn compute<B: Recurrent>(backend: &B, shape: RecurrenceShape) -> Tensor<B> {
        let tokens = 128;
        let rule =
            DeltaRule { shape, decay: backend.vector(vec![-1e-6]).unwrap(), bias: backend.vector(vec![0.]).unwrap() };
        let row = |token: usize| [random(8, 1), random(8, 2), random(16, 100 + token as u64)].concat();
        let qkv: Vec<f32> = (0..tokens).flat_map(row).collect();
        let qkv = backend.tensor(&qkv, [1, tokens, 1, 32]).unwrap();
        let gates = |value| backend.tensor(&vec![value; tokens], [1, tokens, 1, 1]).unwrap();
        let mut arena = backend.new_state_arena(&[shape.state_len()]);
        arena.ensure(0).unwrap();
        let sequences = sequences(&[(tokens, None, 0)]);
        let states = StatePart { arena: &mut arena, part: 0, sequences: &sequences };
        backend.delta_rule(&rule, states, DeltaRuleInputs { qkv, a: &gates(0.), b: &gates(6.) }).unwrap()
    }
    compare!("equal keys", 1e-4, |b| compute(b, shape));
}
