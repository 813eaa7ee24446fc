//! How the returns of functions are probed.
//!
//! A return probe of Linux replaces the return address by the address of a trampoline. Anything
//! that reads the stack meanwhile finds it: a C++ exception or a Rust panic ends the program, and
//! so does a Go stack that moves; a thread that switches stacks (`swapcontext`), or takes a signal
//! on another one, loses its trampoline and is killed. No file shows that its functions are safe: a
//! signal comes at any instruction, and its handler may be in any other file. So the function's own
//! `ret` instructions are probed, which leaves the stack alone but is expensive, because Linux
//! single-steps them. The trampoline is used only if the script insists on it.
//!
//! ```text
//! function ┬─ safe ──▶ exits ┬─ ret ───────▶ the handler's program
//!          │                 └─ jmp other ─▶ the program that counts tail calls
//!          └─ trampoline ──────────────────▶ the handler's program
//! ```

use crate::code::{CodeReader, Exits, Return, TailCall};
use crate::elf::{Elf, LONGEST_INSTRUCTION};
use crate::first_insn::{self, BreakpointAnswer};
use crate::resolve::Place;
use crate::trial;
use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::path::Path;

const NO_FUNCTION: &str = "is not the start of a function";
const NO_RET: &str = "has no `ret`: it ends with a jump to another function, or never";
const UNSTEPPABLE: &str = "returns at an instruction that Linux cannot step over";

/// Functions whose returns can be probed, and why those of others cannot.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Each with its exits; `None` if the trampoline reports its returns.
    pub(crate) places: Vec<(Place, Option<Exits>)>,
    pub(crate) unseen: Vec<Unseen>,
}

/// A function whose returns cannot be probed.
#[derive(Debug)]
pub(crate) struct Unseen {
    pub(crate) function: String,
    /// Continues a sentence that starts with the function's name.
    pub(crate) why: &'static str,
}

/// Finds where functions in a file return. Tries `program` where Linux may refuse a place.
pub(crate) fn at_exits(file: &Path, places: Vec<Place>, program: BorrowedFd<'_>) -> Seen {
    let Ok(elf) = Elf::open(file) else { return Seen::default() };
    let reader = CodeReader::new(&elf);
    let mut seen = sorted(places, |place| exits(&reader, place).map(Some));
    let refused = refused(&elf, file, &seen, program);
    let is_refused =
        |(_, exits): &(_, Option<Exits>)| exits.iter().flat_map(Exits::offsets).any(|it| refused.contains(&it));
    let (lost, kept): (Vec<_>, Vec<_>) = seen.places.into_iter().partition(is_refused);
    seen.places = kept;
    seen.unseen.extend(lost.into_iter().map(|(place, _)| Unseen { function: place.function, why: UNSTEPPABLE }));
    seen
}

/// Uses the trampoline for all functions, whatever may happen to their programs. Requires only that
/// they are starts of functions: elsewhere the top of the stack is not a return address, and
/// something else would be overwritten.
pub(crate) fn by_trampoline(places: Vec<Place>) -> Seen {
    sorted(places, |place| place.entry_of.map(|_| None).ok_or(NO_FUNCTION))
}

fn sorted(places: Vec<Place>, exits: impl Fn(&Place) -> Result<Option<Exits>, &'static str>) -> Seen {
    let mut seen = Seen::default();
    for place in places {
        match exits(&place) {
            Ok(exits) => seen.places.push((place, exits)),
            Err(why) => seen.unseen.push(Unseen { function: place.function, why }),
        }
    }
    seen
}

fn exits(reader: &CodeReader<'_>, place: &Place) -> Result<Exits, &'static str> {
    let extent = place.entry_of.ok_or(NO_FUNCTION)?;
    let code = reader.read(extent.start, extent.size).map_err(|it| it.reason())?;
    let exits = reader.exits(&code).map_err(|it| it.reason())?;
    if exits.returns.is_empty() { Err(NO_RET) } else { Ok(exits) }
}

/// Returns the places among the exits that Linux refuses.
fn refused(elf: &Elf, file: &Path, seen: &Seen, program: BorrowedFd<'_>) -> HashSet<u64> {
    let all = seen.places.iter().filter_map(|(_, exits)| exits.as_ref()).flat_map(Exits::offsets);
    let in_doubt: Vec<u64> =
        all.filter(|it| first_insn::answer(elf.code(*it, LONGEST_INSTRUCTION)) != BreakpointAnswer::Taken).collect();
    let verdict = trial::run(program, file, &in_doubt);
    verdict.refused.into_iter().chain(verdict.unknown).collect()
}

impl Exits {
    fn offsets(&self) -> impl Iterator<Item = u64> + '_ {
        let returns = self.returns.iter().map(|Return { file_offset, .. }| *file_offset);
        returns.chain(self.tail_calls.iter().map(|TailCall { file_offset, .. }| *file_offset))
    }
}
