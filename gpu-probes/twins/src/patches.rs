//! Makes patches: functions with handlers, which NVIDIA's Sanitizer API has the machine code of kernels call.
//!
//! A function's first parameter is the address of the kernel's words ([`kernel_words`]); those behind it are the API's
//! (`sanitizer_patching.h`, "SanitizerCallback…").

use crate::arguments::{KERNEL, argument_word};
use crate::conflicts;
use crate::maker::Maker;
use crate::target::heading;
use crate::times::LaunchAddresses;
use crate::words::{ACTIVE, LEADER, clock, process_id, sectors_at};
use std::fmt::Write as _;
use xputrace_device::{LEAST_ARCHITECTURE, Refusal, Sums, TableAt, Word};
use xputrace_events::DeviceEvent;
use xputrace_events::device::{self, Access, SOURCES, Source};
use xputrace_wire::device::{ENABLED, PatchPoint, kernel_words};

/// Patches as text: the same in every run of a script, for all kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchesText {
    /// PTX.
    pub text: String,
    /// What it is for: `sm_90`.
    pub target: String,
    /// The places that it has functions for.
    pub points: Vec<PatchPoint>,
}

/// The context's block.
const BLOCK: &str = "%patch_block";
const ADDRESS: &str = "%patch_address";
const BYTES: &str = "%patch_bytes";
/// `Sanitizer_DeviceMemoryFlags`: 1 for a read, 2 for a write.
const FLAGS: &str = "%patch_flags";
/// Where the times of the launch go.
const TIMES: &str = "%patch_times";

/// Returns the events at a place.
fn events(point: PatchPoint) -> &'static [DeviceEvent] {
    match point {
        PatchPoint::Entry => &[DeviceEvent::BlockBegin, DeviceEvent::Entry],
        PatchPoint::Exit => &[DeviceEvent::Exit],
        PatchPoint::Global | PatchPoint::Shared | PatchPoint::Local => &[DeviceEvent::Memory],
        PatchPoint::Barrier => &[DeviceEvent::Barrier],
        PatchPoint::Call => &[DeviceEvent::Call],
    }
}

/// Returns the state space of a place's accesses, as scripts compare it.
fn space(point: PatchPoint) -> Option<&'static str> {
    Some(match point {
        PatchPoint::Global => "global",
        PatchPoint::Shared => "shared",
        PatchPoint::Local => "local",
        PatchPoint::Entry | PatchPoint::Exit | PatchPoint::Barrier | PatchPoint::Call => return None,
    })
}

/// Returns the parameters of a place's function behind the first.
fn parameters(point: PatchPoint) -> &'static str {
    match point {
        PatchPoint::Entry | PatchPoint::Exit => ".param .b64 pc",
        PatchPoint::Global | PatchPoint::Shared | PatchPoint::Local => {
            ".param .b64 pc, .param .b64 address, .param .b32 bytes, .param .b32 flags, .param .b64 value"
        }
        PatchPoint::Call => ".param .b64 pc, .param .b64 target, .param .b32 flags",
        PatchPoint::Barrier => ".param .b64 pc, .param .b32 index, .param .b32 threads, .param .b32 flags",
    }
}

impl Maker {
    /// Makes the patches for GPUs of this compute capability; those at entries and exits take the kernel's times, if that is
    /// wanted.
    ///
    /// # Errors
    /// A handler can't be run there.
    pub fn patches(&self, capability: u32, takes_times: bool) -> Result<PatchesText, Refusal> {
        let is_used =
            |it: &PatchPoint| self.handlers_at(*it).next().is_some() || takes_times && times_at(*it).is_some();
        let points: Vec<PatchPoint> = PatchPoint::ALL.iter().copied().filter(is_used).collect();
        let (mut text, target) = heading(capability);
        for point in &points {
            text += &self.function(*point, takes_times)?;
        }
        Ok(PatchesText { text, target, points })
    }

    fn handlers_at(&self, point: PatchPoint) -> impl Iterator<Item = usize> {
        (0..self.handlers.len()).filter(move |it| events(point).contains(&self.handlers[*it].place))
    }

    fn function(&self, point: PatchPoint, takes_times: bool) -> Result<String, Refusal> {
        let context: Vec<Word> =
            SOURCES.into_iter().enumerate().map(|(at, source)| self.word_at(point, at, source)).collect();
        let times = times_at(point).filter(|_| takes_times).unwrap_or_default();
        let mut body = String::new();
        for handler in self.handlers_at(point) {
            // A ptxas takes no `redux` in patches, which later architectures have.
            let block =
                self.block(handler, &context, LEAST_ARCHITECTURE, TableAt::Register(BLOCK.into()), Sums::default())?;
            // Writing to a string can't fail.
            let _ = write!(
                body,
                "    and.b64 %patch_bit, %patch_handlers, {:#x};\n    setp.eq.u64 %patch_none, %patch_bit, 0;\n    \
                 @%patch_none bra $patch_{handler};\n{block}$patch_{handler}:\n",
                1u64 << handler
            );
        }
        Ok(format!(
            "\n.visible .func (.param .b32 result) {}(.param .b64 kernel, {})\n{{\n{}{times}{}{body}$patch_end:\n    \
             .reg .b32 %patch_ok;\n    mov.b32 %patch_ok, 0;\n    st.param.b32 [result], %patch_ok;\n    ret;\n}}\n",
            point.symbol(),
            parameters(point),
            prologue(point),
            words_for_handlers()
        ))
    }

