//! A joined event as the words that its handlers read (`xputrace_events::word`).

use crate::clock::Span;
use crate::gpus::GpuFacts;
use xputrace_model::context::{GpuContext, word};
use xputrace_wire::events::{Realtime, Texts};
use xputrace_wire::record::{ActivityRecord, GpuLimits, HostEventRecord};

/// The two halves of a 16-byte, NUL-padded name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comm(pub(crate) [u64; 2]);

impl From<[u8; 16]> for Comm {
    fn from(bytes: [u8; 16]) -> Self {
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Comm([half(0), half(8)])
    }
}

/// String ids of a kernel's or call's name, or of a path of ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) symbol: u64,
    pub(crate) name: u64,
    pub(crate) short_name: u64,
    /// Whether it is the name of a kernel's twin, in which device handlers ran.
    pub(crate) is_twin: bool,
}

/// The parts of an event that are not in its records.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadIdentity {
    pub(crate) pid: u64,
    pub(crate) tid: u64,
    pub(crate) comm: Comm,
}

/// The words that every activity's event has filled, whatever its handlers read.
pub(crate) const ALWAYS_FILLED: [usize; 16] = [
    word::JOINED,
    word::TIME,
    word::PID,
    word::TID,
    word::COMM,
    word::COMM + 1,
    word::NAME,
    word::SHORT_NAME,
    word::SYMBOL,
    word::START,
    word::END,
    word::DURATION,
    word::LAUNCH_PID,
    word::LAUNCH_TID,
    word::LAUNCH_COMM,
    word::LAUNCH_COMM + 1,
];

/// Fills the words of an activity that are not in its record as they are.
#[inline]
pub(crate) fn fill_activity(ctx: &mut GpuContext, span: Span, symbol: Symbol, identity: ThreadIdentity) {
    fill_identity(ctx, span.start, identity);
    ctx[word::NAME] = symbol.name;
    ctx[word::SHORT_NAME] = symbol.short_name;
    ctx[word::SYMBOL] = symbol.symbol;
    ctx[word::START] = span.start;
    ctx[word::END] = span.end;
    ctx[word::DURATION] = span.end.wrapping_sub(span.start);
}

/// Fills the times of an activity before its start.
#[inline]
pub(crate) fn fill_earlier_times(ctx: &mut GpuContext, activity: &ActivityRecord, start: u64) {
    if let ActivityRecord::Kernel(it) = activity {
        let on_clock =
            |time: Realtime| if time.0 == 0 { 0 } else { start.wrapping_sub(it.start.0.wrapping_sub(time.0)) };
        (ctx[word::QUEUED], ctx[word::SUBMITTED]) = (on_clock(it.queued), on_clock(it.submitted));
    }
}

/// Zeroes the words of the activity, for a launch event.
pub(crate) fn clear_activity(ctx: &mut GpuContext) {
    ctx[..word::LAUNCH].fill(0);
    ctx[word::MORE..].fill(0);
}

/// Zeroes the words of the launch, for an event without a known launch.
pub(crate) fn clear_launch(ctx: &mut GpuContext) {
    ctx[word::JOINED] = 0;
    ctx[word::LAUNCH..word::MORE].fill(0);
}

/// Fills `time pid tid comm`.
#[inline]
pub(crate) fn fill_identity(ctx: &mut GpuContext, time: u64, it: ThreadIdentity) {
    ctx[word::TIME] = time;
    ctx[word::PID] = it.pid;
    ctx[word::TID] = it.tid;
    ctx[word::COMM] = it.comm.0[0];
    ctx[word::COMM + 1] = it.comm.0[1];
}

/// Fills the words of a GPU, of which `at` is the first, and `limits` that of what a multiprocessor has; they are 0 if it is
/// not known.
#[inline]
pub(crate) fn fill_gpu(ctx: &mut GpuContext, (at, limits): (usize, usize), gpu: Option<&GpuFacts>) {
    let words = gpu.map_or([0; 4], |it| [it.name, it.uuid, it.sms, it.memory]);
    ctx[at..at + words.len()].copy_from_slice(&words);
    let words: [u64; GPU_LIMITS] = zerocopy::transmute!(gpu.map_or(GpuLimits::default(), |it| it.limits));
    ctx[limits..limits + words.len()].copy_from_slice(&words);
}

const GPU_LIMITS: usize = size_of::<GpuLimits>() / size_of::<u64>();

/// Fills the words that every host event has, and those that are in its record.
pub(crate) fn fill_host_event(
    ctx: &mut GpuContext,
    record: &HostEventRecord,
    thread: ThreadIdentity,
    texts: &impl Texts,
) {
    let common = record.common();
    record.put_words(ctx, texts);
    fill_identity(ctx, common.start, thread);
    fill_thread(ctx, thread);
    ctx[word::LAUNCH_DURATION] = common.end.wrapping_sub(common.start);
}

/// Fills the words of the thread that made a call.
#[inline]
fn fill_thread(ctx: &mut GpuContext, it: ThreadIdentity) {
    ctx[word::LAUNCH_PID] = it.pid;
    ctx[word::LAUNCH_TID] = it.tid;
    ctx[word::LAUNCH_COMM] = it.comm.0[0];
    ctx[word::LAUNCH_COMM + 1] = it.comm.0[1];
}

/// Says that the launch is known, and fills the words of its thread.
#[inline]
pub(crate) fn fill_launch_thread(ctx: &mut GpuContext, it: ThreadIdentity) {
    ctx[word::JOINED] = 1;
    fill_thread(ctx, it);
}
