//! The GPU's timer on the clock of the process: what handlers add to the one to have the other.
//!
//! ```text
//! now() ── launch ──▶ a kernel of ours stores %globaltimer in memory of the process ── seen ──▶ now()
//! ```
//! The timer was read between two looks at the clock, so the middle of them is right within half of the time between. Of some
//! such samples the shortest is taken.
//!
//! Nobody waits for the GPU: where it is busy, a sample is dropped after [`ANSWERS_WITHIN_NANOS`], and no other is begun before its
//! kernel has run.

use super::super::Handle;
use super::super::driver::Code;
use super::code::DriverResult;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use xputrace_agent::clock::{now, realtime_now};
use xputrace_agent::zeroed::Zeroed;
use xputrace_wire::region::PAGE;

/// The kernel. It has a twin's variable, by which its module is known as ours.
const TIMER_PTX: &str = "\
.version 6.3
.target sm_70
.address_size 64
.visible .global .align 8 .u64 xpt_device[1];
.visible .entry xpt_timer(.param .u64 at)
{
	.reg .b64 %at, %time;
	ld.param.u64 %at, [at];
	mov.u64 %time, %globaltimer;
	st.volatile.u64 [%at], %time;
	ret;
}
\0";

/// How often the timer is measured, at most: it is looked at with each copy of the blocks.
const MEASURES_EVERY_NANOS: u64 = 100_000_000;
/// How long an offset is in use, as far as is assumed: it is what is right in the middle of that time.
const IN_USE_NANOS: i64 = MEASURES_EVERY_NANOS as i64;
/// Samples of a measurement. Each takes some 10 us.
const SAMPLES: usize = 4;
/// How long a sample waits for its kernel.
const ANSWERS_WITHIN_NANOS: u64 = 2_000_000;
/// By how much the clocks drift at most, in parts per million, as far as it is assumed. (1.9 were seen on an H200, 27 on an H100.)
const DRIFT_PPM: i64 = 100;
/// Time between two samples from which a drift can be told: that of their errors is little then.
const TELLS_DRIFT_NANOS: u64 = 50_000_000;

/// Makes calls of the driver in a context.
pub(crate) trait Calls {
    /// Makes one, if the context is there still.
    fn call<T>(&self, call: impl FnOnce() -> DriverResult<T>) -> DriverResult<T>;
}

/// One reading of the GPU's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    /// What is to be added to the timer.
    offset_nanos: i64,
    /// By how much that may be wrong.
    error_nanos: u64,
    /// When it was taken.
    at: u64,
}

impl Sample {
    /// Of a timer that was read between two times.
    fn between(before: u64, timer: u64, after: u64) -> Self {
        let error_nanos = after.saturating_sub(before).div_ceil(2);
        let at = before + error_nanos;
        Sample { offset_nanos: at.wrapping_sub(timer) as i64, error_nanos, at }
    }

    /// Returns its error some time later, at a time.
    fn error_at(&self, at: u64) -> u64 {
        self.error_nanos + at.saturating_sub(self.at) / 1_000_000 * DRIFT_PPM as u64
    }

    /// Whether it is as good as an older one, whose error has grown since.
    fn is_as_good_as(&self, older: &Sample) -> bool {
        self.error_nanos <= older.error_at(self.at)
    }

    /// Returns the offset in the middle of the time for which it is in use, if it goes on to drift as it has since an older sample.
    fn ahead(&self, older: Option<&Sample>) -> i64 {
        let since = |it: &Sample| self.at.saturating_sub(it.at);
        let Some(older) = older.filter(|it| since(it) >= TELLS_DRIFT_NANOS) else { return self.offset_nanos };
        let drift = i128::from(self.offset_nanos - older.offset_nanos) * i128::from(IN_USE_NANOS / 2)
            / i128::from(since(older));
        let most = i128::from(IN_USE_NANOS / 2 / 1_000_000 * DRIFT_PPM);
        self.offset_nanos + drift.clamp(-most, most) as i64
    }
}