    fn word_at(&self, point: PatchPoint, at: usize, source: Source) -> Word {
        match source {
            Source::Register32(register) => Word::Narrow(register.into()),
            Source::Register64(register) => Word::Wide(register.into()),
            Source::GlobalTimer => Word::Statements(clock()),
            Source::OfProcess => Word::Statements(process_id()),
            Source::OfKernel => Word::Statements(format!("ld.global.nc.u64 {{d}}, [{KERNEL}+{}];", kernel_words::NAME)),
            Source::Leader => Word::Statements(LEADER.into()),
            Source::Active => Word::Statements(ACTIVE.into()),
            Source::OfPlace => self.of_access(point, at),
            Source::HasArgument(_) | Source::Argument(_) => argument_word(source).unwrap_or(Word::Absent),
        }
    }

    fn of_access(&self, point: PatchPoint, at: usize) -> Word {
        let Some(space) = space(point) else { return Word::Constant(0) };
        match at {
            device::ADDRESS => Word::Wide(ADDRESS.into()),
            device::BYTES => Word::Narrow(BYTES.into()),
            device::SECTORS if point == PatchPoint::Global => Word::Statements(sectors_at(ADDRESS, "")),
            // All but atomics, by their flags.
            device::HAS_CONFLICTS if point == PatchPoint::Shared => Word::Statements(format!(
                "{{ .reg .b32 %both; .reg .pred %is_it; and.b32 %both, {FLAGS}, 3; setp.ne.u32 %is_it, %both, 3; \
                 selp.b64 {{d}}, 1, 0, %is_it; }}"
            )),
            device::CONFLICTS if point == PatchPoint::Shared => {
                Word::Statements(conflicts::of(ADDRESS, BYTES, "mov.b32 %counted, %there;"))
            }
            device::SPACE => Word::Constant(self.texts.id(space)),
            device::ACCESS => {
                let [load, store, atomic] =
                    [Access::Load, Access::Store, Access::Atomic].map(|it| self.texts.id(it.text()));
                Word::Statements(format!(
                    "{{ .reg .b32 %both; .reg .pred %is_it; and.b32 %both, {FLAGS}, 3; setp.eq.u32 %is_it, %both, 1; \
                     selp.b64 {{d}}, {load}, {store}, %is_it; setp.eq.u32 %is_it, %both, 3; \
                     selp.b64 {{d}}, {atomic}, {{d}}, %is_it; }}"
                ))
            }
            _ => Word::Constant(0),
        }
    }
}

/// Returns what takes the kernel's times at a place, if anything does there. It comes before the handlers, whose own time is the
/// kernel's but at its end.
fn times_at(point: PatchPoint) -> Option<String> {
    let word = |at: usize| format!("{KERNEL}+{at}");
    let place =
        LaunchAddresses { times: TIMES, groups: &word(kernel_words::GROUPS), is_node: &word(kernel_words::IS_NODE) };
    let taken = match point {
        PatchPoint::Entry => place.entered(),
        PatchPoint::Exit => place.exited(),
        PatchPoint::Global | PatchPoint::Shared | PatchPoint::Local | PatchPoint::Barrier | PatchPoint::Call => {
            return None;
        }
    };
    Some(format!(
        "    .reg .b64 {TIMES}, %patch_enabled;\n    ld.global.nc.u64 {TIMES}, [{KERNEL}+{}];\n    \
         setp.eq.u64 %patch_none, {TIMES}, 0;\n    @%patch_none bra $patch_timed;\n    \
         ld.global.nc.u64 %patch_enabled, [{KERNEL}+{}];\n    ld.global.u64 %patch_enabled, [%patch_enabled+{ENABLED}];\n    \
         setp.eq.u64 %patch_none, %patch_enabled, 0;\n    \
         @%patch_none bra $patch_timed;\n{taken}$patch_timed:\n",
        kernel_words::TIMES,
        kernel_words::BLOCK
    ))
}

/// Returns what comes before the handlers: without a kernel, nothing is done.
fn prologue(point: PatchPoint) -> String {
    let of_access = if space(point).is_some() {
        format!(
            "    .reg .b64 {ADDRESS};\n    .reg .b32 {BYTES}, {FLAGS};\n    ld.param.u64 {ADDRESS}, [address];\n    \
             ld.param.u32 {BYTES}, [bytes];\n    ld.param.u32 {FLAGS}, [flags];\n"
        )
    } else {
        String::new()
    };
    format!(
        "    .reg .b64 {KERNEL}, {BLOCK}, %patch_handlers, %patch_bit;\n    .reg .pred %patch_none;\n{of_access}    \
         ld.param.u64 {KERNEL}, [kernel];\n    setp.eq.u64 %patch_none, {KERNEL}, 0;\n    @%patch_none bra $patch_end;\n"
    )
}

/// Returns what loads the words that handlers need.
fn words_for_handlers() -> String {
    format!(
        "    ld.global.nc.u64 {BLOCK}, [{KERNEL}+{}];\n    ld.global.nc.u64 %patch_handlers, [{KERNEL}+{}];\n",
        kernel_words::BLOCK,
        kernel_words::HANDLERS
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_patched_is_at_a_place() {
        for event in DeviceEvent::ALL {
            let is_at_a_place = PatchPoint::ALL.iter().any(|it| events(*it).contains(event));
            assert_eq!(event.can_be_patched(), is_at_a_place, "{}", event.name());
        }
    }
}
