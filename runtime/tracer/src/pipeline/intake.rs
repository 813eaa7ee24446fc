//! What the records of one drain change in their process.

use super::Limits;
use super::account::Ledger;
use super::handlers::{Handlers, Strings};
use super::orphans::Orphan;
use super::process::Process;
use super::queue::{Joined, Queue};
use crate::names::Names;
use crate::state::{MappingInfo, Target};
use xputrace_model::loss::Loss;
use xputrace_model::plan::StringId;
use xputrace_wire::record::{self, Clock, Flush, Frame, Kernel, Launch, Mapping, Record, framed, kind};

/// Everything that a drain of one process may change.
pub(super) struct Intake<'a> {
    pub(super) process: &'a mut Process,
    pub(super) target: &'a mut Target,
    pub(super) names: &'a mut Names,
    pub(super) strings: &'a mut Strings,
    pub(super) ledger: &'a mut Ledger,
    pub(super) handlers: &'a Handlers,
    pub(super) limits: Limits,
}

impl Intake<'_> {
    /// Takes a drain: first of all rings what kernels refer to, then the kernels.
    pub(super) fn take(&mut self, rings: &[Vec<u8>]) {
        rings.iter().for_each(|it| self.take_causes(it));
        self.retry_orphans();
        rings.iter().enumerate().for_each(|(ring, it)| self.take_activity(ring, it));
        self.process.watermark.buffers.end_drain();
        self.enforce_limits();
    }

    /// Gives up on everything that still waits.
    pub(super) fn give_up(&mut self) {
        self.shrink_orphans(0);
    }

    /// Counts the launches whose kernels never came.
    pub(super) fn count_lost_launches(&mut self) {
        self.forget_launches(usize::MAX, Loss::LostAtExit);
    }

    /// All records but those of the GPU's side.
    fn take_causes(&mut self, ring: &[u8]) {
        let mut frames = framed(ring);
        let sound = frames.all(|it| self.take_cause(&it)) && frames.rest().is_empty();
        self.ledger.losses.add(Loss::Malformed, (!sound).into());
    }

    /// False where the record is not what its kind says: the rest of its ring is skipped.
    #[inline]
    fn take_cause(&mut self, frame: &Frame<'_>) -> bool {
        match frame.header.kind {
            kind::LAUNCH => frame.read().map(|it| self.take_launch(&it)).is_some(),
            kind::NAME | kind::STACK | kind::THREAD | kind::MAPPING => {
                frame.decode().map(|it| self.take_description(it)).is_some()
            }
            _ => true,
        }
    }

    /// Clocks, kernels and flushes, in their order.
    fn take_activity(&mut self, ring: usize, bytes: &[u8]) {
        let sound = framed(bytes).all(|frame| match frame.header.kind {
            kind::KERNEL => frame.read().map(|it| self.take_kernel(ring, it)).is_some(),
            kind::CLOCK => frame.read().map(|it| self.take_clock(ring, &it)).is_some(),
            kind::FLUSH => frame.read().map(|it| self.take_flush(ring, &it)).is_some(),
            _ => true,
        });
        self.ledger.losses.add(Loss::Malformed, (!sound).into());
    }

    #[inline]
    fn take_launch(&mut self, launch: &Launch) {
        if !self.handlers.wanted.launches {
            return;
        }
        let process = &mut *self.process;
        process.counts.launches += 1;
        if launch.flags & Launch::CAPTURED != 0 {
            self.ledger.account.captured += 1;
            process.counts.captured_launches += 1;
            return;
        }
        self.ledger.account.launches = self.ledger.account.launches.saturating_add(1);
        process.watermark.launch(launch);
        if launch.result != 0 {
            self.ledger.account.failed += 1;
        } else if self.handlers.wanted.kernels {
            process.launches.insert(launch);
        }
        if !self.handlers.launch.is_empty() {
            process.queue.push(Joined::of_launch(launch));
        }
    }

    fn take_description(&mut self, record: Record<'_>) {
        match record {
            Record::Name { id, text } => self.take_name(id, text),
            Record::Stack { id, frames } => {
                let kept = self.target.add_stack(id, frames);
                self.ledger.losses.add(Loss::StackTableFull, (!kept).into());
            }
            Record::Thread(thread) => self.process.facts.name_thread(thread.tid, thread.comm),
            Record::Mapping { mapping, path } => {
                let kept = self.target.add_mapping(mapping_info(&mapping, path));
                self.ledger.losses.add(Loss::Malformed, (!kept).into());
            }
            _ => {}
        }
    }

    /// An id keeps its first text: a target cannot make the string table grow without end.
    fn take_name(&mut self, id: u32, text: &[u8]) {
        let facts = &mut self.process.facts;
        if facts.knows_name(id) {
            return;
        }
        let named = facts.has_room_for_names() && {
            let symbol = self.strings.symbol(&String::from_utf8_lossy(text), self.names);
            let texts = [symbol.symbol, symbol.name, symbol.short_name];
            let bytes = texts.into_iter().filter_map(|it| self.names.get(it)).map(|it| it.len()).sum();
            facts.name(id, symbol, bytes)
        };
        self.ledger.losses.add(Loss::NameTableFull, (!named).into());
    }

    fn take_clock(&mut self, ring: usize, pair: &Clock) {
        let stepped = self.process.clock.update(pair);
        self.process.watermark.buffers.begin(ring, pair.monotonic_before);
        self.ledger.losses.add(Loss::ClockStep, stepped.into());
    }

    #[inline]
    fn take_kernel(&mut self, ring: usize, mut kernel: Kernel) {
        let wanted = self.handlers.wanted;
        if !wanted.kernels {
            return;
        }
        let process = &mut *self.process;
        let account = &mut self.ledger.account;
        account.kernels += 1;
        process.counts.kernels += 1;
        let timed = kernel.start != 0 && kernel.end >= kernel.start;
        if timed {
            account.kernel_nanos = account.kernel_nanos.saturating_add(kernel.end - kernel.start);
            kernel.start = process.clock.to_monotonic(kernel.start);
            kernel.end = process.clock.to_monotonic(kernel.end);
        } else {
            process.counts.untimed_kernels += 1;
            self.ledger.losses.add(Loss::NoTimestamps, 1);
        }
        if !wanted.launches {
            process.watermark.buffers.kernel(ring, &kernel);
            if timed {
                process.queue.push(Joined::of_kernel(&kernel, None));
            }
        } else if !join(process, self.ledger, &kernel, timed) {
            process.orphans.push(kernel, timed);
        }
    }

    fn take_flush(&mut self, ring: usize, flush: &Flush) {
        self.process.watermark.flush(ring, flush.began);
        let Process { orphans, queue, .. } = &mut *self.process;
        self.ledger.losses.add(Loss::Unjoined, give_up(orphans.expire(), queue));
    }

    fn retry_orphans(&mut self) {
        let mut orphans = std::mem::take(&mut self.process.orphans);
        orphans.retry(|it| join(self.process, self.ledger, &it.kernel, it.timed));
        self.process.orphans = orphans;
    }

    fn enforce_limits(&mut self) {
        self.shrink_orphans(self.limits.orphan_kernels);
        let over = self.process.launches.n_waiting().saturating_sub(self.limits.pending_launches);
        if over > 0 {
            self.forget_launches(over + self.limits.pending_launches / 16, Loss::LaunchEvicted);
        }
    }

    fn shrink_orphans(&mut self, limit: usize) {
        let Process { orphans, queue, .. } = &mut *self.process;
        self.ledger.losses.add(Loss::Unjoined, give_up(orphans.shrink_to(limit), queue));
    }

    fn forget_launches(&mut self, n: usize, loss: Loss) {
        let gone = self.process.launches.evict(n);
        self.ledger.losses.add(loss, gone.len() as u64);
        for launch in &gone {
            self.ledger.lose(self.process.facts.launch_symbol(launch).name as StringId, 1);
        }
    }
}

/// Joins a kernel with its launch; false where that has not come.
#[inline]
fn join(process: &mut Process, ledger: &mut Ledger, kernel: &Kernel, timed: bool) -> bool {
    let Some((launch, first)) = process.launches.join(kernel.correlation, kernel.context) else { return false };
    ledger.account.joined += u64::from(first);
    process.watermark.joined(&launch);
    if timed {
        process.queue.push(Joined::of_kernel(kernel, Some(&launch)));
    }
    true
}

/// Kernels whose launch is waited for no longer; how many.
fn give_up(orphans: impl Iterator<Item = Orphan>, queue: &mut Queue) -> u64 {
    let mut n = 0;
    for orphan in orphans {
        n += 1;
        if orphan.timed {
            queue.push(Joined::of_kernel(&orphan.kernel, None));
        }
    }
    n
}

fn mapping_info(mapping: &Mapping, path: &[u8]) -> MappingInfo {
    let record::Mapping { start, end, file_offset, inode, device, .. } = *mapping;
    MappingInfo { start, end, file_offset, inode, device, path: String::from_utf8_lossy(path).into_owned() }
}
