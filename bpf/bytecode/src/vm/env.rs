//! What the engine needs from outside: the environment of a run, and maps that live elsewhere.

use crate::helper::{UPDATE_EXIST, UPDATE_NOEXIST};
use crate::id::BpfMapId;
use crate::insn::atomic;

/// What a program can ask its environment. The defaults know nothing: they return 0, an empty text
/// or an error, so an implementation defines only what it knows.
pub trait Env {
    /// Nanoseconds of CLOCK_MONOTONIC (`ktime_get_ns`).
    fn ktime_ns(&mut self) -> u64 {
        0
    }
    /// Process id in the upper half, thread id in the lower (`get_current_pid_tgid`).
    fn pid_tgid(&mut self) -> u64 {
        0
    }
    /// Group id in the upper half, user id in the lower (`get_current_uid_gid`).
    fn uid_gid(&mut self) -> u64 {
        0
    }
    /// Writes the thread's name; `out` is zeroed, and its last byte stays NUL.
    fn comm(&mut self, out: &mut [u8]) {
        let _ = out;
    }
    /// Returns the CPU's number (`get_smp_processor_id`).
    fn cpu(&mut self) -> u32 {
        0
    }
    /// `get_current_cgroup_id`.
    fn cgroup_id(&mut self) -> u64 {
        0
    }
    /// Returns the id of the stack, or a negative errno (`get_stackid`).
    fn stack_id(&mut self, flags: u64) -> i64 {
        let _ = flags;
        EINVAL
    }
    /// `get_attach_cookie`.
    fn attach_cookie(&mut self) -> u64 {
        0
    }
    /// `get_func_ip`.
    fn func_ip(&mut self) -> u64 {
        0
    }
    /// Fills `out` from an address of the traced program (`user`) or of Linux; returns false if it
    /// is unreadable (the program then sees zeros and `-EFAULT`).
    fn read_memory(&mut self, user: bool, address: u64, out: &mut [u8]) -> bool {
        let _ = (user, address, out);
        false
    }
    /// Copies a NUL-terminated string; returns the bytes written, the NUL included, or a
    /// negative errno (the program then sees zeros).
    fn read_str(&mut self, user: bool, address: u64, out: &mut [u8]) -> i64 {
        let _ = (user, address, out);
        EINVAL
    }
    /// Takes a record of the ring buffer `map`; returns false if it is full.
    fn output(&mut self, map: BpfMapId, data: &[u8]) -> bool {
        let _ = (map, data);
        false
    }
    /// Takes a line that the program prints (`trace_printk`, `puts`).
    fn print(&mut self, line: &str) {
        let _ = line;
    }
    /// Returns the GPU's thread that the program runs in.
    fn gpu_thread(&mut self) -> GpuThread {
        GpuThread::default()
    }
    /// Returns the text of a string id; empty if unknown.
    fn name(&mut self, id: u64) -> &[u8] {
        let _ = id;
        &[]
    }
}

/// An environment that knows nothing.
impl Env for () {}

/// A thread of a GPU, as its program sees it. Positions and sizes are `x y z`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuThread {
    /// Its position in its block.
    pub thread: [u64; 3],
    /// Its block's position in the grid.
    pub block: [u64; 3],
    /// Threads in a block.
    pub block_dim: [u64; 3],
    /// Blocks in the grid.
    pub grid_dim: [u64; 3],
    /// Number of its multiprocessor.
    pub sm: u64,
    pub warp: u64,
    /// Its place in its warp.
    pub lane: u64,
}

impl GpuThread {
    /// Returns its number among all threads of the launch, by its position in the whole grid: `x` first.
    pub fn number(&self) -> u64 {
        let at = |axis: usize| self.block[axis].saturating_mul(self.block_dim[axis]).saturating_add(self.thread[axis]);
        let extent = |axis: usize| self.grid_dim[axis].saturating_mul(self.block_dim[axis]);
        let rows = at(1).saturating_add(at(2).saturating_mul(extent(1)));
        at(0).saturating_add(rows.saturating_mul(extent(0)))
    }
}

