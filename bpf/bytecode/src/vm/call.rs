//! The helper functions. Results and order of checks are Linux's.

use super::env::{E2BIG, EAGAIN, EFAULT, EINVAL, EPERM, Env, GpuThread, Modification};
use super::fault::FaultReason;
use super::map::{LookedUp, Map, Store};
use super::memory::RunMemory;
use super::pointer::{self, MAPS, STACK, VALUES};
use super::printk;
use crate::helper as id;
use crate::id::BpfMapId;

/// Longest text that `trace_printk` reads: a format (bpftime's limit), or what a `%s` points to.
const MOST_TEXT_BYTES: usize = 1000;
/// `perf_event_output`'s answer in bpftime if there is no room.
const RING_FULL: u64 = 2;

/// Maximum record size, whatever the ring buffer's size.
const MAX_RECORD_BYTES: u64 = 1 << 24;
/// Header that Linux puts before each record.
const RECORD_HEADER_BYTES: u64 = 8;
/// `BPF_RB_NO_WAKEUP | BPF_RB_FORCE_WAKEUP`.
const RINGBUF_FLAGS: u64 = 3;
/// Size of `struct bpf_pidns_info`.
const PIDNS_INFO_BYTES: u64 = 8;

/// What calls need besides their arguments; kept between runs for its allocations.
#[derive(Default)]
pub(super) struct Scratch {
    key: Vec<u8>,
    value: Vec<u8>,
}

type HelperResult = Result<u64, FaultReason>;

/// A call in progress.
pub(super) struct HelperCall<'c, 'm, E> {
    pub(super) memory: &'c mut RunMemory<'m>,
    pub(super) scratch: &'c mut Scratch,
    pub(super) env: &'c mut E,
    /// R1 to R5.
    pub(super) args: [u64; 5],
}

impl<E: Env> HelperCall<'_, '_, E> {
    /// Runs the helper; returns the value of R0.
    #[inline(never)]
    pub(super) fn run(&mut self, helper: i32) -> HelperResult {
        match helper {
            id::MAP_LOOKUP_ELEM | id::MAP_LOOKUP_PERCPU_ELEM => self.lookup(),
            id::MAP_UPDATE_ELEM => self.update(),
            id::MAP_DELETE_ELEM => self.delete(),
            id::KTIME_GET_NS => Ok(self.env.ktime_ns()),
            id::GET_SMP_PROCESSOR_ID => Ok(self.env.cpu().into()),
            id::GET_CURRENT_PID_TGID => Ok(self.env.pid_tgid()),
            id::GET_CURRENT_UID_GID => Ok(self.env.uid_gid()),
            id::GET_CURRENT_COMM => self.comm(),
            id::GET_STACKID => Ok(self.env.stack_id(self.args[2]) as u64),
            id::GET_CURRENT_TASK => Ok(0),
            id::GET_CURRENT_CGROUP_ID => Ok(self.env.cgroup_id()),
            id::PROBE_READ_USER => self.read_memory(true),
            id::PROBE_READ_KERNEL => self.read_memory(false),
            id::PROBE_READ_USER_STR => self.read_str(true),
            id::PROBE_READ_KERNEL_STR => self.read_str(false),
            id::GET_NS_CURRENT_PID_TGID => self.ns_pid_tgid(),
            id::RINGBUF_OUTPUT => self.ringbuf_output(),
            id::RINGBUF_RESERVE => self.ringbuf_reserve(),
            id::RINGBUF_SUBMIT => self.ringbuf_end(true),
            id::RINGBUF_DISCARD => self.ringbuf_end(false),
            id::GET_FUNC_IP => Ok(self.env.func_ip()),
            id::GET_ATTACH_COOKIE => Ok(self.env.attach_cookie()),
            id::NAME_TEXT => self.name_text(),
            id::MAP_MODIFY => self.modify(),
            id::NAME_MATCHES => Ok(self.name_matches().into()),
            id::RAISE => self.raise(),
            id::TRACE_PRINTK => self.printk(),
            id::PERF_EVENT_OUTPUT => self.perf_event_output(),
            id::PUTS => self.puts(),
            id::GET_GLOBALTIMER => Ok(self.env.ktime_ns()),
            id::GET_BLOCK_IDX => self.three(|it| it.block),
            id::GET_BLOCK_DIM => self.three(|it| it.block_dim),
            id::GET_THREAD_IDX => self.three(|it| it.thread),
            id::GET_GRID_DIM => self.three(|it| it.grid_dim),
            // A single thread runs the engine.
            id::MEMBAR => Ok(0),
            id::EXIT_THREAD => Err(FaultReason::ThreadExit),
            id::GET_SM_ID => Ok(self.env.gpu_thread().sm),
            id::GET_WARP_ID => Ok(self.env.gpu_thread().warp),
            id::GET_LANE_ID => Ok(self.env.gpu_thread().lane),
            _ => Err(FaultReason::NoHelper(helper)),
        }
    }

