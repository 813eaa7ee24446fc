//! A thread's frames.

use crate::code::{Code, is_object, member};
use crate::find::Ends;
use crate::layout::{Calls, FIRST_TRACEABLE_BEFORE, Layout, Thread, owner};

/// What is met on the way from a thread's innermost frame outward.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    Frame {
        /// `None` if its contents can't be read: names of other types than plain strings.
        code: Option<Code<'a>>,
        /// The current instruction: bytes from the first one.
        offset: u32,
    },
    /// All frames since the last of these were run by one call of the evaluation function, in whose
    /// own frame on the thread's stack this address is.
    Call { at: u64 },
}

/// The calling thread's frames, innermost first. They end where the interpreter does.
#[derive(Debug)]
pub struct Frames<'a> {
    layout: &'a Layout,
    ends: Ends<'a>,
    /// The next frame; 0 at the end.
    frame: u64,
    /// In 3.11, the `_PyCFrame` of the call that runs it.
    cframe: u64,
    /// A call to return before it.
    call: Option<u64>,
    left: usize,
}

/// The most frames and calls that are followed.
const MOST: usize = 1 << 14;

impl<'a> Frames<'a> {
    /// # Safety
    /// `thread` is the calling thread's state, of this layout; it stays in its call through `'a`.
    #[inline]
    pub(crate) unsafe fn of(layout: &'a Layout, thread: u64, ends: Ends<'a>) -> Self {
        // SAFETY: members of the thread's state, and of the `_PyCFrame` that it always has.
        let (frame, cframe) = unsafe {
            match layout.thread {
                Thread::Frame { at } => (member(thread, at), 0),
                Thread::Cframe { at, frame } => {
                    let cframe: u64 = member(thread, at);
                    (if is_object(cframe) { member(cframe, frame) } else { 0 }, cframe)
                }
            }
        };
        Frames { layout, ends, frame, cframe, call: None, left: MOST }
    }

    /// Skips the frames to the end of their call, and returns its place.
    pub fn next_call(&mut self) -> Option<u64> {
        loop {
            if let Some(at) = self.call.take() {
                return Some(at);
            }
            self.step()?;
        }
    }

    /// Goes to the next frame; returns the one before, unless it is a call's own. The calls that end
    /// there are noted.
    #[inline]
    fn step(&mut self) -> Option<Option<u64>> {
        if !is_object(self.frame) || self.left == 0 || self.ends.by_another_thread() {
            return None;
        }
        self.left -= 1;
        let frame = self.frame;
        // SAFETY: members of a frame of the thread, as promised to `of`; in 3.11, of the `_PyCFrame` on the
        // stack of the call that runs it.
        unsafe {
            self.frame = member(frame, self.layout.frame.previous);
            match self.layout.calls {
                Calls::Frames if member::<u8>(frame, self.layout.frame.owner) == owner::C_STACK => {
                    self.call = Some(frame);
                    return Some(None);
                }
                Calls::Flags { is_entry, previous } if is_object(self.cframe) && member::<u8>(frame, is_entry) != 0 => {
                    self.call = Some(self.cframe);
                    self.cframe = member(self.cframe, previous);
                }
                Calls::Frames | Calls::Flags { .. } => {}
            }
        }
        Some(Some(frame))
    }

    /// Returns `None` for a frame that has not begun to run, or is one that the interpreter makes for its
    /// own use.
    ///
    /// # Safety
    /// `frame` is one of the thread's.
    #[inline]
    unsafe fn read(&self, frame: u64) -> Option<Item<'a>> {
        let Layout { frame: at, code, .. } = self.layout;
        // SAFETY: members of a frame, and of the code object that it keeps.
        unsafe {
            let object: u64 = member(frame, at.code);
            if !is_object(object) {
                return None;
            }
            let first = object + code.instructions;
            let instruction: u64 = member(frame, at.instruction);
            let offset = instruction.checked_sub(first).and_then(|it| u32::try_from(it).ok())?;
            let traceable: i32 = member(first - FIRST_TRACEABLE_BEFORE, 0);
            let is_generator = member::<u8>(frame, at.owner) == owner::GENERATOR;
            if !is_generator && i64::from(offset) < i64::from(traceable) * 2 {
                return None;
            }
            Some(Item::Frame { code: Code::read(self.layout, object), offset })
        }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Item<'a>;

    #[inline]
    fn next(&mut self) -> Option<Item<'a>> {
        loop {
            if let Some(at) = self.call.take() {
                return Some(Item::Call { at });
            }
            // SAFETY: a frame of the thread, as promised to `of`.
            if let Some(item) = self.step()?.and_then(|frame| unsafe { self.read(frame) }) {
                return Some(item);
            }
        }
    }
}
