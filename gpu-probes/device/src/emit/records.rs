//! Records: text and data for the host, through one ring. See [`crate::layout::ring`].

use super::{Emitter, RESULT, put};
use crate::analyse::State;
use crate::layout::{Storage, header, ring};
use crate::value::{Offset, Value};
use crate::{RecordKind, Refusal, SiteKind};
use xputrace_bytecode::BpfMapId;

/// Result of `ringbuf_output` without room: `-EAGAIN`, as in Linux.
const EAGAIN: i64 = -11;
/// Result of `perf_event_output` without room, as in bpftime.
const FULL: i64 = 2;
/// Bytes of text that `puts` records.
const MAX_TEXT_BYTES: u32 = 256;

/// A record with slots of its own.
struct Taken {
    site: usize,
    n_slots: u32,
    /// Where it is in the sequence of all slots.
    position: String,
    /// Address of its first byte.
    address: String,
    /// Address of its first slot's mark.
    mark: String,
    /// Where a run goes on for which there was no room.
    dropped: String,
}

impl Emitter<'_> {
    pub(super) fn ringbuf_output(&mut self, state: &State) -> Result<(), Refusal> {
        let ring = self.ring(1, state)?;
        let n_bytes = self.record_bytes(3, state)?;
        let data = self.argument(2, n_bytes, state)?;
        self.record(RecordKind::Data(ring), &data, n_bytes, EAGAIN)
    }

    pub(super) fn perf_event_output(&mut self, state: &State) -> Result<(), Refusal> {
        let ring = self.ring(2, state)?;
        let n_bytes = self.record_bytes(5, state)?;
        let data = self.argument(4, n_bytes, state)?;
        self.record(RecordKind::Data(ring), &data, n_bytes, FULL)
    }

    /// Records the three arguments and the format.
    pub(super) fn trace_printk(&mut self, state: &State) -> Result<(), Refusal> {
        let n_bytes = self.record_bytes(2, state)?;
        let mut data = Vec::new();
        for arg in 3..=5 {
            // How many are meant is in the format.
            data.push(match state.reg(self.node.frame, arg) {
                Value::Unset => self.constant(0),
                _ => self.reg(arg),
            });
        }
        data.extend(self.argument(1, n_bytes, state)?);
        self.record(RecordKind::Format, &data, ring::FORMAT_AT + n_bytes, EAGAIN)
    }

    /// Records a text, with what follows it up to the end of the memory that it is in; the host cuts it at its NUL.
    pub(super) fn puts(&mut self, state: &State) -> Result<(), Refusal> {
        let n_bytes = self.bytes_left(1, state)?.min(MAX_TEXT_BYTES);
        let data = self.argument(1, n_bytes, state)?;
        self.record(RecordKind::Text, &data, n_bytes, EAGAIN)
    }

    /// Returns the ring that an argument is.
    fn ring(&self, arg: u8, state: &State) -> Result<BpfMapId, Refusal> {
        match state.reg(self.node.frame, arg) {
            Value::Map(map) if self.request.maps[map.index()].kind == Storage::Ring => Ok(map),
            other => self.refuse(format!("r{arg} is {}, not a ring", other.name())),
        }
    }

    fn record_bytes(&self, arg: u8, state: &State) -> Result<u32, Refusal> {
        let most = ring::MAX_RECORD_BYTES - ring::RECORD_HEADER_BYTES - ring::FORMAT_AT;
        match u32::try_from(self.known(arg, "the record's size", state)?) {
            Ok(n_bytes) if n_bytes <= most => Ok(n_bytes),
            _ => self.refuse(format!("a record has more than {most} bytes")),
        }
    }

    /// Writes a whole record; sets R0 to 0, or to `full` where there is no room.
    fn record(&mut self, kind: RecordKind, data: &[String], n_bytes: u32, full: i64) -> Result<(), Refusal> {
        let taken = self.take(kind, n_bytes);
        self.write_header(&taken, n_bytes);
        for (at, word) in data.iter().enumerate() {
            let offset = ring::RECORD_HEADER_BYTES as usize + at * 8;
            put!(self, "st.relaxed.sys.global.u64 [{}+{offset}], {word}", taken.address);
        }
        self.publish(&taken.position, &taken.mark);
        put!(self, "mov.b64 {RESULT}, 0");
        self.or_dropped(&taken, full);
        Ok(())
    }

    fn write_header(&mut self, taken: &Taken, n_bytes: u32) {
        let Taken { site, address, position, .. } = taken;
        let number = u64::from(self.request.options.first_site) + *site as u64;
        let header = self.long();
        put!(self, "mov.b64 {header}, {:#x}", number | u64::from(n_bytes) << 32);
        put!(self, "st.relaxed.sys.global.u64 [{address}+{}], {header}", ring::SITE);
        put!(self, "st.relaxed.sys.global.u64 [{address}+{}], {position}", ring::POSITION);
    }

    /// Tells the reader that a record is written.
    fn publish(&mut self, position: &str, mark: &str) {
        let written = self.long();
        put!(self, "add.s64 {written}, {position}, 1");
        put!(self, "st.release.sys.global.u64 [{mark}+{}], {written}", ring::WRITTEN);
    }

    /// Ends the part of a run that has a record, and writes the part that has none.
    fn or_dropped(&mut self, taken: &Taken, result: i64) {
        let done = self.label();
        put!(self, "bra {done}");
        self.drop_record(taken);
        put!(self, "mov.b64 {RESULT}, {result}");
        self.place(&done);
    }

    /// Takes slots for a record: one atomic addition for all threads of a warp that do so together. Goes to
    /// [`Taken::dropped`] if the reader hasn't freed them.
    ///
    /// The threads are those that `activemask` sees. All of them execute what follows, so the shuffles are among
    /// exactly these, however the warp has diverged before.
    fn take(&mut self, kind: RecordKind, n_bytes: u32) -> Taken {
        let n_slots = (ring::RECORD_HEADER_BYTES + n_bytes).div_ceil(ring::SLOT_BYTES);
        let first = self.take_together(n_slots);
        let taken = Taken {
            site: self.site(SiteKind::Record(kind)),
            n_slots,
            position: first,
            address: self.long(),
            mark: self.long(),
            dropped: self.label(),
        };
        let Taken { position, address, mark, dropped, .. } = &taken;
        let (tail_at, capacity, slots, marks) = (
            self.address(header::RING_TAIL),
            self.header(header::RING_CAPACITY),
            self.address(header::RING_SLOTS),
            self.address(header::RING_MARKS),
        );
        let (tail, used, full, index) = (self.long(), self.long(), self.predicate(), self.long());
        put!(self, "ld.relaxed.sys.global.u64 {tail}, [{tail_at}]");
        put!(self, "sub.s64 {used}, {position}, {tail}");
        put!(self, "add.s64 {used}, {used}, {n_slots}");
        put!(self, "sub.s64 {index}, {capacity}, 1");
        put!(self, "and.b64 {index}, {index}, {position}");
        put!(self, "mad.lo.u64 {address}, {index}, {}, {slots}", ring::SLOT_BYTES);
        put!(self, "mad.lo.u64 {mark}, {index}, {}, {marks}", ring::MARK_BYTES);
        put!(self, "setp.gt.u64 {full}, {used}, {capacity}");
        put!(self, "@{full} bra {dropped}");
        taken
    }

    /// Adds to the head, and returns this thread's part.
    fn take_together(&mut self, n_slots: u32) -> String {
        let (together, leader, lane, before) = (self.word(), self.word(), self.word(), self.word());
        let (head_at, first, total) = (self.address(header::RING_HEAD), self.long(), self.long());
        let (low, high, follows, taken) = (self.word(), self.word(), self.predicate(), self.label());
        put!(self, "activemask.b32 {together}");
        put!(self, "bfind.u32 {leader}, {together}");
        put!(self, "mov.u32 {lane}, %laneid");
        put!(self, "mov.b64 {first}, 0");
        put!(self, "setp.ne.u32 {follows}, {lane}, {leader}");
        put!(self, "@{follows} bra {taken}");
        put!(self, "popc.b32 {before}, {together}");
        put!(self, "mul.wide.u32 {total}, {before}, {n_slots}");
        put!(self, "atom.relaxed.sys.global.add.u64 {first}, [{head_at}], {total}");
        self.place(&taken);
        put!(self, "mov.b64 {{{low}, {high}}}, {first}");
        put!(self, "shfl.sync.idx.b32 {low}, {low}, {leader}, 31, {together}");
        put!(self, "shfl.sync.idx.b32 {high}, {high}, {leader}, 31, {together}");
        put!(self, "mov.b64 {first}, {{{low}, {high}}}");
        put!(self, "mov.u32 {before}, %lanemask_lt");
        put!(self, "and.b32 {before}, {before}, {together}");
        put!(self, "popc.b32 {before}, {before}");
        put!(self, "mad.wide.u32 {first}, {before}, {n_slots}, {first}");
        first
    }

    /// Counts a record without room, and counts it in its slots, so that the reader passes them by.
    fn drop_record(&mut self, taken: &Taken) {
        self.place(&taken.dropped);
        self.count_loss(taken.site);
        let (capacity, marks) = (self.header(header::RING_CAPACITY), self.address(header::RING_MARKS));
        let (index, mark, position, end) = (self.long(), self.long(), self.long(), self.long());
        let (none, more, next, done) = (self.predicate(), self.predicate(), self.label(), self.label());
        put!(self, "setp.eq.u64 {none}, {capacity}, 0");
        put!(self, "@{none} bra {done}");
        put!(self, "mov.b64 {position}, {}", taken.position);
        put!(self, "add.s64 {end}, {position}, {}", taken.n_slots);
        self.place(&next);
        put!(self, "sub.s64 {index}, {capacity}, 1");
        put!(self, "and.b64 {index}, {index}, {position}");
        put!(self, "mad.lo.u64 {mark}, {index}, {}, {marks}", ring::MARK_BYTES);
        put!(self, "add.s64 {position}, {position}, 1");
        put!(self, "red.relaxed.sys.global.add.u64 [{mark}+{}], 1", ring::DROPPED);
        put!(self, "setp.lt.u64 {more}, {position}, {end}");
        put!(self, "@{more} bra {next}");
        self.place(&done);
    }

    /// Reserves a record that the program fills; R0 is the address of its data, or 0.
    pub(super) fn ringbuf_reserve(&mut self, state: &State) -> Result<(), Refusal> {
        let ring = self.ring(1, state)?;
        let n_bytes = self.record_bytes(2, state)?;
        let taken = self.take(RecordKind::Data(ring), n_bytes);
        self.write_header(&taken, n_bytes);
        put!(self, "add.s64 {RESULT}, {}, {}", taken.address, ring::RECORD_HEADER_BYTES);
        self.or_dropped(&taken, 0);
        Ok(())
    }

    pub(super) fn ringbuf_end(&mut self, submits: bool, state: &State) -> Result<(), Refusal> {
        let Value::Record { n_bytes, at: Offset::START, null } = state.reg(self.node.frame, 1) else {
            return self.refuse("r1 is not the start of a reserved record");
        };
        self.require(null, "%xpt_r1");
        let header_bytes = i64::from(ring::RECORD_HEADER_BYTES);
        if !submits {
            let len = self.word();
            put!(self, "mov.b32 {len}, {:#x}", n_bytes | ring::DISCARDED);
            put!(self, "st.relaxed.sys.global.u32 [%xpt_r1+{}], {len}", ring::LEN - header_bytes);
        }
        let (position, index, mark) = (self.long(), self.long(), self.long());
        let (capacity, marks) = (self.header(header::RING_CAPACITY), self.address(header::RING_MARKS));
        put!(self, "ld.relaxed.sys.global.u64 {position}, [%xpt_r1+{}]", ring::POSITION - header_bytes);
        put!(self, "sub.s64 {index}, {capacity}, 1");
        put!(self, "and.b64 {index}, {index}, {position}");
        put!(self, "mad.lo.u64 {mark}, {index}, {}, {marks}", ring::MARK_BYTES);
        self.publish(&position, &mark);
        put!(self, "mov.b64 {RESULT}, 0");
        Ok(())
    }
}
