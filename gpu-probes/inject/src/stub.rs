//! The code that a thread of the process runs, and where it is put.
//!
//! It is written into the unused rest of the last page of a file's code, which no program looks at.
//! It needs nothing else: it maps its own stack, saves and restores all registers, and starts a
//! thread that loads the library. That thread reports in the mapped block, waits for us to read it,
//! and unmaps the block.

use crate::process::Process;
use crate::request::{InjectRefusal, Request};
use crate::thread::{Blocked, Stopped};
use libc::user_regs_struct;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};
use xputrace_wire::COLLECTORS_THREAD;

/// The block that the stub maps; the rest, up to [`BLOCK_LEN`], is its stack.
#[repr(C)]
struct StubBlock {
    /// 1 plus what `pthread_create` returned.
    created: u32,
    /// 1 once the thread that ran the stub no longer uses the block.
    left: u32,
    /// [`FAILED`], or [`ANSWERED`] plus what the function returned.
    status: u32,
    /// 1 once we have read all of it.
    read: u32,
    /// The thread that loads the library.
    tid: u64,
    /// Address of the dynamic linker's message.
    error: u64,
    pthread: u64,
    signal_mask: u64,
    registers: SavedRegisters,
}

/// Where the instruction `xsave` writes. The registers of AVX-512 and AMX need some 11 KB.
#[repr(C, align(64))]
struct SavedRegisters([u8; 16 << 10]);

const BLOCK_LEN: u64 = 256 << 10;
const FAILED: u32 = 1;
const ANSWERED: u32 = 0x1000;
/// How long the thread waits for us to read its report.
const MILLIS_TO_BE_READ: u32 = 3_000;

/// What the stub refers to by address; it follows the code.
#[repr(C)]
#[derive(Clone, Copy)]
struct Constants {
    block: u64,
    pthread_create: u64,
    pthread_self: u64,
    pthread_detach: u64,
    errno_location: u64,
    dlopen: u64,
    dlsym: u64,
    dlerror: u64,
    library: u64,
    argument: u64,
    safe_rsp: u64,
    all_signals: u64,
    millisecond: [u64; 2],
    thread_name: [u8; 16],
    symbol: [u8; 32],
    /// With which the thread goes on.
    go_on: user_regs_struct,
}

