//! Device handlers on the software GPU, which has no code to put them into: they run here over a kernel's record, once for
//! each thread of its launch. On a real GPU they run in the kernel's twin (`xputrace_twins`); kernels that ran without are
//! counted.

use super::handlers::{Handler, handler};
use super::{Pipeline, ProcessIndex, Sink};
use crate::names::Names;
use crate::recording::GpuKind;
use crate::state::{Origin, State};
use rustc_hash::{FxHashMap, FxHashSet};
use xputrace_model::context::device::{MOST_THREADS, WARP_THREADS};
use xputrace_model::context::{DeviceContext, GpuContext, device, word};
use xputrace_model::diagnostic::Site;
use xputrace_model::loss::{Loss, Losses};
use xputrace_model::object::DirectLaunch;
use xputrace_model::plan::{DeviceEvent, KernelPattern, Plan, ProbeId, ProgramId};

/// The script's device handlers, by the kernels that they match.
pub(super) struct DeviceHandlers {
    all: Vec<DeviceHandler>,
    /// Positions in `all`, by the id of the kernel's mangled name.
    of_kernel: FxHashMap<u64, Vec<usize>>,
}

struct DeviceHandler {
    handler: Handler,
    place: DeviceEvent,
    kernels: KernelPattern,
    site: Site,
}

impl DeviceHandlers {
    pub(super) fn of(plan: &Plan) -> Self {
        let all = plan.device_handlers().map(|it| DeviceHandler {
            handler: handler(plan, it.probe, &plan.probes[it.probe.index()]),
            place: it.place,
            kernels: it.kernels.clone(),
            site: it.site,
        });
        DeviceHandlers { all: all.collect(), of_kernel: FxHashMap::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn programs(&self) -> impl Iterator<Item = ProgramId> {
        self.all.iter().filter_map(|it| it.handler.program)
    }

    /// Returns the probes that no kernel has matched, if there were any kernels.
    fn unmatched(&self) -> impl Iterator<Item = ProbeId> {
        let is_matched = |at: &usize| self.of_kernel.is_empty() || self.of_kernel.values().flatten().any(|it| it == at);
        (0..self.all.len()).filter(move |it| !is_matched(it)).map(|it| self.all[it].handler.probe)
    }

    /// Returns the handlers of a kernel.
    fn of_kernel<'a>(
        &'a mut self,
        ctx: &GpuContext,
        names: &Names,
    ) -> impl Iterator<Item = &'a DeviceHandler> + use<'a> {
        let DeviceHandlers { all, of_kernel } = self;
        let matching = of_kernel.entry(ctx[word::SYMBOL]).or_insert_with(|| matching(all, ctx, names));
        matching.iter().map(|it| &all[*it])
    }
}

/// Returns the positions of the handlers that match a kernel by any of its names.
fn matching(all: &[DeviceHandler], ctx: &GpuContext, names: &Names) -> Vec<usize> {
    let text = |at: usize| names.get(ctx[at]).map_or("", |it| it);
    let texts = [word::NAME, word::SHORT_NAME, word::SYMBOL].map(text);
    (0..all.len()).filter(|it| all[*it].kernels.matches(texts)).collect()
}

impl Pipeline {
    /// Returns the device probes whose pattern no kernel has matched, where there were kernels.
    pub fn unmatched_device_probes(&self) -> Vec<ProbeId> {
        self.handlers.device.unmatched().collect()
    }

    /// Runs what a compiled object launches by itself, in place of a GPU, until the run is over. `now_nanos` is on CLOCK_MONOTONIC.
    pub fn run_launches(&mut self, pid: u32, now_nanos: u64, sink: &mut dyn Sink) {
        let Some(object) = self.state.plan.object.clone() else { return };
        for DirectLaunch { probe, program, shape } in &object.launches {
            let threads = Threads { grid: shape.grid.map(u64::from), block: shape.block.map(u64::from) };
            let mut ctx: DeviceContext = [0; device::WORDS];
            ctx[device::TIME] = now_nanos;
            ctx[device::PID] = pid.into();
            ctx[device::GRID_DIM..][..3].copy_from_slice(&threads.grid);
            ctx[device::BLOCK_DIM..][..3].copy_from_slice(&threads.block);
            for n in 0..threads.count() {
                // There may be a million.
                if sink.is_over() {
                    return;
                }
                threads.fill(&mut ctx, n);
                // A program that ends its thread ends only its own.
                self.state.run_device(*probe, *program, &ctx, sink);
            }
        }
    }

