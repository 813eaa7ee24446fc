//! Bank conflicts: how many passes a warp's access to shared memory takes beyond the fewest.
//!
//! Shared memory has 32 banks of 4 bytes; a bank gives one word in a pass, to all threads that ask for that one (CUDA C++ Programming
//! Guide, "Shared Memory" of compute capability 5.x). Threads that access 8 or 16 bytes go by halves or quarters of a warp, since
//! together they ask for all banks then: these *groups* take at least one pass each.

use xputrace_ptx::{ADDRESS, AccessKind, MemoryAccess, Space};

/// Most bytes that a thread accesses by one instruction.
const MOST_BYTES: u32 = 16;

/// Whether an access, as the code has it, may have conflicts that can be told.
fn may_have(access: &MemoryAccess) -> bool {
    let is_known = access.bytes.is_some_and(|it| it.is_power_of_two() && it <= MOST_BYTES);
    // Threads that change the same word go one after another, whatever its bank.
    let is_plain = matches!(access.kind, AccessKind::Load | AccessKind::Store);
    let is_there = matches!(access.space, Space::Shared | Space::Generic);
    // Another block's banks are another multiprocessor's. A generic address of theirs is told by itself: `isspacep.shared` means
    // the block's own (PTX ISA, "isspacep").
    is_known && is_plain && is_there && !access.is_of_cluster && !access.is_collective && !access.is_asynchronous
}

/// Returns PTX that sets `{d}` to 1 where an access has a number of conflicts, else to 0; `None` if it never has.
pub(crate) fn are_known(access: &MemoryAccess) -> Option<String> {
    may_have(access).then(|| match access.space {
        Space::Generic => format!(
            "{{ .reg .b32 %there; .reg .pred %is_shared; activemask.b32 %there; isspacep.shared %is_shared, {ADDRESS}; \
             vote.sync.any.pred %is_shared, %is_shared, %there; selp.b64 {{d}}, 1, 0, %is_shared; }}"
        ),
        _ => "mov.b64 {d}, 1;".to_owned(),
    })
}

/// Returns PTX that sets `{d}` to the conflicts of an access; `None` where they are not known.
pub(crate) fn of_access(access: &MemoryAccess) -> Option<String> {
    let bytes = access.bytes.filter(|_| may_have(access))?;
    let is_counted = if access.space == Space::Generic {
        format!("isspacep.shared %is_it, {ADDRESS}; vote.sync.ballot.b32 %counted, %is_it, %there;")
    } else {
        "mov.b32 %counted, %there;".to_owned()
    };
    Some(of(ADDRESS, &bytes.to_string(), &is_counted))
}

/// Returns PTX that sets `{d}` to the conflicts of an access to this address of shared memory by the threads of a warp that are there;
/// `bytes` is how many each accesses. `counted` are statements that set `%counted` to the threads of `%there` whose access counts.
pub(crate) fn of(address: &str, bytes: &str, counted: &str) -> String {
    // The most of any bank of the group, bit by bit.
    let mut most = String::new();
    for bit in (0..=5).rev() {
        most += &format!(
            "and.b32 %t, %n, {value}; setp.ne.u32 %is_it, %t, 0; and.pred %is_it, %is_it, %is_left; \
             vote.sync.ballot.b32 %t, %is_it, %there; and.b32 %t, %t, %of_group; setp.ne.u32 %is_any, %t, 0; \
             @%is_any or.b32 %most, %most, {value}; @%is_any and.pred %is_left, %is_left, %is_it; ",
            value = 1 << bit
        );
    }
    // All groups together.
    let mut sum = String::new();
    for bit in 0..5 {
        sum += &format!(
            "and.b32 %t, %most, {}; setp.ne.u32 %is_any, %t, 0; and.pred %is_any, %is_any, %is_it; \
             vote.sync.ballot.b32 %t, %is_any, %there; popc.b32 %t, %t; shl.b32 %t, %t, {bit}; add.u32 %sum, %sum, %t; ",
            1 << bit
        );
    }
    // A thread's bytes are a unit of as many banks, and a group has as many threads as there are units side by side in all banks.
    let units = format!(
        "max.u32 %shift, {bytes}, 4; bfind.u32 %shift, %shift; sub.u32 %width, 7, %shift; shr.u32 %group, %lane, %width; \
         shr.u64 %unit, {address}, %shift; cvt.u32.u64 %bank, %unit; mov.b32 %t, 1; shl.b32 %t, %t, %width; \
         sub.u32 %t, %t, 1; and.b32 %bank, %bank, %t; shl.b32 %t, %group, %width; add.u32 %bank, %bank, %t; \
         cvt.u64.u32 %part, %group; shl.b64 %part, %part, 56; or.b64 %unit, %unit, %part; "
    );
    // Of the threads that ask for the same unit, one counts.
    let firsts = "match.any.sync.b64 %same, %unit, %there; and.b32 %same, %same, %counted; bfind.u32 %t, %same; \
                  setp.eq.u32 %is_it, %t, %lane; vote.sync.ballot.b32 %firsts, %is_it, %there; \
                  match.any.sync.b32 %same, %bank, %there; and.b32 %same, %same, %firsts; popc.b32 %n, %same; ";
    let group = "mov.b32 %t, 1; shl.b32 %t, %t, %width; sub.u32 %t, 32, %t; mov.b32 %of_group, 0xffffffff; \
                 shr.u32 %of_group, %of_group, %t; shl.b32 %t, %group, %width; shl.b32 %of_group, %of_group, %t; \
                 mov.b32 %most, 0; setp.eq.u32 %is_left, %most, 0; ";
    // In the last thread of each group that counts.
    let extra = "sub.u32 %most, %most, 1; and.b32 %t, %counted, %of_group; bfind.u32 %t, %t; setp.eq.u32 %is_it, %t, %lane; \
                 mov.b32 %sum, 0; ";
    format!(
        "{{ .reg .b32 %there, %counted, %shift, %width, %group, %lane, %bank, %same, %firsts, %of_group, %n, %most, %sum, %t; \
         .reg .b64 %unit, %part; .reg .pred %is_it, %is_any, %is_left; \
         activemask.b32 %there; {counted} mov.u32 %lane, %laneid; \
         {units}{firsts}{group}{most}{extra}{sum}cvt.u64.u32 {{d}}, %sum; }}"
    )
}