    /// A single thread runs the engine, so plain memory access is atomic enough.
    fn raise(&mut self) -> HelperResult {
        let [address, number, ..] = self.args;
        let bad = |write| FaultReason::BadAccess { address, len: size_of::<u64>(), write };
        let old = u64::from_le_bytes(self.memory.load(address).ok_or(bad(false))?);
        self.memory.store(address, old.max(number).to_le_bytes()).ok_or(bad(true))?;
        Ok(0)
    }

    /// Writes three words to where R1 to R3 point.
    fn three(&mut self, of: impl FnOnce(GpuThread) -> [u64; 3]) -> HelperResult {
        for (address, word) in self.args.into_iter().zip(of(self.env.gpu_thread())) {
            let bad = FaultReason::BadAccess { address, len: size_of::<u64>(), write: true };
            self.memory.store(address, word.to_le_bytes()).ok_or(bad)?;
        }
        Ok(0)
    }

    /// Returns the text at an address up to its NUL, or its first bytes; `None` if that is not readable.
    fn text(memory: &RunMemory<'_>, address: u64) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        while text.len() < MOST_TEXT_BYTES {
            match memory.load::<1>(address.wrapping_add(text.len() as u64))? {
                [0] => break,
                [byte] => text.push(byte),
            }
        }
        Some(text)
    }

    fn printk(&mut self) -> HelperResult {
        let [address, len, args @ ..] = self.args;
        let len = (len as u32 as usize).min(MOST_TEXT_BYTES);
        let format = self.memory.bytes(address, len);
        let format = format.ok_or(FaultReason::BadAccess { address, len, write: false })?;
        match printk::line(format, &args, |at| Self::text(self.memory, at)) {
            Some(line) => {
                self.env.print(&line);
                Ok(line.len() as u64)
            }
            None => Ok(EINVAL as u64),
        }
    }

    fn puts(&mut self) -> HelperResult {
        let address = self.args[0];
        let bad = FaultReason::BadAccess { address, len: 1, write: false };
        let text = Self::text(self.memory, address).ok_or(bad)?;
        self.env.print(String::from_utf8_lossy(&text).trim_end_matches('\n'));
        Ok(0)
    }

    /// Returns the map in R1.
    fn map(&self) -> Result<usize, FaultReason> {
        self.map_in(self.args[0])
    }

    fn map_in(&self, address: u64) -> Result<usize, FaultReason> {
        let at = pointer::offset(address) as usize;
        if pointer::region(address) != MAPS || at >= self.memory.maps.len() {
            return Err(FaultReason::NoMap { address });
        }
        Ok(at)
    }

    #[inline(always)]
    pub(super) fn lookup(&mut self) -> HelperResult {
        let at = self.map()?;
        let (map, key) = self.map_and_key(at)?;
        look_up(map, at, key)
    }

    #[inline(always)]
    fn map_and_key(&mut self, at: usize) -> Result<(&mut Map, &[u8]), FaultReason> {
        let (address, len) = (self.args[1], self.memory.maps[at].key_size);
        let RunMemory { local, maps } = &mut *self.memory;
        let key = local.argument(maps, &mut self.scratch.key, address, len);
        let key = key.ok_or(FaultReason::BadAccess { address, len, write: false })?;
        Ok((&mut maps[at], key))
    }

    fn update(&mut self) -> HelperResult {
        let at = self.map()?;
        let [_, key_at, value_at, flags, _] = self.args;
        let RunMemory { local, maps } = &mut *self.memory;
        let (key_len, value_len) = (maps[at].key_size, maps[at].value_size);
        let bad = |address, len| FaultReason::BadAccess { address, len, write: false };
        let key = local.argument(maps, &mut self.scratch.key, key_at, key_len);
        let key = key.ok_or(bad(key_at, key_len))?;
        let value = local.argument(maps, &mut self.scratch.value, value_at, value_len);
        let value = value.ok_or(bad(value_at, value_len))?;
        if maps[at].is_read_only {
            return Ok(EPERM as u64);
        }
        Ok(maps[at].update(key, value, flags) as u64)
    }

    fn delete(&mut self) -> HelperResult {
        let at = self.map()?;
        let (map, key) = self.map_and_key(at)?;
        Ok(map.delete(key) as u64)
    }

    fn modify(&mut self) -> HelperResult {
        let at = self.map()?;
        let [_, _, operand, op, _] = self.args;
        let (map, key) = self.map_and_key(at)?;
        let change = i32::try_from(op).ok().and_then(|op| Modification::new(op, operand));
        Ok(change.map_or(EINVAL, |it| map.modify(key, it)) as u64)
    }

    fn comm(&mut self) -> HelperResult {
        let [address, len, ..] = self.args;
        if len == 0 {
            return Ok(EINVAL as u64);
        }
        let out = writable(self.memory, address, len)?;
        out.fill(0);
        self.env.comm(out);
        if let Some(last) = out.last_mut() {
            *last = 0;
        }
        Ok(0)
    }

    fn read_memory(&mut self, user: bool) -> HelperResult {
        let [to, len, from, ..] = self.args;
        let out = writable(self.memory, to, len)?;
        if self.env.read_memory(user, from, out) {
            return Ok(0);
        }
        out.fill(0);
        Ok(EFAULT as u64)
    }

    fn read_str(&mut self, user: bool) -> HelperResult {
        let [to, len, from, ..] = self.args;
        if !user && self.memory.bytes(from, 0).is_some() {
            return self.copy_str();
        }
        let out = writable(self.memory, to, len)?;
        let answer = self.env.read_str(user, from, out);
        if answer < 0 {
            out.fill(0);
        }
        Ok(answer as u64)
    }

    /// Implements `probe_read_kernel_str` for memory that the program itself can reach.
    fn copy_str(&mut self) -> HelperResult {
        let [to, len, from, ..] = self.args;
        let most = (len as u32 as usize).saturating_sub(1);
        self.scratch.value.clear();
        for at in 0..most as u64 {
            match self.memory.load::<1>(from.wrapping_add(at)) {
                Some([0]) => break,
                Some([byte]) => self.scratch.value.push(byte),
                None => return Ok(EFAULT as u64),
            }
        }
        self.scratch.value.push(0);
        let n_bytes = self.scratch.value.len().min(len as u32 as usize);
        let out = writable(self.memory, to, n_bytes as u64)?;
        out.copy_from_slice(&self.scratch.value[..n_bytes]);
        Ok(n_bytes as u64)
    }

    fn ns_pid_tgid(&mut self) -> HelperResult {
        let [_, _, to, len, _] = self.args;
        let out = writable(self.memory, to, len)?;
        if len != PIDNS_INFO_BYTES {
            out.fill(0);
            return Ok(EINVAL as u64);
        }
        // struct bpf_pidns_info { u32 pid; u32 tgid; }, which is the word's own order.
        out.copy_from_slice(&self.env.pid_tgid().to_le_bytes());
        Ok(0)
    }

    fn ringbuf(&self) -> Result<usize, FaultReason> {
        let at = self.map()?;
        match self.memory.maps[at].store {
            Store::Outside => Ok(at),
            _ => Err(FaultReason::NoMap { address: self.args[0] }),
        }
    }

    fn ringbuf_output(&mut self) -> HelperResult {
        let at = self.ringbuf()?;
        let [_, address, len, flags, _] = self.args;
        if flags & !RINGBUF_FLAGS != 0 {
            return Ok(EINVAL as u64);
        }
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        let data = self.memory.bytes(address, size);
        let data = data.ok_or(FaultReason::BadAccess { address, len: size, write: false })?;
        Ok(if self.env.output(BpfMapId::at(at), data) { 0 } else { EAGAIN as u64 })
    }

    /// Writes a record of at most the size of the map's values.
    fn perf_event_output(&mut self) -> HelperResult {
        let [_ctx, map, _flags, address, len] = self.args;
        let at = self.map_in(map)?;
        let Map { store: Store::Outside, value_size, .. } = self.memory.maps[at] else {
            return Err(FaultReason::NoMap { address: map });
        };
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        let data = self.memory.bytes(address, size);
        let data = data.ok_or(FaultReason::BadAccess { address, len: size, write: false })?;
        if size > value_size {
            return Ok(E2BIG as u64);
        }
        Ok(if self.env.output(BpfMapId::at(at), data) { 0 } else { RING_FULL })
    }

    fn ringbuf_reserve(&mut self) -> HelperResult {
        let at = self.ringbuf()?;
        let [_, len, flags, ..] = self.args;
        let room = u64::from(self.memory.maps[at].max_entries).saturating_sub(RECORD_HEADER_BYTES);
        if flags != 0 || len > room.min(MAX_RECORD_BYTES) {
            return Ok(0);
        }
        let record = self.memory.local.records.reserve(at, len as usize);
        record.ok_or(FaultReason::TooManyRecords)
    }

    fn ringbuf_end(&mut self, submit: bool) -> HelperResult {
        let address = self.args[0];
        let taken = self.memory.local.records.take(address);
        let (map, data) = taken.ok_or(FaultReason::NoRecord { address })?;
        if submit {
            self.env.output(BpfMapId::at(map), data);
        }
        Ok(0)
    }

    fn name_text(&mut self) -> HelperResult {
        let [string_id, to, len, ..] = self.args;
        let out = writable(self.memory, to, len)?;
        out.fill(0);
        let text = self.env.name(string_id);
        let n_bytes = text.len().min(out.len().saturating_sub(1));
        out[..n_bytes].copy_from_slice(&text[..n_bytes]);
        Ok(text.len() as u64)
    }

    fn name_matches(&mut self) -> bool {
        let [string_id, wanted_id, place, ..] = self.args;
        let wanted = &mut self.scratch.key;
        wanted.clear();
        wanted.extend_from_slice(self.env.name(wanted_id));
        let text = self.env.name(string_id);
        match place as i64 {
            id::MATCH_START => text.starts_with(wanted),
            id::MATCH_END => text.ends_with(wanted),
            _ => wanted.is_empty() || text.windows(wanted.len()).any(|it| it == wanted.as_slice()),
        }
    }
}

