//! The compute thread. It runs the workloads in turn, round after round, and recovers a workload that panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::workload::Workload;
use super::{Runtime, ShutdownPhase};
use crate::engine::error::Failure;

pub struct Worker {
    runtime: Arc<Runtime>,
    workloads: Vec<Supervised>,
}

/// A workload and its health.
struct Supervised {
    workload: Box<dyn Workload>,
    /// It panicked, and its recovery panicked too.
    is_down: bool,
}

impl Worker {
    /// Each round runs the workloads in this order.
    pub fn new(runtime: Arc<Runtime>, workloads: Vec<Box<dyn Workload>>) -> Self {
        let supervised = |workload| Supervised { workload, is_down: false };
        Self { runtime, workloads: workloads.into_iter().map(supervised).collect() }
    }

    /// Runs until the engine is closed.
    pub fn run(mut self) {
        let mut idle = true;
        loop {
            let poll = self.workloads.iter().any(|one| one.is_down || one.workload.needs_polling());
            let phase = self.runtime.wait(idle, poll);
            idle = !self.round(phase);
            if phase == ShutdownPhase::Closed {
                return;
            }
        }
    }

    /// Runs each workload once. `false`: none had anything to do.
    fn round(&mut self, phase: ShutdownPhase) -> bool {
        let mut busy = false;
        for one in &mut self.workloads {
            busy |= one.turn(&self.runtime, phase, busy);
        }
        let down = self.workloads.iter().filter(|one| one.is_down).count();
        self.runtime.set_down(down);
        busy
    }
}

impl Supervised {
    fn turn(&mut self, runtime: &Runtime, phase: ShutdownPhase, busy: bool) -> bool {
        if self.is_down && !self.recover(runtime) {
            return false;
        }
        let workload = &mut self.workload;
        let turn = || {
            if phase > ShutdownPhase::Running {
                workload.fail(&Failure::ShuttingDown, phase >= ShutdownPhase::Aborting);
            }
            workload.sweep();
            phase < ShutdownPhase::Closed && workload.step(busy)
        };
        catch_unwind(AssertUnwindSafe(turn)).unwrap_or_else(|_| {
            let name = self.workload.name();
            tracing::error!(workload = name, "a workload panicked; its requests fail and it restarts");
            runtime.metrics.panic(name);
            runtime.set_down(1);
            self.recover(runtime);
            true
        })
    }

    /// `false`: it panicked again, and the next round retries.
    fn recover(&mut self, runtime: &Runtime) -> bool {
        let workload = &mut self.workload;
        let recovered = catch_unwind(AssertUnwindSafe(|| workload.recover(&Failure::panicked()))).is_ok();
        if !recovered {
            runtime.metrics.panic(self.workload.name());
        }
        self.is_down = !recovered;
        recovered
    }
}
