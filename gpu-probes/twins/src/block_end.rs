//! The end of a block: that of its last thread.
//!
//! Each thread that ends adds itself to a word in the block's shared memory, and the one that makes it the number of the block's
//! threads runs the handlers. Nobody waits: kernels whose warps do different things may not meet at a barrier.
//!
//! Nothing says what shared memory has at first. So the word has a tag of its own for each block of each launch, in the bits
//! above the count: with another tag, the count is 0. The last thread makes the word 0, since a node of a graph has the same
//! `%gridid` at all its launches.

use xputrace_device::layout::HASH_MULTIPLIER;

/// Declares the word. It takes as much as the strictest alignment that code asks of dynamic shared memory, which lies behind it
/// (PTX ISA, "cp.async.bulk.tensor": 1024 bytes for the 128-byte swizzle): that begins as it did.
pub(crate) const DECLARATION: &str = ".shared .align 1024 .b8 xpt_ended[1024];";

/// Bits of the count: a block has 1024 threads at most.
const COUNT_BITS: u32 = 11;

/// Returns statements that run others in the last thread of a block, at a place where threads end.
pub(crate) fn in_last_thread(statements: &str) -> String {
    let (tag_mask, count_mask) = (u64::MAX << COUNT_BITS, (1u64 << COUNT_BITS) - 1);
    format!(
        "{{
    .reg .b32 %there, %leader, %n, %m;
    .reg .b64 %tag, %part, %old, %seen, %count, %all;
    .reg .pred %is_it;
    activemask.b32 %there;
    bfind.u32 %leader, %there;
    mov.u32 %n, %laneid;
    setp.ne.u32 %is_it, %leader, %n;
    @%is_it bra $xpt_not_last;
    mov.u64 %tag, %gridid;
{parts}    shr.u64 %part, %tag, 32;
    xor.b64 %tag, %tag, %part;
    mul.lo.u64 %tag, %tag, {HASH_MULTIPLIER};
    and.b64 %tag, %tag, {tag_mask};
    mov.u32 %n, %ntid.x;
    mov.u32 %m, %ntid.y;
    mul.lo.u32 %n, %n, %m;
    mov.u32 %m, %ntid.z;
    mul.lo.u32 %n, %n, %m;
    cvt.u64.u32 %all, %n;
    popc.b32 %n, %there;
    ld.volatile.shared.u64 %old, [xpt_ended];
$xpt_again:
    and.b64 %part, %old, {tag_mask};
    setp.eq.u64 %is_it, %part, %tag;
    and.b64 %count, %old, {count_mask};
    selp.b64 %count, %count, 0, %is_it;
    cvt.u64.u32 %part, %n;
    add.u64 %count, %count, %part;
    or.b64 %part, %tag, %count;
    setp.eq.u64 %is_it, %count, %all;
    selp.b64 %part, 0, %part, %is_it;
    atom.shared.cas.b64 %seen, [xpt_ended], %old, %part;
    setp.ne.u64 %is_it, %seen, %old;
    mov.b64 %old, %seen;
    @%is_it bra $xpt_again;
    setp.ne.u64 %is_it, %count, %all;
    @%is_it bra $xpt_not_last;
{statements}$xpt_not_last:
    bar.warp.sync %there;
}}
",
        parts = ["x", "y", "z"].map(place_of_block).concat(),
    )
}

/// Mixes a coordinate of the block into `%tag`.
fn place_of_block(axis: &str) -> String {
    format!(
        "    mov.u32 %n, %ctaid.{axis};\n    cvt.u64.u32 %part, %n;\n    mad.lo.u64 %tag, %tag, {HASH_MULTIPLIER}, %part;\n"
    )
}
