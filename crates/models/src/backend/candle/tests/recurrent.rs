//! Recurrent layers.

use super::{Cpu, candle, compare, random, random_tensor};
use crate::backend::interface::{Backend, Tensor};
use crate::backend::recurrent::{CausalConv, Recurrent, SequenceStates, StatePart};
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

fn sequences(steps: &[(usize, Option<u32>, u32)]) -> Vec<SequenceStates> {
    let mut offset = 0;
    let sequence = |&(count, read, write): &(usize, Option<u32>, u32)| {
        offset += count;
        SequenceStates { offset: offset - count, count, update: StateUpdate { read, write } }
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
