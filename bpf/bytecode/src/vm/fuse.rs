//! Makes one instruction of those that compilers put in a row, which then take one turn of the inner loop.
//!
//! The first of a row does the work of all. The others stay where they are, for jumps to them.

use super::op::{Decoded, Op};
use super::pointer::{self, MAPS};
use crate::insn::STACK_BYTES;

/// Replaces the first instruction of each known row. The stack is fixed if the frame pointer is the same everywhere.
pub(super) fn fuse(code: &mut [Decoded], stack_is_fixed: bool) {
    for at in 0..code.len() {
        let lookup = || lookup_on_stack(&code[at..]).filter(|_| stack_is_fixed);
        if let Some(it) = copy_to_stack(&code[at..]).or_else(lookup).or_else(|| answer(&code[at..])) {
            code[at] = it;
        }
    }
}

/// Slots of a [`Op::CopyToStack64`].
pub(super) const COPY_SLOTS: usize = 2;

/// A word of the context that is stored on the stack.
fn copy_to_stack(code: &[Decoded]) -> Option<Decoded> {
    let [load, store, ..] = code else { return None };
    let is_it = load.op == Op::ContextLoad64 && store.op == Op::StackStore64R && store.src == load.dst;
    is_it.then_some(Decoded { op: Op::CopyToStack64, off: store.off, ..*load })
}

/// Slots of a [`Op::StackLookup`].
pub(super) const LOOKUP_SLOTS: usize = 5;

/// A map, its key's place on the stack, and the look-up.
fn lookup_on_stack(code: &[Decoded]) -> Option<Decoded> {
    let [map, half, copy, add, lookup, ..] = code else { return None };
    let ops = [map.op, half.op, copy.op, add.op, lookup.op];
    let is_row = ops == [Op::LdImm64, Op::Half, Op::Mov64R, Op::Add64I, Op::Lookup];
    let are_arguments = (map.dst, copy.dst, copy.src, add.dst) == (1, 2, 10, 2);
    let place = i32::try_from((STACK_BYTES as i64).checked_add(add.imm as i64)?).ok()?;
    let are_places = pointer::region(map.imm) == MAPS && (0..STACK_BYTES as i32).contains(&place);
    (is_row && are_arguments && are_places).then_some(Decoded { op: Op::StackLookup, off: place, ..*map })
}

/// Slots of a [`Op::Return`].
pub(super) const RETURN_SLOTS: usize = 2;

/// A number that is returned.
fn answer(code: &[Decoded]) -> Option<Decoded> {
    let [number, exit, ..] = code else { return None };
    let is_it = matches!(number.op, Op::Mov64I | Op::Mov32I) && number.dst == 0 && exit.op == Op::Exit;
    is_it.then_some(Decoded { op: Op::Return, ..*number })
}