    /// Runs the device handlers of a kernel whose words are filled. On a real GPU they have run in its twin; counts kernels
    /// that were none.
    pub(super) fn run_device(
        &mut self,
        process: ProcessIndex,
        origin: Origin,
        kernel: &GpuContext,
        is_twin: bool,
        sink: &mut dyn Sink,
    ) {
        let Pipeline { state, handlers, ledger, .. } = self;
        // Threads that a program of an object has ended, by number: nothing more runs in them.
        let mut ended = FxHashSet::default();
        let is_software = state.process(process).is_some_and(|it| it.gpu == GpuKind::Software);
        for it in handlers.device.of_kernel(kernel, &state.names) {
            let Handler { probe, switch, .. } = it.handler;
            if switch.is_some_and(|switch| !state.lets_run(probe, switch.id, switch.needs, origin)) {
                continue;
            }
            match (is_software, is_twin) {
                (true, _) if it.place.is_of_threads() => {
                    it.run(kernel, state, &mut ended, &mut ledger.losses, sink);
                }
                // Elsewhere, there is no code that it could run in.
                (true, _) | (false, false) => ledger.losses.add_at(Loss::DeviceUnprobed, it.site, 1),
                (false, true) => {}
            }
        }
    }
}

impl DeviceHandler {
    /// Runs it in each thread of a kernel's launch, in the order of their numbers.
    fn run(
        &self,
        kernel: &GpuContext,
        state: &mut State,
        ended: &mut FxHashSet<u64>,
        losses: &mut Losses,
        sink: &mut dyn Sink,
    ) {
        let Some(program) = self.handler.program else { return };
        let threads = Threads::of(kernel);
        let mut ctx = launch_words(kernel, self.place);
        for n in 0..threads.count().min(MOST_THREADS) {
            if !ended.is_empty() && ended.contains(&n) {
                continue;
            }
            // The thread before may have ended the run.
            if sink.is_over() {
                return;
            }
            threads.fill(&mut ctx, n);
            if !state.run_device(self.handler.probe, program, &ctx, sink) {
                ended.insert(n);
            }
        }
        losses.add_at(Loss::DeviceThreadSkipped, self.site, threads.count().saturating_sub(MOST_THREADS));
    }
}

/// Fills the words that are the same in all threads.
fn launch_words(kernel: &GpuContext, place: DeviceEvent) -> DeviceContext {
    let mut ctx: DeviceContext = [0; device::WORDS];
    ctx[device::TIME] = match place {
        DeviceEvent::Exit => kernel[word::END],
        _ => kernel[word::START],
    };
    ctx[device::PID] = kernel[word::PID];
    ctx[device::KERNEL] = kernel[word::NAME];
    ctx[device::GRID_DIM..][..3].copy_from_slice(&kernel[word::GRID..][..3]);
    ctx[device::BLOCK_DIM..][..3].copy_from_slice(&kernel[word::BLOCK..][..3]);
    device::LAUNCH_WORDS.iter().zip(&mut ctx[device::LAUNCH..]).for_each(|(at, word)| *word = kernel[*at]);
    ctx
}

/// The threads of a launch: all of a block before those of the next one, each with `x` first.
struct Threads {
    grid: [u64; 3],
    block: [u64; 3],
}

impl Threads {
    fn of(kernel: &GpuContext) -> Self {
        let three = |at: usize| [kernel[at], kernel[at + 1], kernel[at + 2]];
        Threads { grid: three(word::GRID), block: three(word::BLOCK) }
    }

    fn count(&self) -> u64 {
        volume(&self.grid).saturating_mul(volume(&self.block))
    }

    /// Fills the words of the thread with this number, which is less than their count.
    fn fill(&self, ctx: &mut DeviceContext, n: u64) {
        let per_block = volume(&self.block);
        let (block, thread) = (n / per_block, n % per_block);
        ctx[device::BLOCK..][..3].copy_from_slice(&position(block, self.grid));
        ctx[device::THREAD..][..3].copy_from_slice(&position(thread, self.block));
        ctx[device::WARPID] = thread / WARP_THREADS;
        ctx[device::LANEID] = thread % WARP_THREADS;
        let is_last = ctx[device::LANEID] == WARP_THREADS - 1 || thread == per_block - 1;
        ctx[device::IS_LEADER] = is_last.into();
        let first_of_warp = thread - ctx[device::LANEID];
        ctx[device::ACTIVE] = WARP_THREADS.min(per_block - first_of_warp);
    }
}

/// Returns the number of elements; the largest one there is for what a program says and no GPU has.
fn volume(extents: &[u64; 3]) -> u64 {
    extents.iter().fold(1, |all, it| all.saturating_mul(*it))
}

/// Returns the coordinates of the n-th element.
fn position(n: u64, [x, y, _]: [u64; 3]) -> [u64; 3] {
    [n % x, n / x % y, n / x / y]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_thread_has_a_position_of_its_own() {
        let threads = Threads { grid: [2, 3, 1], block: [5, 2, 4] };
        let mut ctx: DeviceContext = [0; device::WORDS];
        let mut seen = HashSet::new();
        for n in 0..threads.count() {
            threads.fill(&mut ctx, n);
            let of = |at: usize| [ctx[at], ctx[at + 1], ctx[at + 2]];
            let is_within = |it: [u64; 3], size: [u64; 3]| it.iter().zip(size).all(|(at, size)| *at < size);
            assert!(is_within(of(device::BLOCK), threads.grid) && is_within(of(device::THREAD), threads.block));
            let [x, y, z] = of(device::THREAD);
            let in_block = x + 5 * (y + 2 * z);
            assert_eq!([ctx[device::WARPID], ctx[device::LANEID]], [in_block / 32, in_block % 32]);
            // The second warp of a block of 40.
            assert_eq!(ctx[device::ACTIVE], if in_block < 32 { 32 } else { 8 });
            assert!(seen.insert((of(device::BLOCK), of(device::THREAD))), "thread {n} comes twice");
        }
        assert_eq!(seen.len(), 240);
    }

    #[test]
    fn absurd_shapes_are_counted_without_overflow() {
        let threads = |grid, block| Threads { grid, block }.count();
        assert_eq!(threads([u64::MAX, 7, 1], [1, 1, 1]), u64::MAX);
        assert_eq!(threads([1, 1, 1], [0, 1, 1]), 0);
        // Their product is 0 in 64 bits.
        let absurd = Threads { grid: [1, 1, 1], block: [1 << 22, 1 << 21, 1 << 21] };
        let mut ctx: DeviceContext = [0; device::WORDS];
        absurd.fill(&mut ctx, 5);
        assert_eq!((absurd.count(), ctx[device::THREAD]), (u64::MAX, 5));
    }
}
