//! Where CPython keeps what is read here. All numbers are bytes.
//!
//! 3.11 and 3.12: `Include/cpython/pystate.h`, `Include/cpython/code.h`,
//! `Include/internal/pycore_frame.h`, `Include/internal/pycore_runtime.h`, on x86-64. These are the
//! same in all releases of a minor version, for extension modules are built against them.
//! From 3.13 on the interpreter has a table of them (`struct _Py_DebugOffsets`).

/// A version's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// In `_PyRuntime`: the thread that ends the interpreter, or 0.
    pub(crate) finalizing: u64,
    pub(crate) thread: Thread,
    pub(crate) calls: Calls,
    pub(crate) frame: FrameOffsets,
    pub(crate) code: CodeOffsets,
    pub(crate) text: TextOffsets,
    /// In a `bytes` object: its length, its bytes.
    pub(crate) bytes: [u64; 2],
}

/// In a thread's state: how it leads to its innermost frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    /// Through the `_PyCFrame` of the innermost call: where the state has its address, and where that
    /// has the frame's.
    Cframe {
        at: u64,
        frame: u64,
    },
    Frame {
        at: u64,
    },
}

/// How the frames of one call of the evaluation function are told from those of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// 3.11: by a flag of one byte in the outermost of them. Each call has a `_PyCFrame` on its own stack,
    /// which has the address of the one of the call before.
    Flags { is_entry: u64, previous: u64 },
    /// Since 3.12: by a frame of its own, on the call's own stack ([`owner::C_STACK`]).
    Frames,
}

/// In a `_PyInterpreterFrame`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameOffsets {
    pub(crate) previous: u64,
    /// Its code object.
    pub(crate) code: u64,
    /// The address of the current instruction.
    pub(crate) instruction: u64,
    /// One byte: an [`owner`].
    pub(crate) owner: u64,
}

/// `enum _frameowner`.
pub(crate) mod owner {
    pub(crate) const GENERATOR: u8 = 1;
    /// Since 3.12: on the stack of the evaluation function, outside the frames that it runs.
    pub(crate) const C_STACK: u8 = 3;
}

/// In a `PyCodeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeOffsets {
    pub(crate) first_line: u64,
    pub(crate) file: u64,
    pub(crate) name: u64,
    /// `co_linetable`.
    pub(crate) lines: u64,
    /// The first instruction; `_co_firsttraceable` and `co_extra` stand before it.
    pub(crate) instructions: u64,
}

/// How far before the instructions `_co_firsttraceable` is.
pub(crate) const FIRST_TRACEABLE_BEFORE: u64 = 16;

/// In a `PyUnicodeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextOffsets {
    /// Number of characters.
    pub(crate) length: u64,
    pub(crate) state: u64,
    /// The characters, if all are ASCII; and if not.
    pub(crate) ascii: u64,
    pub(crate) others: u64,
}

/// `ob_type` in every object.
pub(crate) const TYPE: u64 = 8;

pub(crate) const V3_11: Layout = Layout {
    finalizing: 24,
    thread: Thread::Cframe { at: 56, frame: 8 },
    calls: Calls::Flags { is_entry: 68, previous: 16 },
    frame: FrameOffsets { previous: 48, code: 32, instruction: 56, owner: 69 },
    code: CodeOffsets { first_line: 72, file: 112, name: 128, lines: 136, instructions: 184 },
    text: TextOffsets { length: 16, state: 32, ascii: 48, others: 72 },
    bytes: [16, 32],
};

pub(crate) const V3_12: Layout = Layout {
    finalizing: 24,
    thread: Thread::Cframe { at: 56, frame: 0 },
    calls: Calls::Frames,
    frame: FrameOffsets { previous: 8, code: 0, instruction: 56, owner: 70 },
    code: CodeOffsets { first_line: 68, file: 112, name: 128, lines: 136, instructions: 192 },
    text: TextOffsets { length: 16, state: 32, ascii: 40, others: 56 },
    bytes: [16, 32],
};

/// The words of `struct _Py_DebugOffsets` in 3.13 (`Include/internal/pycore_runtime.h`).
pub(crate) const DEBUG_WORDS: usize = 73;

/// Indexes of those that are read.
mod debug {
    pub(super) const COOKIE: usize = 0;
    pub(super) const VERSION: usize = 1;
    pub(super) const IS_FREE_THREADED: usize = 2;
    pub(super) const FINALIZING: usize = 4;
    pub(super) const CURRENT_FRAME: usize = 23;
    pub(super) const FRAME_PREVIOUS: usize = 29;
    pub(super) const FRAME_EXECUTABLE: usize = 30;
    pub(super) const FRAME_INSTRUCTION: usize = 31;
    pub(super) const FRAME_OWNER: usize = 33;
    pub(super) const CODE_FILE: usize = 35;
    pub(super) const CODE_NAME: usize = 37;
    pub(super) const CODE_LINES: usize = 38;
    pub(super) const CODE_FIRST_LINE: usize = 39;
    pub(super) const CODE_INSTRUCTIONS: usize = 43;
    pub(super) const TYPE: usize = 45;
    pub(super) const BYTES_LENGTH: usize = 65;
    pub(super) const BYTES_DATA: usize = 66;
    pub(super) const TEXT_SIZE: usize = 67;
    pub(super) const TEXT_STATE: usize = 68;
    pub(super) const TEXT_LENGTH: usize = 69;
    pub(super) const TEXT_ASCII: usize = 70;
}

