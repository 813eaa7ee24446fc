//! Modules of kernels that consist of blocks.

use std::fmt::Write as _;

use xputrace_device::PtxBlock;
use xputrace_device::layout::declaration;

/// Sets `{d}` to the thread's number in the launch.
pub(crate) const THREAD_NUMBER: &str = ".reg .b32 %a, %b, %c; mov.u32 %a, %ctaid.x; mov.u32 %b, %ntid.x; \
                                        mov.u32 %c, %tid.x; mad.lo.u32 %a, %a, %b, %c; cvt.u64.u32 {d}, %a;";

fn heading() -> String {
    format!(".version 7.8\n.target sm_90\n.address_size 64\n{}\n", declaration(1))
}

/// Returns a module with a kernel for each block, `k0` and following. A kernel's parameters are the addresses of the
/// context, `%ctx`, and of the word that gets `%result`.
pub(crate) fn of_one_thread(blocks: &[PtxBlock]) -> String {
    let mut text = heading();
    for (at, block) in blocks.iter().enumerate() {
        write!(
            text,
            ".visible .entry k{at}(.param .u64 ctx, .param .u64 out)\n{{\n    .reg .b64 %ctx, %out, %result;\n    \
             ld.param.u64 %ctx, [ctx];\n    cvta.to.global.u64 %ctx, %ctx;\n    ld.param.u64 %out, [out];\n    \
             cvta.to.global.u64 %out, %out;\n{}    st.global.u64 [%out], %result;\n    ret;\n}}\n",
            block.text
        )
        .expect("a string takes it");
    }
    text
}

/// Returns a module with one kernel, `kernel`, without parameters.
pub(crate) fn of_a_crowd(block: &PtxBlock) -> String {
    format!("{}.visible .entry kernel()\n{{\n{}    ret;\n}}\n", heading(), block.text)
}