std::arch::global_asm!(
    ".pushsection .rodata.xputrace_stub, \"a\"",
    ".balign 16",
    ".globl xputrace_stub_code",
    ".hidden xputrace_stub_code",
    "xputrace_stub_code:",
    // mmap(block, …); without it, go on.
    "mov rdi, [rip + 90f + {block}]",
    "mov esi, {block_len}",
    "mov edx, 3",
    "mov r10d, {map_flags}",
    "mov r8, -1",
    "xor r9d, r9d",
    "mov eax, 9",
    "syscall",
    "cmp rax, [rip + 90f + {block}]",
    "jne 20f",
    "mov rbx, rax",
    // rt_sigprocmask(SIG_SETMASK, all, &block->signal_mask)
    "mov edi, 2",
    "lea rsi, [rip + 90f + {all_signals}]",
    "lea rdx, [rbx + {signal_mask}]",
    "mov r10d, 8",
    "mov eax, 14",
    "syscall",
    "lea rsp, [rbx + {block_len}]",
    "mov eax, -1",
    "mov edx, -1",
    "xsave64 [rbx + {registers}]",
    "cld",
    // pthread_create(&block->pthread, NULL, thread, block), with errno as it was.
    "call [rip + 90f + {errno_location}]",
    "mov r12, rax",
    "mov r13d, [rax]",
    "lea rdi, [rbx + {pthread}]",
    "xor esi, esi",
    "lea rdx, [rip + 30f]",
    "mov rcx, rbx",
    "call [rip + 90f + {pthread_create}]",
    "mov [r12], r13d",
    "lea ecx, [rax + 1]",
    "mov [rbx + {created}], ecx",
    "mov eax, -1",
    "mov edx, -1",
    "xrstor64 [rbx + {registers}]",
    "mov rsp, [rip + 90f + {safe_rsp}]",
    "mov edi, 2",
    "lea rsi, [rbx + {signal_mask}]",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, 14",
    "syscall",
    "mov dword ptr [rbx + {left}], 1",
    // Goes on as it was stopped.
    "20:",
    "mov rsp, [rip + 90f + {safe_rsp}]",
    "push qword ptr [rip + 90f + {go_on} + {flags}]",
    "popfq",
    "mov r15, [rip + 90f + {go_on} + {r15}]",
    "mov r14, [rip + 90f + {go_on} + {r14}]",
    "mov r13, [rip + 90f + {go_on} + {r13}]",
    "mov r12, [rip + 90f + {go_on} + {r12}]",
    "mov r11, [rip + 90f + {go_on} + {r11}]",
    "mov r10, [rip + 90f + {go_on} + {r10}]",
    "mov r9, [rip + 90f + {go_on} + {r9}]",
    "mov r8, [rip + 90f + {go_on} + {r8}]",
    "mov rbp, [rip + 90f + {go_on} + {rbp}]",
    "mov rdi, [rip + 90f + {go_on} + {rdi}]",
    "mov rsi, [rip + 90f + {go_on} + {rsi}]",
    "mov rdx, [rip + 90f + {go_on} + {rdx}]",
    "mov rcx, [rip + 90f + {go_on} + {rcx}]",
    "mov rbx, [rip + 90f + {go_on} + {rbx}]",
    "mov rax, [rip + 90f + {go_on} + {rax}]",
    "mov rsp, [rip + 90f + {go_on} + {rsp}]",
    "jmp [rip + 90f + {go_on} + {rip_}]",
    // The new thread.
    "30:",
    "push rbx",
    "push r12",
    "push r13",
    "mov rbx, rdi",
    "mov eax, 186", // gettid
    "syscall",
    "mov [rbx + {tid}], rax",
    "call [rip + 90f + {pthread_self}]",
    "mov rdi, rax",
    "call [rip + 90f + {pthread_detach}]",
    "mov edi, 15", // prctl(PR_SET_NAME, …)
    "lea rsi, [rip + 90f + {thread_name}]",
    "mov eax, 157",
    "syscall",
    "mov rdi, [rip + 90f + {library}]",
    "mov esi, 2", // RTLD_NOW
    "call [rip + 90f + {dlopen}]",
    "test rax, rax",
    "je 40f",
    "mov rdi, rax",
    "lea rsi, [rip + 90f + {symbol}]",
    "call [rip + 90f + {dlsym}]",
    "test rax, rax",
    "je 40f",
    "mov rdi, [rip + 90f + {argument}]",
    "call rax",
    "lea ecx, [rax + {answered}]",
    "mov [rbx + {status}], ecx",
    "jmp 50f",
    "40:",
    "call [rip + 90f + {dlerror}]",
    "mov [rbx + {error}], rax",
    "mov dword ptr [rbx + {status}], {failed}",
    // Waits until the report is read.
    "50:",
    "mov r12d, {millis}",
    "60:",
    "cmp dword ptr [rbx + {read}], 0",
    "jne 70f",
    "lea rdi, [rip + 90f + {millisecond}]",
    "xor esi, esi",
    "mov eax, 35", // nanosleep
    "syscall",
    "dec r12d",
    "jne 60b",
    "cmp dword ptr [rbx + {left}], 0",
    "je 80f",
    "70:",
    "mov rdi, rbx",
    "mov esi, {block_len}",
    "mov eax, 11", // munmap
    "syscall",
    "80:",
    "xor eax, eax",
    "pop r13",
    "pop r12",
    "pop rbx",
    "ret",
    ".balign 8",
    "90:",
    ".globl xputrace_stub_end",
    ".hidden xputrace_stub_end",
    "xputrace_stub_end:",
    ".popsection",
    block = const offset_of!(Constants, block),
    pthread_create = const offset_of!(Constants, pthread_create),
    pthread_self = const offset_of!(Constants, pthread_self),
    pthread_detach = const offset_of!(Constants, pthread_detach),
    errno_location = const offset_of!(Constants, errno_location),
    dlopen = const offset_of!(Constants, dlopen),
    dlsym = const offset_of!(Constants, dlsym),
    dlerror = const offset_of!(Constants, dlerror),
    library = const offset_of!(Constants, library),
    argument = const offset_of!(Constants, argument),
    safe_rsp = const offset_of!(Constants, safe_rsp),
    all_signals = const offset_of!(Constants, all_signals),
    millisecond = const offset_of!(Constants, millisecond),
    thread_name = const offset_of!(Constants, thread_name),
    symbol = const offset_of!(Constants, symbol),
    go_on = const offset_of!(Constants, go_on),
    r15 = const offset_of!(user_regs_struct, r15),
    r14 = const offset_of!(user_regs_struct, r14),
    r13 = const offset_of!(user_regs_struct, r13),
    r12 = const offset_of!(user_regs_struct, r12),
    r11 = const offset_of!(user_regs_struct, r11),
    r10 = const offset_of!(user_regs_struct, r10),
    r9 = const offset_of!(user_regs_struct, r9),
    r8 = const offset_of!(user_regs_struct, r8),
    rbp = const offset_of!(user_regs_struct, rbp),
    rdi = const offset_of!(user_regs_struct, rdi),
    rsi = const offset_of!(user_regs_struct, rsi),
    rdx = const offset_of!(user_regs_struct, rdx),
    rcx = const offset_of!(user_regs_struct, rcx),
    rbx = const offset_of!(user_regs_struct, rbx),
    rax = const offset_of!(user_regs_struct, rax),
    flags = const offset_of!(user_regs_struct, eflags),
    rsp = const offset_of!(user_regs_struct, rsp),
    rip_ = const offset_of!(user_regs_struct, rip),
    created = const offset_of!(StubBlock, created),
    left = const offset_of!(StubBlock, left),
    status = const offset_of!(StubBlock, status),
    read = const offset_of!(StubBlock, read),
    tid = const offset_of!(StubBlock, tid),
    error = const offset_of!(StubBlock, error),
    pthread = const offset_of!(StubBlock, pthread),
    signal_mask = const offset_of!(StubBlock, signal_mask),
    registers = const offset_of!(StubBlock, registers),
    block_len = const BLOCK_LEN,
    map_flags = const MAP_FLAGS,
    answered = const ANSWERED,
    failed = const FAILED,
    millis = const MILLIS_TO_BE_READ,
);

