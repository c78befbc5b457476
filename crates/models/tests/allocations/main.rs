//! Counts the allocations of a decode step. The tests are a program of their own because they replace the allocator.
#![cfg(test)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use outpost_models::backend::Cpu;
use outpost_models::causal_lm::{BatchRow, CausalLm, LogitsAt};
use outpost_models::decoder::Decoder;
use outpost_models::gguf::GgufFile;
use outpost_models::kv::{BlockId, KvType, blocks_for};
use outpost_testing::tiny_model;
use tiny_model::TinyModel;

/// The smallest tensor of a step here has one row of 256 floats. Lists of sequences and blocks are smaller.
const TENSOR_BYTES: usize = 1024;

/// Allocations of at least [`TENSOR_BYTES`].
static LARGE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: passes every call on to the system's allocator.
#[expect(unsafe_code, reason = "an allocator is unsafe")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGE.fetch_add(usize::from(layout.size() >= TENSOR_BYTES), Ordering::Relaxed);
        // SAFETY: the caller's promises are those of this call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGE.fetch_add(usize::from(size >= TENSOR_BYTES), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn decode_steps_reuse_the_memory_of_tensors() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model::write(dir.path(), "tiny", &TinyModel { width: 256, quantized: true, ..TinyModel::default() });
    // Each thread allocates buffers of its own when it first gets work, which may be late.
    let backend = Cpu::new(1);
    let file = GgufFile::open(&dir.path().join("tiny/tiny.gguf")).unwrap();
    let model = Decoder::load(&file, &backend).unwrap();
    const SEQUENCES: usize = 3;
    const POSITIONS: usize = 64;
    let mut arenas = model.new_arenas(KvType::F16);
    let blocks = blocks_for(POSITIONS) as BlockId;
    (0..SEQUENCES as BlockId * blocks).for_each(|block| arenas.ensure_positions(block).unwrap());
    let tables: Vec<Vec<BlockId>> =
        (0..SEQUENCES as BlockId).map(|sequence| (sequence * blocks..(sequence + 1) * blocks).collect()).collect();
    let mut step = |position: usize| {
        let tokens = [position as u32];
        let rows: Vec<BatchRow<'_>> = tables
            .iter()
            .map(|blocks| BatchRow {
                tokens: &tokens,
                embedded: &[],
                start: position,
                tables: std::slice::from_ref(blocks),
                state: None,
                logits: LogitsAt::Last,
                long: false,
                adapter: None,
                hidden: None,
            })
            .collect();
        let before = LARGE.load(Ordering::Relaxed);
        let logits = model.forward(&rows, &mut arenas).unwrap();
        model.reuse(logits);
        LARGE.load(Ordering::Relaxed) - before
    };
    assert!(step(0) > 0, "the first step allocates, or nothing is counted");
    let counts: Vec<usize> = (1..POSITIONS).map(&mut step).collect();
    assert!(counts[3..].iter().all(|count| *count == 0), "large allocations of each step: {counts:?}");
}
