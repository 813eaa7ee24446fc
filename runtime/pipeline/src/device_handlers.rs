//! Device handlers on the software GPU, which has no code to put them into: they run here over a kernel's record, once for
//! each thread of its launch. On a real GPU they run in the kernel's twin (`xputrace_twins`); kernels that ran without are
//! counted.

use crate::handler::GpuHandler;
use crate::outputs::Outputs;
use crate::process_info::ProcessIndex;
use crate::state::{EventOrigin, HandlerState};
use rustc_hash::{FxHashMap, FxHashSet};
use xputrace_model::context::device::{MOST_CONDITIONS, MOST_THREADS, MOST_THREADS_OF_PROCESS, WARP_THREADS};
use xputrace_model::context::{DeviceContext, GpuContext, device, word};
use xputrace_model::diagnostic::Site;
use xputrace_model::gpu::GpuKind;
use xputrace_model::loss::{Loss, Losses};
use xputrace_model::names::Names;
use xputrace_model::object::DirectLaunch;
use xputrace_model::plan::{Condition, DeviceEvent, LaunchFilter, PatternOfHandler, Plan, ProbeId, ProgramId};
use xputrace_wire::device::Sampled;

/// The script's device handlers, by the kernels that they run in.
pub(crate) struct DeviceHandlers {
    all: Vec<DeviceHandler>,
    /// Positions in `all`, by the id of the kernel's mangled name.
    of_kernel: FxHashMap<u64, Vec<usize>>,
    launches: Launches,
    /// Threads that handlers may still run in, by process of the software GPU.
    threads_left: ThreadsLeft,
}

/// The launch of a kernel whose words are filled.
pub(crate) struct KernelLaunch<'a> {
    pub(crate) process: ProcessIndex,
    pub(crate) origin: EventOrigin,
    pub(crate) kernel: &'a GpuContext,
    /// Whether its record has the name of a twin.
    pub(crate) is_twin: bool,
}

type ThreadsLeft = FxHashMap<ProcessIndex, u64>;

struct DeviceHandler {
    handler: GpuHandler,
    place: DeviceEvent,
    kernels: PatternOfHandler,
    /// Whether its pattern matched a kernel, which may be another's of the handler.
    is_matched: bool,
    /// Position in [`Plan::conditions`]; `None` if it runs at every launch.
    condition: Option<usize>,
    site: Site,
}

/// Chooses the launches at which handlers with conditions run. Collectors choose those of twins.
struct Launches {
    conditions: Vec<Condition>,
    /// Launches so far that meet a condition but for its `every`: by process, id of the kernel's mangled name, and condition.
    met: FxHashMap<(ProcessIndex, u64, usize), u64>,
    /// Kernels that have twins, likewise.
    twinned: FxHashSet<(ProcessIndex, u64)>,
    /// By condition.
    totals: Vec<Sampled>,
}

impl Launches {
    fn of(plan: &Plan) -> Self {
        let conditions = plan.conditions();
        let totals = vec![Sampled::default(); conditions.len()];
        Launches { conditions, met: FxHashMap::default(), twinned: FxHashSet::default(), totals }
    }

    /// Whether a condition, whose switch is on, chooses the launch of a kernel; counts it.
    fn choose(&mut self, condition: usize, process: ProcessIndex, kernel: &GpuContext) -> bool {
        let LaunchFilter { every, tag, stream } = self.conditions[condition].launches;
        let has_tag = |tag: i64| kernel[word::LAUNCH_TAGGED] != 0 && kernel[word::LAUNCH_TAG] == tag as u64;
        let is_in = |stream: u32| kernel[word::STREAM] == u64::from(stream);
        if !tag.is_none_or(has_tag) || !stream.is_none_or(is_in) {
            return false;
        }
        let met = self.met.entry((process, kernel[word::SYMBOL], condition)).or_default();
        let is_chosen = met.is_multiple_of(every);
        *met += 1;
        self.totals[condition].add(Sampled { met: 1, chosen: is_chosen.into() });
        is_chosen
    }