/// The timer of a context's GPU. One thread uses it, which works with the driver.
#[derive(Debug, Default)]
pub(crate) struct GpuTimer {
    /// `None` before it is loaded, and where that failed.
    kernel: Option<TimerKernel>,
    was_tried: bool,
    /// When it was measured last, whether it answered or not.
    tried_at: u64,
    /// Where the offset comes from.
    sample: Option<Sample>,
    /// What handlers are to add: the guess, or as measured.
    offset_nanos: i64,
    /// What they do add: the word of the block.
    written_nanos: i64,
    /// By how much times have been wrong at most.
    error_nanos: u64,
}

impl GpuTimer {
    pub(crate) const fn new() -> Self {
        GpuTimer {
            kernel: None,
            was_tried: false,
            tried_at: 0,
            sample: None,
            offset_nanos: 0,
            written_nanos: 0,
            error_nanos: 0,
        }
    }

    /// Returns what handlers add at first, and by how much that may be wrong: until it is measured, as if it were CLOCK_REALTIME, which
    /// it is close to (0.05 to 8 ms were seen), and 0.
    pub(crate) fn first(&mut self) -> (i64, u64) {
        if self.sample.is_none() {
            self.offset_nanos = guess();
        }
        self.written_nanos = self.offset_nanos;
        (self.offset_nanos, self.error_nanos)
    }

    /// Measures it in the current context, if it is time to, and has `write` tell handlers what they add from now on, if that
    /// changes. `was_read` says whether they may have read what they add so far.
    ///
    /// Without an answer of the GPU, or where writing fails, handlers add what they did, and the error counts that.
    pub(crate) fn bring_up_to_date(
        &mut self,
        code: &Code,
        calls: &impl Calls,
        was_read: bool,
        write: impl FnOnce([u8; 8]) -> bool,
    ) {
        self.note_what_is_in_use(was_read);
        if self.is_due() {
            // Without an answer it is measured later.
            let _ = self.measure(code, calls, was_read);
        }
        if self.offset_nanos != self.written_nanos && write(self.offset_nanos.to_le_bytes()) {
            self.written_nanos = self.offset_nanos;
        }
    }

    /// Says what handlers add so far, where the first offset was not asked of this timer.
    pub(crate) fn set_written(&mut self, written_nanos: i64) {
        self.written_nanos = written_nanos;
        if self.sample.is_none() {
            self.offset_nanos = written_nanos;
        }
    }

    fn note_what_is_in_use(&mut self, was_read: bool) {
        let Some(sample) = self.sample.filter(|_| was_read && self.written_nanos != self.offset_nanos) else { return };
        let moved = sample.offset_nanos.abs_diff(self.written_nanos);
        self.error_nanos = self.error_nanos.max(sample.error_nanos.saturating_add(moved));
    }

    /// Whether it is to be measured, or what was measured is to be written.
    pub(crate) fn has_work(&self) -> bool {
        self.is_due() || self.sample.is_some() && !self.is_settled()
    }

    /// Whether handlers add what was measured.
    pub(crate) fn is_settled(&self) -> bool {
        self.sample.is_some() && self.written_nanos == self.offset_nanos
    }

    /// Whether it can't be measured.
    pub(crate) fn has_failed(&self) -> bool {
        self.was_tried && self.kernel.is_none()
    }

    /// Loads its kernel into the current context, for a stream that is used for nothing else. Tries it once.
    pub(crate) fn load(&mut self, code: &Code, calls: &impl Calls, stream: impl FnOnce() -> DriverResult<Handle>) {
        if !std::mem::replace(&mut self.was_tried, true) {
            self.kernel = stream().and_then(|it| TimerKernel::load(code, calls, it)).ok();
        }
    }

