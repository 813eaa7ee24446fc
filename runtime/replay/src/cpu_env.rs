//! What a program of Linux finds where it runs over a recorded hit.

use xputrace_bytecode::helper;
use xputrace_bytecode::probe;
use xputrace_bytecode::vm::Env;
use xputrace_model::plan::{BpfMapId, record};
use xputrace_model::stack::{self, StackKey};
use xputrace_pipeline::{Outputs, Prints};
use xputrace_recording::{EXEC_ID_OFFSET, Hit, hits};

/// What a handler may read of the target's memory.
pub(crate) struct RecordedMemory<'a> {
    pub(crate) parts: Vec<(u64, &'a [u8])>,
}

impl<'a> RecordedMemory<'a> {
    pub(crate) fn of_hit(hit: &'a Hit) -> Self {
        RecordedMemory { parts: hit.strings.iter().map(|it| (it.address, it.text.as_slice())).collect() }
    }

    /// Returns the bytes from an address to the end of what was recorded there.
    fn at(&self, address: u64) -> Option<&'a [u8]> {
        let from = |(start, bytes): &(u64, &'a [u8])| {
            let skip = usize::try_from(address.checked_sub(*start)?).ok()?;
            bytes.get(skip..).filter(|it| !it.is_empty() || skip == 0)
        };
        self.parts.iter().find_map(from)
    }
}

/// The environment of a recorded hit.
pub(crate) struct CpuEnv<'a> {
    pub(crate) prints: Prints<'a>,
    pub(crate) hit: &'a Hit,
    /// Id of the probed function's name in this run.
    pub(crate) cookie: u64,
    pub(crate) memory: RecordedMemory<'a>,
    /// What Linux answers if the hit's stack has the word 0.
    pub(crate) lost_stack: i64,
    pub(crate) sink: &'a mut dyn Outputs,
}

/// Linux's answers if there is no stack, and if it could not store one.
pub(crate) const EFAULT: i64 = -(probe::EFAULT as i64);
pub(crate) const ENOMEM: i64 = -12;
const EEXIST: i64 = -(probe::EEXIST as i64);
impl Env for CpuEnv<'_> {
    fn ktime_ns(&mut self) -> u64 {
        self.hit.time_nanos
    }

    fn pid_tgid(&mut self) -> u64 {
        u64::from(self.hit.pid) << 32 | u64::from(self.hit.tid)
    }

    fn uid_gid(&mut self) -> u64 {
        u64::from(self.hit.gid) << 32 | u64::from(self.hit.uid)
    }

    fn comm(&mut self, out: &mut [u8]) {
        let n = out.len().min(16);
        out[..n].copy_from_slice(&self.hit.comm[..n]);
    }

    fn cpu(&mut self) -> u32 {
        self.hit.cpu
    }

    fn cgroup_id(&mut self) -> u64 {
        self.hit.cgroup
    }

    fn stack_id(&mut self, flags: u64) -> i64 {
        let word = if flags & helper::STACK_USER as u64 != 0 { self.hit.ustack } else { self.hit.kstack };
        match word {
            0 => self.lost_stack,
            hits::COLLIDED => EEXIST,
            stack::EMPTY => EFAULT,
            taken => i64::from(taken as u32),
        }
    }

    fn attach_cookie(&mut self) -> u64 {
        self.cookie
    }

    fn func_ip(&mut self) -> u64 {
        self.hit.func_ip
    }

    fn read_memory(&mut self, user: bool, address: u64, out: &mut [u8]) -> bool {
        if let (StackKey::LinuxUser { exec, .. }, false) = (StackKey::from_word(self.hit.ustack), user)
            && address == u64::from(EXEC_ID_OFFSET)
        {
            out.fill(0);
            out.first_mut().into_iter().for_each(|it| *it = exec);
            return true;
        }
        let bytes = self.memory.at(address).filter(|_| user).and_then(|it| it.get(..out.len()));
        bytes.map(|it| out.copy_from_slice(it)).is_some()
    }

    fn read_str(&mut self, user: bool, address: u64, out: &mut [u8]) -> i64 {
        let Some(bytes) = self.memory.at(address).filter(|_| user && !out.is_empty()) else { return EFAULT };
        let end = bytes.iter().position(|it| *it == 0).unwrap_or(bytes.len()).min(out.len() - 1);
        out[..end].copy_from_slice(&bytes[..end]);
        out[end] = 0;
        end as i64 + 1
    }

    fn output(&mut self, _map: BpfMapId, data: &[u8]) -> bool {
        let is_hit = data.first_chunk::<4>().is_some_and(|it| u32::from_le_bytes(*it) == record::HIT);
        is_hit || self.prints.record(data, self.sink)
    }

    fn name(&mut self, id: u64) -> &[u8] {
        self.prints.name(id)
    }
}