    /// Whether the process's collector chooses, and counts those that it could not run.
    fn is_chosen_elsewhere(&self, condition: usize, process: ProcessIndex, kernel: &GpuContext) -> bool {
        self.conditions[condition].launches.every > 1 && self.twinned.contains(&(process, kernel[word::SYMBOL]))
    }
}

impl DeviceHandlers {
    pub(crate) fn of(plan: &Plan) -> Self {
        let launches = Launches::of(plan);
        let all = plan.device_handlers().map(|it| DeviceHandler {
            handler: GpuHandler::of(plan, it.probe, &plan.probes[it.probe.index()]),
            place: it.place,
            kernels: it.kernels.clone(),
            is_matched: false,
            condition: launches.conditions.iter().position(|known| Some(*known) == it.condition),
            site: it.site,
        });
        let all = all.collect();
        DeviceHandlers { all, of_kernel: FxHashMap::default(), launches, threads_left: FxHashMap::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Forgets a process, which launches nothing any more.
    pub(crate) fn forget(&mut self, process: ProcessIndex) {
        self.launches.met.retain(|it, _| it.0 != process);
        self.launches.twinned.retain(|it| it.0 != process);
        self.threads_left.remove(&process);
    }

    pub(crate) fn programs(&self) -> impl Iterator<Item = ProgramId> {
        self.all.iter().filter_map(|it| it.handler.program)
    }

    /// Returns the probes that no kernel has matched, if there were any kernels.
    pub(crate) fn unmatched(&self) -> impl Iterator<Item = ProbeId> {
        let had_kernels = !self.of_kernel.is_empty();
        self.all.iter().filter(move |it| had_kernels && !it.is_matched).map(|it| it.handler.probe)
    }

    /// Notes kernels of a process that have twins, by the ids of their mangled names.
    pub(crate) fn has_twins(&mut self, process: ProcessIndex, symbols: impl Iterator<Item = u64>) {
        self.launches.twinned.extend(symbols.map(|it| (process, it)));
    }

    /// Adds launches that a collector has chosen for a condition, and how many of them ran without handlers.
    pub(crate) fn add_sampled(&mut self, condition: usize, (sampled, unprobed): (Sampled, u64), losses: &mut Losses) {
        let Launches { conditions, totals, .. } = &mut self.launches;
        let Some(total) = totals.get_mut(condition) else { return };
        total.add(sampled);
        // Of the others, kernels' records tell.
        let is_told = conditions[condition].launches.every > 1;
        let of_it = self.all.iter().find(|it| is_told && it.condition == Some(condition));
        of_it.into_iter().for_each(|it| losses.add_at(Loss::DeviceUnprobed, it.site, unprobed));
    }

    /// Returns how many launches each condition has chosen.
    pub(crate) fn sampled(&self) -> impl Iterator<Item = (Condition, Sampled)> {
        let Launches { conditions, totals, .. } = &self.launches;
        conditions.iter().copied().zip(totals.iter().copied())
    }

    /// Runs the device handlers of a kernel whose words are filled. On a real GPU they have run in its twin; counts kernels
    /// that were none.
    pub(crate) fn run_kernel(
        &mut self,
        &KernelLaunch { process, origin, kernel, is_twin }: &KernelLaunch<'_>,
        state: &mut HandlerState,
        losses: &mut Losses,
        sink: &mut dyn Outputs,
    ) {
        // Threads that a program of an object has ended, by number: nothing more runs in them.
        let mut ended = FxHashSet::default();
        let is_software = state.process(process).is_some_and(|it| it.gpu == GpuKind::Software);
        // What each condition says of this launch, once it was asked.
        let mut said = [None; MOST_CONDITIONS];
        let (of_kernel, launches, threads_left) = self.of_kernel(kernel, &state.names);
        for it in of_kernel {
            let GpuHandler { probe, switch, .. } = it.handler;
            if switch.is_some_and(|switch| !state.lets_run(probe, switch.id, switch.needs, origin)) {
                continue;
            }
            if let Some(condition) = it.condition.filter(|_| !is_twin) {
                let mut choose = || {
                    let is_here = is_software || !launches.is_chosen_elsewhere(condition, process, kernel);
                    is_here && launches.choose(condition, process, kernel)
                };
                if !*said[condition].get_or_insert_with(&mut choose) {
                    continue;
                }
            }
            match (is_software, is_twin) {
                (true, _) if it.place.is_of_threads() => {
                    let left = threads_left.entry(process).or_insert(MOST_THREADS_OF_PROCESS);
                    let skipped = it.run(kernel, left, state, &mut ended, sink);
                    losses.add_at(Loss::DeviceThreadSkipped, it.site, skipped);
                }
                // Elsewhere, there is no code that it could run in.
                (true, _) | (false, false) => losses.add_at(Loss::DeviceUnprobed, it.site, 1),
                (false, true) => {}
            }
        }
    }

    /// Returns the handlers of a kernel, what chooses launches, and the threads that are left of processes.
    fn of_kernel<'a>(
        &'a mut self,
        ctx: &GpuContext,
        names: &Names,
    ) -> (impl Iterator<Item = &'a DeviceHandler> + use<'a>, &'a mut Launches, &'a mut ThreadsLeft) {
        let DeviceHandlers { all, of_kernel, launches, threads_left } = self;
        let running = of_kernel.entry(ctx[word::SYMBOL]).or_insert_with(|| meet(all, ctx, names));
        (running.iter().map(|it| &all[*it]), launches, threads_left)
    }
}

/// Returns the positions of the handlers that run in a kernel, by any of its names; notes which patterns match it.
fn meet(all: &mut [DeviceHandler], ctx: &GpuContext, names: &Names) -> Vec<usize> {
    let text = |at: usize| names.get(ctx[at]).map_or("", |it| it);
    let texts = [word::NAME, word::SHORT_NAME, word::SYMBOL].map(text);
    all.iter_mut().for_each(|it| it.is_matched |= it.kernels.pattern().matches(texts));
    (0..all.len()).filter(|it| all[*it].kernels.has(texts)).collect()
}

/// Runs what a compiled object launches by itself, in place of a GPU, until the run is over. `now_nanos` is on CLOCK_MONOTONIC.
pub(crate) fn run_launches(state: &mut HandlerState, pid: u32, now_nanos: u64, sink: &mut dyn Outputs) {
    let Some(object) = state.plan.object.clone() else { return };
    state.has_run_launches = true;
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
            state.run_device(*probe, *program, &ctx, sink);
        }
    }
}

