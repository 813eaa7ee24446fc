//! The parameters of a launch, as patches read them: from the kernel's words ([`kernel_words`]).

use xputrace_device::Word;
use xputrace_events::device::{MOST_ARGUMENTS, Source};
use xputrace_wire::device::kernel_words;

/// The address of the kernel's words.
pub(crate) const KERNEL: &str = "%patch_kernel";
/// Returns the register that tells which parameter a handler reads.
fn argument_register(n: usize) -> String {
    format!("%patch_argument{n}")
}

/// Returns a word that is a launch's parameter, or whether it has given one.
pub(crate) fn argument_word(source: Source) -> Option<Word> {
    match source {
        Source::HasArgument(n) => Some(Word::Statements(has_argument(n))),
        Source::Argument(n) => Some(Word::Statements(argument(n))),
        _ => None,
    }
}

/// PTX that sets `{d}` to 1 if the launch has given this parameter, else to 0. Where the machine code has it, the API doesn't
/// tell.
fn has_argument(n: usize) -> String {
    let it = argument_register(n);
    format!(
        "{{ .reg .b64 {it}; ld.global.nc.u64 {it}, [{KERNEL}+{}]; bfe.u64 {{d}}, {it}, {n}, 1; }}",
        kernel_words::HAS_ARGUMENTS
    )
}

/// PTX that sets `{d}` to the parameter, if the launch has given it. Words that are not the launch's own have no place for it.
fn argument(n: usize) -> String {
    let it = argument_register(n);
    format!(
        "{{ .reg .b64 {it}; .reg .pred %is_it; ld.global.nc.u64 {it}, [{KERNEL}+{}]; bfe.u64 {{d}}, {it}, {n}, 1; \
         setp.ne.u64 %is_it, {{d}}, 0; @%is_it ld.global.nc.u64 {{d}}, [{KERNEL}+{}]; }}",
        kernel_words::HAS_ARGUMENTS,
        kernel_words::ARGUMENTS + 8 * n
    )
}

/// Returns which parameters a handler reads whose context has these statements: a bit for each.
pub(crate) fn arguments_in(text: &str) -> u64 {
    let is_read = |n: &usize| text.contains(&format!(".b64 {};", argument_register(*n)));
    (0..MOST_ARGUMENTS).filter(is_read).fold(0, |all, n| all | 1 << n)
}