    /// Whether it is loaded, and time to measure it.
    pub(crate) fn is_due(&self) -> bool {
        self.kernel.is_some() && (self.sample.is_none() || now() - self.tried_at >= MEASURES_EVERY_NANOS)
    }

    /// Measures it in the current context. `was_read` says whether handlers may have read it already.
    pub(crate) fn measure(&mut self, code: &Code, calls: &impl Calls, was_read: bool) -> DriverResult<()> {
        let Some(kernel) = &mut self.kernel else { return Ok(()) };
        self.tried_at = now();
        if let Some(best) = kernel.best_of(SAMPLES, code, calls)? {
            self.take(best, was_read);
        }
        Ok(())
    }

    /// Takes a sample over, if it is good enough.
    fn take(&mut self, new: Sample, was_read: bool) {
        // A long sample, as of a GPU that is busy, says less of what was in use than the one before it.
        let in_use = |it: &Sample, error: u64| error.saturating_add(it.offset_nanos.abs_diff(self.offset_nanos));
        let by_older = self.sample.map_or(u64::MAX, |it| in_use(&it, it.error_at(new.at)));
        let error = if was_read { in_use(&new, new.error_nanos).min(by_older) } else { new.error_nanos };
        self.error_nanos = self.error_nanos.max(error);
        if self.sample.is_none_or(|it| new.is_as_good_as(&it)) {
            let older = self.sample.replace(new);
            self.offset_nanos = new.ahead(older.as_ref());
        }
    }

    /// Returns what handlers add.
    pub(crate) fn written_nanos(&self) -> i64 {
        self.written_nanos
    }

    /// Returns by how much handlers' times have been wrong at most, in nanoseconds: drift included, up to the last sample. 0 before
    /// the first.
    pub(crate) fn error_nanos(&self) -> u64 {
        self.error_nanos
    }
}

/// Returns what handlers add before anything was measured.
pub(crate) fn guess() -> i64 {
    now().wrapping_sub(realtime_now().0) as i64
}

/// Our kernel in a context.
#[derive(Debug)]
struct TimerKernel {
    /// `CUfunction`.
    function: u64,
    stream: Handle,
    /// What the kernel stores to, and where the GPU has it. It stays mapped, as the GPU may use it as long as the process lives.
    word: &'static AtomicU64,
    address: u64,
    /// Whether a launch was not seen to run.
    is_waiting: bool,
}

// SAFETY: the stream's handle is a name, which the driver checks.
unsafe impl Send for TimerKernel {}