impl DeviceHandler {
    /// Runs it in the first threads of a kernel's launch, in the order of their numbers: as many as are left of its process.
    /// Returns how many it did not run in.
    fn run(
        &self,
        kernel: &GpuContext,
        left: &mut u64,
        state: &mut HandlerState,
        ended: &mut FxHashSet<u64>,
        sink: &mut dyn Outputs,
    ) -> u64 {
        let Some(program) = self.handler.program else { return 0 };
        let threads = Threads::of(kernel);
        let n_run = threads.count().min(MOST_THREADS).min(*left);
        *left -= n_run;
        let mut ctx = launch_words(kernel, self.place);
        for n in 0..n_run {
            if !ended.is_empty() && ended.contains(&n) {
                continue;
            }
            // The thread before may have ended the run.
            if sink.is_over() {
                return 0;
            }
            // Threads of the software GPU end in their order.
            if self.place == DeviceEvent::BlockEnd && !threads.is_last_of_block(n) {
                continue;
            }
            threads.fill(&mut ctx, n);
            if !state.run_device(self.handler.probe, program, &ctx, sink) {
                ended.insert(n);
            }
        }
        threads.count() - n_run
    }
}

/// Fills the words that are the same in all threads.
fn launch_words(kernel: &GpuContext, place: DeviceEvent) -> DeviceContext {
    let mut ctx: DeviceContext = [0; device::WORDS];
    ctx[device::TIME] = match place {
        DeviceEvent::Exit | DeviceEvent::BlockEnd => kernel[word::END],
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

    /// Whether the thread with this number is the last of its block.
    fn is_last_of_block(&self, n: u64) -> bool {
        (n + 1).is_multiple_of(volume(&self.block))
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