/// A map that the engine does not hold itself, such as a map in Linux accessed by system calls.
///
/// A looked-up value is a copy. What a program stores in it is written back with
/// [`RemoteMap::update`] before the next helper call on that map and at the end of the run,
/// overwriting changes by others in between.
pub trait RemoteMap {
    /// Copies the element's value; returns false if there is none.
    fn lookup(&mut self, key: &[u8], value: &mut [u8]) -> bool;
    /// Returns 0 or a negative errno; flags as for `bpf_map_update_elem`.
    fn update(&mut self, key: &[u8], value: &[u8], flags: u64) -> i64;
    /// Returns 0 or a negative errno.
    fn delete(&mut self, key: &[u8]) -> i64;
    /// Changes the first 8 bytes of the element's value, which has `value_size` bytes; a missing
    /// element starts from zeros. Returns 0 or a negative errno.
    ///
    /// The default reads and writes back, which loses concurrent changes. A map that others write
    /// to must change the value atomically.
    fn modify(&mut self, key: &[u8], value_size: usize, change: Modification) -> i64 {
        let mut value = vec![0; value_size];
        let flags = match self.lookup(key, &mut value) {
            true => UPDATE_EXIST,
            false => UPDATE_NOEXIST,
        };
        change.apply_to(&mut value);
        self.update(key, &value, flags as u64)
    }
    /// Runs an atomic instruction on a number in the element's value; returns what it was before. `None` if there is no such
    /// element, or the map can't: the engine then changes its copy.
    fn atomic(&mut self, key: &[u8], number: Number, atomic: Atomic) -> Option<u64> {
        let _ = (key, number, atomic);
        None
    }
}

/// Where a number is in a value, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    pub at: u32,
    /// 4 or 8.
    pub bytes: u8,
}

/// An atomic instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// One of [`crate::insn::atomic`].
    pub op: i32,
    pub operand: u64,
    /// What `CMPXCHG` compares with.
    pub expected: u64,
}

/// A `map_modify` operation on a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modification {
    op: i32,
    operand: u64,
}

impl Modification {
    /// Returns `None` unless `op` is one of [`crate::insn::atomic`]'s `ADD OR AND XOR`.
    pub fn new(op: i32, operand: u64) -> Option<Modification> {
        let known = [atomic::ADD, atomic::OR, atomic::AND, atomic::XOR].contains(&op);
        known.then_some(Modification { op, operand })
    }

    /// Adds a signed number, wrapping.
    pub fn add(delta: i64) -> Modification {
        Modification { op: atomic::ADD, operand: delta as u64 }
    }

    /// Returns the operation, one of [`crate::insn::atomic`].
    pub fn op(self) -> i32 {
        self.op
    }

    pub fn operand(self) -> u64 {
        self.operand
    }

    /// Applies it to a number.
    pub fn apply(self, number: u64) -> u64 {
        match self.op {
            atomic::OR => number | self.operand,
            atomic::AND => number & self.operand,
            atomic::XOR => number ^ self.operand,
            _ => number.wrapping_add(self.operand),
        }
    }

    /// Changes the first 8 bytes; shorter values are unchanged.
    pub(super) fn apply_to(self, value: &mut [u8]) {
        if let Some(number) = value.first_chunk_mut() {
            *number = self.apply(u64::from_le_bytes(*number)).to_le_bytes();
        }
    }
}

// Source: `include/uapi/asm-generic/errno-base.h`.
pub(crate) const EPERM: i64 = -1;
pub(crate) const ENOENT: i64 = -2;
pub(crate) const E2BIG: i64 = -7;
pub(crate) const EAGAIN: i64 = -11;
pub(crate) const EFAULT: i64 = -14;
pub(crate) const EEXIST: i64 = -17;
pub(crate) const EINVAL: i64 = -22;
