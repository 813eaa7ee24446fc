//! What a thread is doing when it makes a call: its stack, and the ranges that it is in.

use super::Agent;
use super::intern::{NoId, TextKind, UNKNOWN_RANGE};
use super::library::Layer;
use super::output::{self, RingRole};
use super::python::Python;
use super::stack::{Here, Native, StackTaken, Stacks};
use super::state::output::Output;
use super::state::this_thread::this_thread;
use std::ffi::{CStr, c_char};
use xputrace_python::Code;
use xputrace_unwind::{Bounds, Pushed};
use xputrace_wire::record::MAX_STACK_OBJECTS;
use xputrace_wire::region::Lost;

/// Takes the calling thread's stack in any call of the driver.
///
/// # Safety
/// The registers are those of the calling thread at the call of the backend, which has not returned.
#[cold]
pub(crate) unsafe fn stack_of_driver_call(agent: &'static Agent, registers: &Pushed) -> StackTaken {
    let Ok(mut local) = this_thread().launch.try_borrow_mut() else { return StackTaken::Lost };
    local.bind(agent);
    // SAFETY: the caller promises the registers of the calling thread at the call of the backend.
    unsafe { stack_of_call(agent, &mut local.bounds, registers, Layer::Driver, 0) }
}

/// Takes the stack of the calling thread, in a call of the program, and tells the tracer. `bounds` are those of the
/// thread's stack, once known. `called` is anything that differs from call to call.
///
/// # Safety
/// The registers are those of the calling thread at the call of the backend, which has not returned.
#[inline]
pub(crate) unsafe fn stack_of_call(
    agent: &'static Agent,
    bounds: &mut Option<Bounds>,
    registers: &Pushed,
    layer: Layer,
    called: u64,
) -> StackTaken {
    if bounds.is_none() {
        *bounds = Bounds::of_thread();
    }
    let Some(stacks) = &agent.code.stacks else { return StackTaken::Empty };
    let here = Here { registers, bounds: *bounds, backend: agent.backend, layer, called };
    // SAFETY: the thread's own registers and bounds.
    let taken = output::with(agent, RingRole::Launch, |out| unsafe { stack_taken(agent, stacks, out, &here) });
    taken.unwrap_or(StackTaken::Lost)
}

/// Writes the calling thread's stack into a ring.
///
/// # Safety
/// `here` is where the thread is: on its own stack, from where the backend called us to its end.
#[inline]
unsafe fn stack_taken(agent: &'static Agent, stacks: &Stacks, out: &mut Output, here: &Here<'_>) -> StackTaken {
    let mut is_table_full = false;
    let code_id = |python: &Python, out: &mut Output, code: &Code<'_>| match python
        .codes
        .intern(code, |id, parts| out.write_code(id, parts))
    {
        Ok(id) => Some(id),
        Err(NoId::TableFull) => {
            is_table_full = true;
            Some(0)
        }
        Err(NoId::NotTold) => None,
    };
    let counters = agent.counters_of(Some(out.ring()));
    counters.bump(&counters.stacks, 1);
    // SAFETY: the caller promises that `here` is where the thread is, on its own stack; the thread has the ring.
    let taken =
        unsafe { stacks.take(out, here, code_id, |out, stack, words, end| stack_id(agent, out, stack, words, end)) };
    if is_table_full {
        agent.count_lost(Lost::NameTableFull, 1);
    }
    taken
}

/// Returns the id of a stack that the tracer knows.
#[inline]
fn stack_id(agent: &'static Agent, out: &mut Output, stack: &Native<'_>, words: &[u64], end: u16) -> Option<u32> {
    let mut is_table_full = false;
    let id = agent.tables.stacks.intern(words, end, stack.files_key(), |id| {
        let objects = ObjectsOf::tell(agent, out, stack);
        is_table_full = matches!(objects, Err(NoId::TableFull));
        objects.is_ok_and(|it| out.write_stack(id, words, end, it.ids()))
    });
    if is_table_full || id == Err(NoId::TableFull) {
        agent.count_lost(Lost::StackTableFull, 1);
    }
    id.ok()
}

/// Ids of the files that a stack's frames are in.
struct ObjectsOf {
    ids: [u32; MAX_STACK_OBJECTS],
    len: usize,
}

impl ObjectsOf {
    /// Tells the tracer of those that it doesn't know. Where they are too many, it can't be told of the stack.
    #[cold]
    fn tell(agent: &Agent, out: &mut Output, stack: &Native<'_>) -> Result<Self, NoId> {
        let mut all = Ok(ObjectsOf { ids: [0; MAX_STACK_OBJECTS], len: 0 });
        stack.for_each_file(|file| {
            let Ok(objects) = &mut all else { return };
            let tell = |id| {
                // SAFETY: the calling thread's stack returns into the file.
                let it = unsafe { file.description() };
                it.is_some_and(|it| out.write_object(id, file.range(), &it, &agent.code.directory))
            };
            if let Err(no_id) = agent.tables.objects.intern(file.key(), tell).and_then(|id| objects.add(id)) {
                all = Err(no_id);
            }
        });
        all
    }

    fn add(&mut self, id: u32) -> Result<(), NoId> {
        if self.ids().contains(&id) {
            return Ok(());
        }
        *self.ids.get_mut(self.len).ok_or(NoId::TableFull)? = id;
        self.len += 1;
        Ok(())
    }

    fn ids(&self) -> &[u32] {
        &self.ids[..self.len]
    }
}

/// Returns the id of the path of ranges that this thread is in; 0 outside ranges.
pub(crate) fn current_ranges(agent: &'static Agent) -> u32 {
    let Some(path) = agent.ranges.and_then(|it| it.path()) else { return 0 };
    // SAFETY: a C string.
    let id = |out: &mut Output| unsafe { range_name(agent, out, path) };
    output::with(agent, RingRole::Launch, id).unwrap_or(0)
}

/// Returns the name id of a path of ranges; where there is no room, that of [`UNKNOWN_RANGE`].
///
/// # Safety
/// The path stays for ever.
pub(crate) unsafe fn range_name(agent: &Agent, out: &mut Output, path: &CStr) -> u32 {
    // SAFETY: C strings.
    let mut id = |path: &CStr| unsafe { name(agent, out, path.as_ptr(), TextKind::Symbol) };
    match id(path) {
        0 => id(UNKNOWN_RANGE),
        id => id,
    }
}

/// Returns the id of a name, or 0 if it has none, which is counted.
///
/// # Safety
/// `pointer` is null or a C string.
#[inline]
pub(crate) unsafe fn name(agent: &Agent, out: &mut Output, pointer: *const c_char, text: TextKind) -> u32 {
    // SAFETY: the caller promises that `pointer` is null or a C string.
    counted(agent, unsafe { find_name(agent, out, pointer, text) })
}

/// Returns the id of a name.
///
/// # Safety
/// `pointer` is null or a C string.
#[inline(always)]
pub(crate) unsafe fn find_name(
    agent: &Agent,
    out: &mut Output,
    pointer: *const c_char,
    text: TextKind,
) -> Result<u32, NoId> {
    if pointer.is_null() {
        return Ok(0);
    }
    // SAFETY: the caller promises that `pointer`, which is not null here, is a C string.
    unsafe { agent.tables.names.intern(pointer, text, |id, text| out.write_name(id, text)) }
}

/// Returns an id, or 0 where there is none, which is counted.
#[inline(always)]
pub(crate) fn counted(agent: &Agent, id: Result<u32, NoId>) -> u32 {
    id.unwrap_or_else(|_| {
        agent.count_lost(Lost::NameTableFull, 1);
        0
    })
}
