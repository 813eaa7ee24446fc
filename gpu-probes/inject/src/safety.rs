//! Whether a stopped thread may be made to start another one.
//!
//! `pthread_create` takes locks of the allocator, of libc's threads and of the dynamic linker. A
//! thread that is inside of one of these may hold such a lock, and would wait for itself. Its stack
//! tells. Where unwind tables end, all words further out are taken for return addresses: that may
//! refuse a thread that could be used, and never the reverse.

use crate::functions::{ALLOCATOR, LOCKING};
use crate::image::{Row, SAVED};
use crate::process::Process;
use crate::thread::Stopped;
use gimli::{Register, X86_64};
use std::ops::Range;

/// Maximum number of frames that are unwound.
const MOST_FRAMES: usize = 512;
/// Room that a thread's stack must have below the red zone.
const STACK_ROOM: u64 = 4096;
/// Code segment of 64-bit programs.
const CODE_64: u64 = 0x33;

/// Whether the thread is in a critical section of rseq(2). Linux would restart it had it not been
/// moved elsewhere.
fn is_in_restartable_section(process: &Process, thread: &Stopped) -> bool {
    /// Offset of `rseq_cs` in `struct rseq`, and of what it points to: `include/uapi/linux/rseq.h`.
    const SECTION: u64 = 8;
    const START: u64 = 8;
    let section = || {
        let descriptor = process.word(thread.restartable_section()?.wrapping_add(SECTION)).filter(|it| *it != 0)?;
        let at = |offset: u64| process.word(descriptor.wrapping_add(offset));
        let (start, len) = (at(START)?, at(START + 8)?);
        Some((start..start.saturating_add(len)).contains(&thread.registers().rip))
    };
    section().unwrap_or(false)
}

/// The registers by which a frame's caller is found.
#[derive(Clone, Copy, Debug)]
struct FrameRegisters {
    rip: u64,
    rsp: u64,
    saved: [u64; SAVED.len()],
    /// Whether it was interrupted: its address is that of the next instruction, not of a return.
    is_exact: bool,
}

impl FrameRegisters {
    fn of(registers: &libc::user_regs_struct) -> Self {
        let it = registers;
        FrameRegisters {
            rip: it.rip,
            rsp: it.rsp,
            saved: [it.rbx, it.rbp, it.r12, it.r13, it.r14, it.r15],
            is_exact: true,
        }
    }

    fn register(&self, register: Register) -> Option<u64> {
        match register {
            X86_64::RSP => Some(self.rsp),
            _ => SAVED.iter().position(|it| *it == register).map(|at| self.saved[at]),
        }
    }

    /// Returns an address in the code that runs, or that made the call.
    fn code_address(&self) -> u64 {
        if self.is_exact { self.rip } else { self.rip.wrapping_sub(1) }
    }

    /// Returns what is further out, by the row of its code if there is one.
    fn outward(&self, process: &Process, row: Option<&Row>) -> Outward {
        match row.map(|it| (self.caller(process, it), it)) {
            Some((Some(caller), _)) => Outward::Caller(caller),
            // The outermost frame has no return address.
            Some((None, row)) if row.rule.is_none() && !row.is_signal_frame => Outward::Root,
            Some((None, _)) | None => Outward::Unknown,
        }
    }

    fn caller(&self, process: &Process, row: &Row) -> Option<FrameRegisters> {
        if row.is_signal_frame {
            return self.interrupted(process);
        }
        let rule = row.rule?;
        let cfa = self.register(rule.cfa.0)?.wrapping_add_signed(rule.cfa.1);
        let mut saved = self.saved;
        for (to, offset) in saved.iter_mut().zip(rule.saved) {
            if let Some(offset) = offset {
                *to = process.word(cfa.wrapping_add_signed(offset))?;
            }
        }
        let rip = process.word(cfa.wrapping_add_signed(rule.return_address))?;
        (cfa > self.rsp).then_some(FrameRegisters { rip, rsp: cfa, saved, is_exact: false })
    }

    /// Returns the frame that a signal interrupted. `self` is that of `__restore_rt`, whose stack
    /// pointer is at the handler's `ucontext_t`.
    fn interrupted(&self, process: &Process) -> Option<FrameRegisters> {
        /// Offset of `uc_mcontext.gregs`.
        const REGISTERS: u64 = std::mem::offset_of!(libc::ucontext_t, uc_mcontext) as u64;
        let register = |at: i32| process.word(self.rsp.wrapping_add(REGISTERS + 8 * at as u64));
        let saved = [libc::REG_RBX, libc::REG_RBP, libc::REG_R12, libc::REG_R13, libc::REG_R14, libc::REG_R15];
        let mut frame = FrameRegisters {
            rip: register(libc::REG_RIP)?,
            rsp: register(libc::REG_RSP)?,
            saved: self.saved,
            is_exact: true,
        };
        for (to, from) in frame.saved.iter_mut().zip(saved) {
            *to = register(from)?;
        }
        Some(frame)
    }
}