const NONSENSE: &str = "its table of offsets makes no sense";
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// No member of a thread's state, a frame or an object lies farther from its start.
const FARTHEST: u64 = 4096;
/// Nor of the runtime's state.
const FARTHEST_IN_RUNTIME: u64 = 1 << 20;

/// The layout that the interpreter's own table tells; `Err` has the reason why it can't be used.
pub(crate) fn of_debug_offsets(words: &[u64; DEBUG_WORDS], version: u64) -> Result<Layout, &'static str> {
    use debug as at;
    if words[at::COOKIE] != COOKIE || words[at::VERSION] != version {
        return Err("its table of offsets is another version's");
    }
    if words[at::IS_FREE_THREADED] != 0 {
        return Err("it is built without the GIL");
    }
    let is_near = words[at::CURRENT_FRAME..=at::TEXT_ASCII].iter().all(|it| *it <= FARTHEST);
    if !is_near || words[at::FINALIZING] > FARTHEST_IN_RUNTIME || words[at::TYPE] != TYPE {
        return Err(NONSENSE);
    }
    Ok(Layout {
        finalizing: words[at::FINALIZING],
        thread: Thread::Frame { at: words[at::CURRENT_FRAME] },
        calls: Calls::Frames,
        frame: FrameOffsets {
            previous: words[at::FRAME_PREVIOUS],
            code: words[at::FRAME_EXECUTABLE],
            instruction: words[at::FRAME_INSTRUCTION],
            owner: words[at::FRAME_OWNER],
        },
        code: CodeOffsets {
            first_line: words[at::CODE_FIRST_LINE],
            file: words[at::CODE_FILE],
            name: words[at::CODE_NAME],
            lines: words[at::CODE_LINES],
            instructions: words[at::CODE_INSTRUCTIONS],
        },
        text: TextOffsets {
            length: words[at::TEXT_LENGTH],
            state: words[at::TEXT_STATE],
            ascii: words[at::TEXT_ASCII],
            // `PyCompactUnicodeObject`: the UTF-8 form's length and address follow. The size is that of
            // a `PyUnicodeObject`, which has one word more.
            others: words[at::TEXT_SIZE].checked_sub(8).ok_or(NONSENSE)?,
        },
        bytes: [words[at::BYTES_LENGTH], words[at::BYTES_DATA]],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of CPython 3.13.0 for x86-64, as its process has it.
    const OF_3_13_0: [u64; DEBUG_WORDS] = [
        0x7970677562656478,
        0x30d00f0,
        0,
        0x452b8,
        0x260,
        0x278,
        0x2f998,
        0x1c68,
        0x1c60,
        0x1cb0,
        0x1ce8,
        0x1de8,
        0x1dd8,
        0x1de0,
        0x10,
        0x1e48,
        0,
        0x1e58,
        0x1e50,
        0x130,
        0,
        0x8,
        0x10,
        0x48,
        0x98,
        0xa0,
        0xe8,
        0x20,
        0x50,
        0x8,
        0,
        0x38,
        0x48,
        0x46,
        0xd0,
        0x70,
        0x78,
        0x80,
        0x88,
        0x44,
        0x34,
        0x60,
        0x68,
        0xc8,
        0x10,
        0x8,
        0x1a0,
        0x18,
        0x58,
        0xa8,
        0x20,
        0x18,
        0x10,
        0x28,
        0x18,
        0x10,
        0x30,
        0x20,
        0x28,
        0x18,
        0x10,
        0x20,
        0x10,
        0x18,
        0x28,
        0x10,
        0x20,
        0x40,
        0x20,
        0x10,
        0x28,
        0xf0,
        0xc8,
    ];

    /// The offsets that a C compiler tells from the headers of 3.13.0.
    #[test]
    fn the_table_of_3_13_tells_what_its_headers_do() {
        let layout = of_debug_offsets(&OF_3_13_0, 0x30d00f0).unwrap();
        let expected = Layout {
            finalizing: 608,
            thread: Thread::Frame { at: 72 },
            calls: Calls::Frames,
            frame: FrameOffsets { previous: 8, code: 0, instruction: 56, owner: 70 },
            code: CodeOffsets { first_line: 68, file: 112, name: 128, lines: 136, instructions: 200 },
            text: TextOffsets { length: 16, state: 32, ascii: 40, others: 56 },
            bytes: [16, 32],
        };
        assert_eq!(layout, expected);
    }

    #[test]
    fn tables_that_do_not_fit_are_refused() {
        let with = |at: usize, word: u64| {
            let mut words = OF_3_13_0;
            words[at] = word;
            of_debug_offsets(&words, 0x30d00f0)
        };
        assert_eq!(with(debug::COOKIE, 0), Err("its table of offsets is another version's"));
        assert_eq!(with(debug::VERSION, 0x30d01f0), Err("its table of offsets is another version's"));
        assert_eq!(with(debug::IS_FREE_THREADED, 1), Err("it is built without the GIL"));
        assert_eq!(with(debug::CODE_LINES, 1 << 40), Err(NONSENSE));
        assert_eq!(with(debug::TEXT_SIZE, 7), Err(NONSENSE));
    }
}