/// Looks up the key at a place of the stack in a map, whose address this is.
#[inline(always)]
pub(super) fn lookup_on_stack(memory: &mut RunMemory<'_>, map: u64, place: usize) -> HelperResult {
    let at = pointer::offset(map) as usize;
    let found = memory.maps.get_mut(at).ok_or(FaultReason::NoMap { address: map })?;
    let len = found.key_size;
    let key = memory.local.stack.get(place..).and_then(|it| it.get(..len));
    let bad = || FaultReason::BadAccess { address: pointer::make(STACK, place as u64), len, write: false };
    look_up(found, at, key.ok_or_else(bad)?)
}

/// Looks up a key in the map with this position.
#[inline(always)]
fn look_up(map: &mut Map, at: usize, key: &[u8]) -> HelperResult {
    match map.find(key) {
        LookedUp::Value(slot) => {
            let offset = u64::from(slot) << map.shift;
            Ok(pointer::make(VALUES + at as u64, offset))
        }
        LookedUp::Map(inner) => Ok(pointer::make(MAPS, inner as u64)),
        LookedUp::Nothing => Ok(0),
        LookedUp::TooMany => Err(FaultReason::TooManyRemoteValues),
    }
}

/// Returns the bytes that a helper fills. Sizes are 32-bit, as for Linux's helpers.
fn writable<'m>(memory: &'m mut RunMemory<'_>, address: u64, len: u64) -> Result<&'m mut [u8], FaultReason> {
    let len = len as u32 as usize;
    memory.bytes_mut(address, len).ok_or(FaultReason::BadAccess { address, len, write: true })
}