const MAP_FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;

unsafe extern "C" {
    static xputrace_stub_code: u8;
    static xputrace_stub_end: u8;
}

fn code() -> &'static [u8] {
    let (start, end) = (&raw const xputrace_stub_code, &raw const xputrace_stub_end);
    // SAFETY: both are symbols of one section, the second after the first.
    unsafe { std::slice::from_raw_parts(start, end.offset_from_unsigned(start)) }
}

/// Returns how much `xsave` writes: CPUID leaf 0xd, for the registers that Linux has enabled.
fn saved_len() -> usize {
    std::arch::x86_64::__cpuid_count(0xd, 0).ebx as usize
}

/// A stack pointer that leaves a stopped thread's red zone alone (System V ABI for x86-64, 3.2.2).
pub(crate) fn safe_stack_pointer(registers: &user_regs_struct) -> u64 {
    const RED_ZONE: u64 = 128;
    (registers.rsp - RED_ZONE) & !63
}

/// A stub for a process.
pub(crate) struct Stub {
    at: u64,
    constants: Constants,
    strings: Vec<u8>,
    /// What was there before.
    before: Vec<u8>,
}

/// What has become of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Pending,
    Failed(String),
    Answered(i32),
}

impl Stub {
    /// Finds room and the functions it calls.
    ///
    /// # Errors
    /// The process has no room for it, or lacks a function.
    pub(crate) fn new(process: &Process, request: &Request) -> Result<Self, InjectRefusal> {
        if saved_len() > size_of::<SavedRegisters>() {
            return Err(InjectRefusal::new(format!("this processor's registers need {} bytes to save", saved_len())));
        }
        let strings = strings(&request.library, &request.argument);
        let len = code().len() + size_of::<Constants>() + strings.len();
        let (gap, before) = gap(process, len)?;
        let function = |name: &str| {
            let found = process.libc_function(name);
            found.ok_or_else(|| InjectRefusal::new(format!("its libc has no function {name}")))
        };
        let data = gap.start + code().len() as u64;
        let library = data + size_of::<Constants>() as u64;
        let constants = Constants {
            block: unmapped(process).ok_or_else(|| InjectRefusal::new("its address space is full"))?,
            pthread_create: function("pthread_create")?,
            pthread_self: function("pthread_self")?,
            pthread_detach: function("pthread_detach")?,
            errno_location: function("__errno_location")?,
            dlopen: function("dlopen")?,
            dlsym: function("dlsym")?,
            dlerror: function("dlerror")?,
            library,
            argument: library + request.library.as_os_str().len() as u64 + 1,
            all_signals: u64::MAX,
            millisecond: [0, 1_000_000],
            thread_name: padded(COLLECTORS_THREAD.as_bytes()),
            symbol: padded(request.symbol.as_bytes()),
            safe_rsp: 0,
            // SAFETY: zeroes are registers; `write` sets those of the thread.
            go_on: unsafe { std::mem::zeroed() },
        };
        Ok(Stub { at: gap.start, constants, strings, before })
    }

