//! PTX that sets words of a handler's context, whatever place of a kernel it runs at.

use xputrace_device::layout::{TABLE, header};
use xputrace_events::device;
use xputrace_ptx::{ADDRESS, MemoryAccess, Space};
use xputrace_wire::device::NAMES_VARIABLE;

// What this crate's parts say of each other's symbols.
const _: () = assert!(header::ENABLED as usize == xputrace_wire::device::ENABLED);
const _: () = assert!(header::PID_TGID as usize == xputrace_wire::device::PID_TGID);
const _: () = assert!(header::CLOCK_OFFSET_NS as usize == xputrace_wire::device::CLOCK_OFFSET);

/// Has the threads of a warp that came to a handler together go on together. The compiler lets them go on alone where a handler
/// has branches, and then the next one would see a warp's threads in several groups. (PTX ISA, "bar.warp.sync": all threads of
/// the mask must come to it, as they do.)
pub(crate) fn together_again(handler: &str) -> String {
    format!(
        "{{\n    .reg .b32 %xpt_there;\n    activemask.b32 %xpt_there;\n{handler}    bar.warp.sync %xpt_there;\n}}\n"
    )
}

/// PTX that sets `{d}` to 1 in the last of the threads of a warp that are there, and to 0 in the others.
pub(crate) const LEADER: &str = "{ .reg .b32 %there, %leader, %lane; .reg .pred %is_it; activemask.b32 %there; \
     bfind.u32 %leader, %there; mov.u32 %lane, %laneid; setp.eq.u32 %is_it, %leader, %lane; \
     selp.b64 {d}, 1, 0, %is_it; }";

/// PTX that sets `{d}` to the number of threads of a warp that are there.
pub(crate) const ACTIVE: &str =
    "{ .reg .b32 %there; activemask.b32 %there; popc.b32 %there, %there; cvt.u64.u32 {d}, %there; }";

/// Returns PTX that sets `{d}` to the number of sectors that the threads of a warp that are there access: of the threads of a
/// sector one is counted. Aligned as they must be, the bytes of a thread lie in one sector (PTX ISA, "Addresses as Operands").
pub(crate) fn sectors(access: &MemoryAccess) -> Option<String> {
    let is_counted = match access.space {
        Space::Global => "",
        // An address of another space is none of global memory's.
        Space::Generic => "isspacep.global %is_global, {address}; and.pred %is_first, %is_first, %is_global; ",
        Space::Shared | Space::Local | Space::Const | Space::Param => return None,
    };
    // Copies in bulk are aligned to 16 bytes alone.
    let most_bytes = if access.is_asynchronous { 16 } else { device::SECTOR_BYTES };
    access.bytes.filter(|it| u64::from(*it) <= most_bytes)?;
    Some(sectors_at(ADDRESS, is_counted))
}

/// Returns PTX that sets `{d}` to the number of sectors that the threads of a warp that are there access at these addresses.
/// `is_counted` are statements that clear `%is_first` in threads whose access is not counted; they may use `%is_global`.
pub(crate) fn sectors_at(address: &str, is_counted: &str) -> String {
    let shift = device::SECTOR_BYTES.ilog2();
    let text = format!(
        "{{ .reg .b32 %there, %same, %first, %lane, %n; .reg .b64 %sector; .reg .pred %is_first, %is_global; \
         activemask.b32 %there; shr.u64 %sector, {{address}}, {shift}; match.any.sync.b64 %same, %sector, %there; \
         bfind.u32 %first, %same; mov.u32 %lane, %laneid; setp.eq.u32 %is_first, %lane, %first; {is_counted}\
         vote.sync.ballot.b32 %n, %is_first, %there; popc.b32 %n, %n; cvt.u64.u32 {{d}}, %n; }}"
    );
    text.replace("{address}", address)
}

/// Returns PTX that sets `{d}` to the GPU's time on the host's clock.
pub(crate) fn clock() -> String {
    format!(
        "{{ .reg .b64 %offset; ld.global.u64 %offset, [{TABLE}+{}]; mov.u64 {{d}}, {TIMER}; \
         add.s64 {{d}}, {{d}}, %offset; }}",
        header::CLOCK_OFFSET_NS
    )
}

/// The GPU's timer, in nanoseconds.
pub(crate) const TIMER: &str = "%globaltimer";

/// Returns PTX that sets `{d}` to the id of the process.
pub(crate) fn process_id() -> String {
    format!("ld.global.u64 {{d}}, [{TABLE}+{}]; shr.u64 {{d}}, {{d}}, 32;", header::PID_TGID)
}

/// Returns PTX that sets `{d}` to an element of the twin's variable for names.
pub(crate) fn name_at(index: usize) -> String {
    format!("ld.const.u64 {{d}}, [{NAMES_VARIABLE}+{}];", index * size_of::<u64>())
}
