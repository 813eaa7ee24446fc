//! The helper functions, written into the program where they are called.

use xputrace_bytecode::helper as id;

use super::memory::Reached;
use super::{Emitter, RESULT, put};
use crate::Refusal;
use crate::analyse::State;
use crate::layout::{TABLE, header, key_words};
use crate::value::{Offset, Value};
use crate::written::MAX_NAME_BYTES;

/// Special registers of PTX by axis (sections 10.1 to 10.6).
const AXES: [&str; 3] = ["x", "y", "z"];

impl Emitter<'_> {
    pub(super) fn call(&mut self, helper: i32, state: &State) -> Result<(), Refusal> {
        match helper {
            id::MAP_LOOKUP_ELEM => self.lookup(state),
            id::MAP_UPDATE_ELEM => self.update(state),
            id::MAP_DELETE_ELEM => self.delete(state),
            id::RAISE => self.raise(state),
            id::MAP_MODIFY => self.modify(state),
            id::NAME_TEXT => self.name_text(state),
            id::NAME_MATCHES => self.name_matches(state),
            id::TRACE_PRINTK => self.trace_printk(state),
            id::PERF_EVENT_OUTPUT => self.perf_event_output(state),
            id::RINGBUF_OUTPUT => self.ringbuf_output(state),
            id::RINGBUF_RESERVE => self.ringbuf_reserve(state),
            id::RINGBUF_SUBMIT => self.ringbuf_end(true, state),
            id::RINGBUF_DISCARD => self.ringbuf_end(false, state),
            id::PUTS => self.puts(state),
            id::GET_BLOCK_IDX => self.axes("%ctaid", state),
            id::GET_BLOCK_DIM => self.axes("%ntid", state),
            id::GET_THREAD_IDX => self.axes("%tid", state),
            id::GET_GRID_DIM => self.axes("%nctaid", state),
            _ => self.simple(helper),
        }
    }

    /// Helpers without memory.
    fn simple(&mut self, helper: i32) -> Result<(), Refusal> {
        match helper {
            id::KTIME_GET_NS => {
                let offset = self.header(header::CLOCK_OFFSET_NS);
                put!(self, "mov.u64 {RESULT}, %globaltimer");
                put!(self, "add.s64 {RESULT}, {RESULT}, {offset}");
            }
            id::GET_GLOBALTIMER => put!(self, "mov.u64 {RESULT}, %globaltimer"),
            id::GET_CURRENT_PID_TGID => put!(self, "ld.global.nc.u64 {RESULT}, [{TABLE}+{}]", header::PID_TGID),
            id::GET_SM_ID | id::GET_SMP_PROCESSOR_ID => self.special("%smid"),
            id::GET_WARP_ID => self.special("%warpid"),
            id::GET_LANE_ID => self.special("%laneid"),
            id::MEMBAR => {
                put!(self, "membar.sys");
                put!(self, "mov.b64 {RESULT}, 0");
            }
            id::EXIT_THREAD if self.request.options.allow_exit => put!(self, "exit"),
            id::EXIT_THREAD => return self.refuse("ends the kernel's thread, which is not allowed here"),
            helper => {
                let name = id::name(helper).unwrap_or("of an unknown name");
                return self.refuse(format!("calls helper {helper} ({name}), which the device lacks"));
            }
        }
        Ok(())
    }

    fn special(&mut self, register: &str) {
        let narrow = self.word();
        put!(self, "mov.u32 {narrow}, {register}");
        put!(self, "cvt.u64.u32 {RESULT}, {narrow}");
    }

    /// Writes the three parts of a special register to where R1 to R3 point.
    fn axes(&mut self, register: &str, state: &State) -> Result<(), Refusal> {
        for (arg, axis) in (1..).zip(AXES) {
            let to = self.reach(arg, 0, 8, state)?;
            let (narrow, value) = (self.word(), self.long());
            put!(self, "mov.u32 {narrow}, {register}.{axis}");
            put!(self, "cvt.u64.u32 {value}, {narrow}");
            self.store_from(&value, &to, 0, 8)?;
        }
        put!(self, "mov.b64 {RESULT}, 0");
        Ok(())
    }

    /// Returns the text of a string id, which has to be known now.
    fn name(&self, arg: u8, state: &State) -> Result<&[u8], Refusal> {
        let id = self.known(arg, "the id of a string", state)?;
        match self.request.options.names.get(&id) {
            Some(name) => Ok(name),
            None => self.refuse(format!("the text of string {id:#x} is not known on the device")),
        }
    }

    fn name_text(&mut self, state: &State) -> Result<(), Refusal> {
        let n_bytes = self.known(3, "the room for a text", state)?;
        if n_bytes == 0 || n_bytes > MAX_NAME_BYTES {
            return self.refuse(format!("asks for a text of {n_bytes} bytes; 1 to {MAX_NAME_BYTES} are possible"));
        }
        let name = self.name(1, state)?;
        let (len, mut text) = (name.len(), name.to_vec());
        text.truncate(n_bytes as usize - 1);
        text.resize(n_bytes as usize, 0);
        let to = self.reach(2, 0, n_bytes as u32, state)?;
        let words: Vec<String> = key_words(&text).into_iter().map(|it| self.constant(it as i64)).collect();
        self.store_words(&words, &to, n_bytes as u32)?;
        put!(self, "mov.b64 {RESULT}, {len}");
        Ok(())
    }

    fn name_matches(&mut self, state: &State) -> Result<(), Refusal> {
        let place = self.known(3, "where a text is to match", state)? as i64;
        let (text, wanted) = (self.name(1, state)?, self.name(2, state)?);
        let matches = match place {
            id::MATCH_START => text.starts_with(wanted),
            id::MATCH_END => text.ends_with(wanted),
            _ => wanted.is_empty() || text.windows(wanted.len()).any(|it| it == wanted),
        };
        put!(self, "mov.b64 {RESULT}, {}", u8::from(matches));
        Ok(())
    }

    /// Returns an argument that has to be a number known now.
    pub(super) fn known(&self, arg: u8, what: &str, state: &State) -> Result<u64, Refusal> {
        match state.reg(self.node.frame, arg).scalar().known {
            Some(known) => Ok(known),
            None => self.refuse(format!("r{arg}, {what}, is not the same number on every path")),
        }
    }

    /// Returns the bytes between a pointer and the end of what it points into.
    pub(super) fn bytes_left(&self, arg: u8, state: &State) -> Result<u32, Refusal> {
        let left = match state.reg(self.node.frame, arg) {
            Value::Stack { at: Offset::Fixed(at), .. } => -i64::from(at),
            Value::Element { map, at: Offset::Fixed(at), .. } => {
                i64::from(self.request.maps[map.index()].value_bytes) - i64::from(at)
            }
            other => return self.refuse(format!("r{arg} is {}, not a constant place in memory", other.name())),
        };
        Ok(u32::try_from(left).unwrap_or(0))
    }

    /// Returns the words of `n_bytes` bytes that an argument points to.
    pub(super) fn argument(&mut self, arg: u8, n_bytes: u32, state: &State) -> Result<Vec<String>, Refusal> {
        let from: Reached = self.reach(arg, 0, n_bytes, state)?;
        self.load_words(&from, n_bytes)
    }
}