    /// Returns the address at which it begins.
    pub(crate) fn entry(&self) -> u64 {
        self.at
    }

    /// Writes it, for a thread to run.
    pub(crate) fn write(&self, process: &Process, thread: &Stopped) -> Result<(), InjectRefusal> {
        let go_on = *thread.registers();
        let constants = Constants { go_on, safe_rsp: safe_stack_pointer(&go_on), ..self.constants };
        // SAFETY: a structure of integers without padding.
        let constants =
            unsafe { std::slice::from_raw_parts((&raw const constants).cast::<u8>(), size_of::<Constants>()) };
        let bytes = [code(), constants, &self.strings].concat();
        process.write(self.at, &bytes).map_err(|it| InjectRefusal::new(format!("cannot write its memory: {it}")))
    }

    /// Reads what has become of it.
    pub(crate) fn outcome(&self, process: &Process) -> Outcome {
        let word = |offset: usize| {
            let bytes = process.read(self.constants.block + offset as u64, 4);
            bytes.first_chunk().map_or(0, |it| u32::from_ne_bytes(*it))
        };
        if word(offset_of!(StubBlock, left)) == 0 {
            return Outcome::Pending;
        }
        let created = word(offset_of!(StubBlock, created));
        if created != 1 {
            let error = std::io::Error::from_raw_os_error(created as i32 - 1);
            return Outcome::Failed(format!("it cannot start a thread: {error}"));
        }
        match word(offset_of!(StubBlock, status)) {
            0 => Outcome::Pending,
            FAILED => Outcome::Failed(self.error(process)),
            status => Outcome::Answered(status.wrapping_sub(ANSWERED) as i32),
        }
    }

    fn error(&self, process: &Process) -> String {
        let text = process.word(self.constants.block + offset_of!(StubBlock, error) as u64);
        let text = text.filter(|it| *it != 0).map(|it| process.read(it, 512)).unwrap_or_default();
        let text = text.split(|it| *it == 0).next().unwrap_or_default();
        match text {
            b"" => "its dynamic linker cannot load the collector".into(),
            text => format!("its dynamic linker cannot load the collector: {}", String::from_utf8_lossy(text)),
        }
    }