/// What is further out on a stack than a frame.
#[derive(Clone, Copy, Debug)]
enum Outward {
    Caller(FrameRegisters),
    /// Nothing.
    Root,
    /// Frames that no unwind table leads to.
    Unknown,
}

/// Code in which a thread may hold a lock.
pub(crate) struct UnsafeCode<'a> {
    process: &'a Process,
    functions: Vec<Range<u64>>,
    /// The part of libc that allocates: its functions are neighbours, most of them without a name.
    allocator: Range<u64>,
}

impl<'a> UnsafeCode<'a> {
    pub(crate) fn of(process: &'a Process) -> Self {
        let mut functions = Vec::new();
        let mut allocator: Option<Range<u64>> = None;
        for image in &process.images {
            let found = ALLOCATOR.iter().filter_map(|it| image.symbol(it));
            if image.is_of_libc() {
                allocator = found.chain(allocator.take()).reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
                functions.extend(LOCKING.iter().filter_map(|it| image.symbol(it)));
            } else {
                functions.extend(found);
            }
        }
        UnsafeCode { process, functions, allocator: allocator.unwrap_or_default() }
    }

    /// Returns why a thread can't be used; `None` if it can.
    pub(crate) fn hindrance(&self, thread: &Stopped) -> Option<String> {
        let registers = thread.registers();
        if registers.cs != CODE_64 {
            return Some("runs 32-bit code".into());
        }
        let stack = self.process.mapping(registers.rsp).map(|it| it.start..it.end);
        if stack.as_ref().is_none_or(|it| registers.rsp - it.start < STACK_ROOM) {
            return Some("has no room on its stack".into());
        }
        if is_in_restartable_section(self.process, thread) {
            return Some("is in a restartable sequence".into());
        }
        self.in_stack(FrameRegisters::of(registers), stack.unwrap_or_default())
    }

    /// Returns why a stack may hold a lock. A thread that runs nothing but libc is about to begin or to end, with libc's
    /// own locks.
    fn in_stack(&self, mut frame: FrameRegisters, stack: Range<u64>) -> Option<String> {
        let (mut is_all_libc, mut outside_libc) = (true, 0);
        let mut outward = Outward::Unknown;
        for _ in 0..MOST_FRAMES {
            if frame.rip == 0 {
                outward = Outward::Root;
                break;
            }
            let address = frame.code_address();
            let image = self.process.image(address);
            let is_libcs = image.is_some_and(|it| it.is_of_libc() || it.is_dynamic_linker());
            is_all_libc &= is_libcs;
            outside_libc += usize::from(!is_libcs);
            // Its parts have no names that we know, and call libc alone.
            if !is_libcs && outside_libc == 1 && image.is_some_and(|it| it.replaces_allocator()) {
                return Some("may be in the program's own allocator".into());
            }
            let row = image.and_then(|it| it.row(address));
            if let Some(what) = self.at(address, row.as_ref().map(|it| it.function)) {
                return Some(format!("is in {what}"));
            }
            outward = frame.outward(self.process, row.as_ref());
            match outward {
                Outward::Caller(caller) => frame = caller,
                Outward::Root | Outward::Unknown => break,
            }
        }
        let in_rest = || if let Outward::Root = outward { None } else { self.in_words(frame.rsp, &stack) };
        in_rest().or_else(|| is_all_libc.then(|| "runs nothing but libc".into()))
    }

    /// Takes every word of the stack from `from` on for a return address.
    fn in_words(&self, from: u64, stack: &Range<u64>) -> Option<String> {
        if !stack.contains(&from) {
            return Some("runs on an unknown stack".into());
        }
        let Some(words) = self.process.words_of_stack(from) else { return Some("has too large a stack".into()) };
        words.into_iter().filter(|it| *it != 0).find_map(|it| self.at(it - 1, None)).map(|it| format!("may be in {it}"))
    }

    /// Returns what is at an address, if it may hold a lock. `function` is where its function
    /// begins, if known.
    fn at(&self, address: u64, function: Option<u64>) -> Option<String> {
        let image = self.process.image(address)?;
        let is_allocator = self.allocator.contains(&address) || image.is_allocator();
        if image.is_dynamic_linker() {
            return Some("the dynamic linker".into());
        }
        if is_allocator {
            return Some("the allocator".into());
        }
        let is_here = |it: &&Range<u64>| it.contains(&address) || function == Some(it.start);
        self.functions.iter().find(is_here).map(|_| "a function of libc that takes locks".into())
    }
}