impl TimerKernel {
    fn load(code: &Code, calls: &impl Calls, stream: Handle) -> DriverResult<Self> {
        const OUT_OF_MEMORY: u32 = 2;
        // A page of its own: what registers it may end before other contexts do.
        let page: &'static Zeroed<AtomicU64> =
            Box::leak(Box::new(Zeroed::new(PAGE / size_of::<u64>()).map_err(|_| OUT_OF_MEMORY)?));
        // A fork would leave the GPU with the page that the child has.
        // SAFETY: the page just made.
        if unsafe { libc::madvise(page.as_ptr().cast_mut().cast(), PAGE, libc::MADV_DONTFORK) } != 0 {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: the caller's context is current; text that ends with a 0, a kernel in it, and a page that stays.
        unsafe {
            let library = calls.call(|| code.load(TIMER_PTX.as_bytes()))?;
            let kernel = calls.call(|| code.kernel(library, c"xpt_timer"))?;
            let function = calls.call(|| code.function(kernel))?;
            let address = calls.call(|| code.register(page.as_ptr().cast_mut().cast(), PAGE))?;
            Ok(TimerKernel { function, stream, word: &page[0], address, is_waiting: false })
        }
    }

    /// Returns the shortest of some samples; `None` if the GPU does not answer.
    fn best_of(&mut self, n: usize, code: &Code, calls: &impl Calls) -> DriverResult<Option<Sample>> {
        let mut best: Option<Sample> = None;
        for _ in 0..n {
            let Some(sample) = self.sample(code, calls)? else { break };
            best = Some(best.filter(|it| it.error_nanos <= sample.error_nanos).unwrap_or(sample));
        }
        Ok(best)
    }

    fn sample(&mut self, code: &Code, calls: &impl Calls) -> DriverResult<Option<Sample>> {
        if self.is_waiting && self.word.load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        self.word.store(0, Ordering::SeqCst);
        let before = now();
        // SAFETY: our own kernel and stream, in the current context.
        calls.call(|| unsafe { code.launch_thread(self.function, self.address, self.stream) })?;
        self.is_waiting = true;
        loop {
            let timer = self.word.load(Ordering::Acquire);
            let after = now();
            if timer != 0 {
                self.is_waiting = false;
                return Ok(Some(Sample::between(before, timer, after)));
            }
            if after - before >= ANSWERS_WITHIN_NANOS {
                return Ok(None);
            }
            spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(offset_nanos: i64, error_nanos: u64, at: u64) -> Sample {
        Sample { offset_nanos, error_nanos, at }
    }

    #[test]
    fn a_sample_is_right_within_half_of_its_time() {
        assert_eq!(Sample::between(1000, 7_000_000, 1007), sample(1004 - 7_000_000, 4, 1004));
        assert_eq!(Sample::between(7_000_000, 1000, 7_000_000), sample(6_999_000, 0, 7_000_000));
    }

    /// Of a timer with this offset, what a sample makes of it.
    fn taken(timer: &mut GpuTimer, new: Sample, was_read: bool) -> (i64, u64) {
        timer.take(new, was_read);
        (timer.offset_nanos, timer.error_nanos())
    }

    fn guessed(offset_nanos: i64) -> GpuTimer {
        let mut timer = GpuTimer::new();
        timer.set_written(offset_nanos);
        timer
    }

    #[test]
    fn the_error_is_that_of_all_times_that_were_read() {
        let mut timer = guessed(-500_000);
        assert_eq!(taken(&mut timer, sample(-20, 4000, 0), false), (-20, 4000));
        // It drifted by 2 us a second, and goes on to do so.
        let second = 1_000_000_000;
        assert_eq!(taken(&mut timer, sample(-2020, 3000, second), true), (-2120, 5000));
        assert_eq!(taken(&mut timer, sample(-4020, 3500, 2 * second), true), (-4120, 5400));
        assert_eq!(taken(&mut guessed(-500_000), sample(0, 4000, 0), true), (0, 504_000));
    }

    #[test]
    fn a_guess_that_is_in_use_after_the_measurement_counts_as_wrong() {
        let of = |was_read| {
            let mut timer = guessed(-700);
            timer.take(sample(0, 4, 0), false);
            timer.set_written(-500);
            timer.note_what_is_in_use(was_read);
            (timer.offset_nanos, timer.is_settled(), timer.error_nanos())
        };
        assert_eq!((of(false), of(true)), ((0, false, 4), (0, false, 504)));
    }

    #[test]
    fn a_long_sample_replaces_none_that_is_better_still() {
        let mut timer = GpuTimer::new();
        assert_eq!(taken(&mut timer, sample(0, 4000, 0), false), (0, 4000));
        assert_eq!(taken(&mut timer, sample(-9000, 15_000, 100_000_000), true), (0, 14_000));
        assert_eq!(taken(&mut timer, sample(-9000, 15_000, 200_000_000), true).0, -9000 - 2250);
    }

    #[test]
    fn a_drift_that_is_not_believed_is_not_followed() {
        let mut timer = GpuTimer::new();
        timer.take(sample(0, 4000, 0), false);
        assert_eq!(taken(&mut timer, sample(1_000_000, 4000, 100_000_000), true).0, 1_000_000 + 5_000);
        assert_eq!(taken(&mut timer, sample(1_000_500, 4000, 110_000_000), true).0, 1_000_500, "too soon to tell");
    }
}