    /// Lets the stub's thread end, and puts back what was there before.
    pub(crate) fn clear(&self, process: &Process) -> Result<(), InjectRefusal> {
        let tid = process.word(self.constants.block + offset_of!(StubBlock, tid) as u64).unwrap_or(0);
        let read = self.constants.block + offset_of!(StubBlock, read) as u64;
        let _ = process.write(read, &1u32.to_ne_bytes());
        let until = Instant::now() + Duration::from_secs(2);
        while tid != 0 && process.has_thread_known_as(tid as u32)? {
            if Instant::now() >= until {
                // The code stays: the thread still needs it.
                return Ok(());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        let _ = process.write(self.at, &self.before);
        Ok(())
    }
}

/// The file name and the argument, each with a NUL.
fn strings(library: &Path, argument: &str) -> Vec<u8> {
    [library.as_os_str().as_bytes(), &[0], argument.as_bytes(), &[0]].concat()
}

fn padded<const N: usize>(text: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    padded[..text.len()].copy_from_slice(text);
    padded
}

/// Returns the largest free gap between a file's code and the end of its last page, and what belongs there.
fn gap(process: &Process, len: usize) -> Result<(Range<u64>, Vec<u8>), InjectRefusal> {
    let mut gaps: Vec<_> =
        process.images.iter().map(|it| (it.gap.start.next_multiple_of(16)..it.gap.end, it)).collect();
    gaps.retain(|(gap, _)| gap.start.checked_add(len as u64).is_some_and(|end| end <= gap.end));
    gaps.sort_by_key(|(gap, _)| gap.start.wrapping_sub(gap.end));
    if gaps.is_empty() {
        return Err(InjectRefusal::new(format!("none of its files has {len} unused bytes after its code")));
    }
    for (gap, image) in gaps {
        let Some(before) = image.gap_contents(gap.start, len) else { continue };
        if process.read(gap.start, len) == before || is_abandoned(process, &gap)? {
            return Ok((gap, before));
        }
    }
    Err(InjectRefusal::new(
        "tracers that were killed while they attached have left code in all of its files; try again in 5 s",
    ))
}

/// Whether the stub of a killed tracer is no longer run by any thread. Its block is unmapped by the thread that it
/// started, which then only returns.
fn is_abandoned(process: &Process, gap: &Range<u64>) -> Result<bool, InjectRefusal> {
    let block = process.word(gap.start + (code().len() + offset_of!(Constants, block)) as u64);
    if block.is_none_or(|it| !process.read(it, 1).is_empty()) {
        return Ok(false);
    }
    for tid in process.threads()? {
        let returns_there = |words: Vec<u64>| words.iter().any(|it| gap.contains(it));
        let runs_it = |rip: u64, rsp: u64| gap.contains(&rip) || process.words_of_stack(rsp).is_none_or(returns_there);
        let is_there = match Blocked::of(process.pid, tid) {
            Some(it) => runs_it(it.rip, it.rsp),
            None => Stopped::stop(process.pid, tid)?.is_some_and(|it| runs_it(it.registers().rip, it.registers().rsp)),
        };
        if is_there {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns an address at which the block can be mapped: in the highest hole that is large enough, with room on
/// both sides.
fn unmapped(process: &Process) -> Option<u64> {
    const MARGIN: u64 = 16 << 20;
    let low = process.mappings.windows(2).rev().map(|it| it[0].end..it[1].start);
    let hole = low.filter(|it| it.end <= 1 << 47).find(|it| it.end - it.start > 2 * MARGIN + BLOCK_LEN)?;
    Some((hole.start + MARGIN) & !(BLOCK_LEN - 1))
}
