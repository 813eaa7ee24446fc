//! A stack as one 64-bit word, so that it can be part of a map key in every engine.
//!
//! ```text
//! 63..62 source   61..32 owner   30 with lines   29..0 id
//! ```
//! Stacks of different sources are different keys; tables merge them by their named frames when
//! they are printed.

use xputrace_bytecode::probe::stack_word;

/// Who took the stack, which determines where its frames are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StackKey {
    /// User frames in Linux's stack map: process id, low bits of its exec generation, and an id of the stack map and of the
    /// probed function's caller (`xputrace_bytecode::callers`).
    LinuxUser { pid: u32, exec: u8, id: u32 },
    /// Linux kernel frames in Linux's stack map.
    LinuxKernel { id: u32 },
    /// Frames that the collector interned: index of the process in this run, and its stack id.
    Collector { process: u32, id: u32 },
    /// The Python frames among them.
    CollectorPython { process: u32, id: u32 },
    /// As `LinuxUser`, shown with lines.
    LinuxUserLines { pid: u32, exec: u8, id: u32 },
    /// As `Collector`, shown with lines.
    CollectorLines { process: u32, id: u32 },
    /// There was no such stack: Linux kernel frames of a sample in user mode, user frames of a
    /// kernel thread.
    Empty,
    /// No stack could be taken; counted where it happened.
    Lost,
}

/// Default size of the table of CPU-probe stacks. It has one place per hash, so some stacks find
/// none before it is full.
pub const LINUX_STACKS: u32 = 16_384;
/// Maximum frames per stack: `PERF_MAX_STACK_DEPTH` in `include/uapi/linux/perf_event.h`.
pub const LINUX_FRAMES: u32 = 127;

/// The word of [`StackKey::Empty`].
pub const EMPTY: u64 = stack_word::EMPTY;
/// Source bits of [`StackKey::LinuxUser`], in place: programs in Linux write them.
const SOURCE_LINUX_USER: u64 = stack_word::USER;
/// Source bits of [`StackKey::LinuxKernel`], in place.
const SOURCE_LINUX_KERNEL: u64 = stack_word::KERNEL;
/// Source bits of [`StackKey::Collector`], in place.
pub const SOURCE_COLLECTOR: u64 = 3 << 62;
/// Set in place if only the Python frames are meant.
const PYTHON: u64 = 1 << 61;
/// Set in place if a stack is shown with lines; ids are smaller.
pub const LINES: u64 = 1 << stack_word::ID_BITS;
/// Bits of a process's index.
const PROCESS_MASK: u32 = (1 << 29) - 1;

impl StackKey {
    /// Returns the word for this stack in keys and values; 0 is [`StackKey::Lost`].
    pub fn to_word(self) -> u64 {
        match self {
            StackKey::LinuxUser { pid, exec, id } => {
                let process = (u64::from(pid) & stack_word::PROCESS_MASK) << stack_word::PROCESS_SHIFT;
                SOURCE_LINUX_USER | (u64::from(exec) << stack_word::EXEC_SHIFT) | process | u64::from(id)
            }
            StackKey::LinuxKernel { id } => SOURCE_LINUX_KERNEL | u64::from(id),
            StackKey::Collector { process, id } => {
                SOURCE_COLLECTOR | (u64::from(process & PROCESS_MASK) << 32) | u64::from(id)
            }
            StackKey::CollectorPython { process, id } => StackKey::Collector { process, id }.to_word() | PYTHON,
            StackKey::LinuxUserLines { .. } | StackKey::CollectorLines { .. } => self.whole().to_word() | LINES,
            StackKey::Empty => EMPTY,
            StackKey::Lost => 0,
        }
    }

    /// The stack as it was taken, of which this may be a part or another form.
    pub fn whole(self) -> Self {
        match self {
            StackKey::CollectorPython { process, id } | StackKey::CollectorLines { process, id } => {
                StackKey::Collector { process, id }
            }
            StackKey::LinuxUserLines { pid, exec, id } => StackKey::LinuxUser { pid, exec, id },
            it => it,
        }
    }

    /// The same stack, shown with lines; Linux's own functions have none, and Python's always do.
    pub fn with_lines(self) -> Self {
        match self {
            StackKey::LinuxUser { pid, exec, id } => StackKey::LinuxUserLines { pid, exec, id },
            StackKey::Collector { process, id } => StackKey::CollectorLines { process, id },
            it => it,
        }
    }

    /// Whether it is shown with the lines of native code.
    pub fn has_lines(self) -> bool {
        matches!(self, StackKey::LinuxUserLines { .. } | StackKey::CollectorLines { .. })
    }

    /// Inverse of [`StackKey::to_word`]; unknown words are [`StackKey::Lost`].
    pub fn from_word(word: u64) -> Self {
        let key = Self::without_lines(word & !LINES);
        if word & LINES == 0 { key } else { key.with_lines() }
    }

    fn without_lines(word: u64) -> Self {
        let id = word as u32;
        match word & (3 << 62) {
            SOURCE_LINUX_USER => {
                let pid = (word >> stack_word::PROCESS_SHIFT) & stack_word::PROCESS_MASK;
                StackKey::LinuxUser { pid: pid as u32, exec: (word >> stack_word::EXEC_SHIFT) as u8, id }
            }
            SOURCE_LINUX_KERNEL => StackKey::LinuxKernel { id },
            SOURCE_COLLECTOR => {
                let process = (word >> 32) as u32 & PROCESS_MASK;
                match word & PYTHON {
                    0 => StackKey::Collector { process, id },
                    _ => StackKey::CollectorPython { process, id },
                }
            }
            _ if word == EMPTY => StackKey::Empty,
            _ => StackKey::Lost,
        }
    }
}

/// A named frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// Function name without parameters, or the hexadecimal address if there is none.
    pub function: String,
    /// File name of the mapped object, empty if unknown.
    pub module: String,
    /// Offset from the function's start in bytes.
    pub offset: u64,
}

impl Frame {
    /// The module of a frame of a Python program, whose function has its file and line.
    pub const PYTHON: &str = "[python]";

    /// Whether it is one of a Python program.
    pub fn is_python(&self) -> bool {
        self.module == Frame::PYTHON
    }
}

/// How the Python frames of a launch stack are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PythonFrames {
    /// Each where it was run, without the interpreter's own frames.
    #[default]
    Merge,
    /// They alone.
    Only,
    /// Not at all.
    Off,
}

/// A stack's frames, innermost first.
pub type Frames = std::sync::Arc<[Frame]>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for key in [
            StackKey::LinuxUser { pid: 4_194_303, exec: 255, id: LINES as u32 - 1 },
            StackKey::LinuxKernel { id: 7 },
            StackKey::Collector { process: 3, id: 9 },
            StackKey::CollectorPython { process: 3, id: 9 },
            StackKey::LinuxUserLines { pid: 7, exec: 1, id: 5 },
            StackKey::CollectorLines { process: 3, id: 9 },
            StackKey::Empty,
            StackKey::Lost,
        ] {
            assert_eq!(StackKey::from_word(key.to_word()), key);
            // What a handler does for `.lines`.
            assert_eq!(StackKey::from_word(key.to_word() | LINES), key.with_lines());
        }
    }
}
