//! PTX that takes the times of kernels where they enter and exit ([`xputrace_wire::times`]).
//!
//! A kernel begins with the earliest block and ends with the last thread. No thread waits for another: a warp counts its
//! exiting threads together, and whoever counts last writes the record.
//!
//! Few read the timer, since that takes long and the readers of a multiprocessor wait for each other: of the blocks those that see no
//! earlier one, and of the exiting warps those that fill a line.

use xputrace_wire::times::{HEAD, MOST_GROUPS, MOST_RECORDS, RECORDS, group, record};

/// What a patch has of its launch.
pub(crate) struct LaunchAddresses<'a> {
    /// The register with the address where its times go.
    pub(crate) times: &'a str,
    /// The address of the word with the address of the groups for its kind of launches.
    pub(crate) groups: &'a str,
    /// The address of the word that is 1 in a node.
    pub(crate) is_node: &'a str,
}

impl LaunchAddresses<'_> {
    /// PTX that sets `%grid` to the launch's number, and `%group` to the address of its group.
    fn group(&self) -> String {
        format!(
            "    ld.global.nc.u64 %at, [{}];\n    mov.u64 %grid, %gridid;\n    and.b64 %group, %grid, {};\n    \
             mad.lo.u64 %group, %group, {}, %at;\n",
            self.groups,
            MOST_GROUPS - 1,
            group::BYTES
        )
    }

    /// PTX for a thread that enters: the first of its block says when, unless another block has said so: that read the timer before.
    ///
    /// That time has to be there before the thread is counted as it exits. So a fence comes behind it, and the first thread of those
    /// that exit together counts them: of the first warp that is the same one.
    pub(crate) fn entered(&self) -> String {
        let group = self.group();
        format!(
            "{{
    .reg .b32 %x, %y, %there;
    .reg .b64 %grid, %group, %at, %now, %known;
    .reg .pred %is_no;
    activemask.b32 %there;
    mov.u32 %x, %tid.x;
    mov.u32 %y, %tid.y;
    or.b32 %x, %x, %y;
    mov.u32 %y, %tid.z;
    or.b32 %x, %x, %y;
    setp.ne.u32 %is_no, %x, 0;
    @%is_no bra $times_known;
{group}    ld.relaxed.gpu.global.u64 %known, [%group+{START}];
    setp.ne.u64 %is_no, %known, 0;
    @%is_no bra $times_known;
    mov.u64 %now, %globaltimer;
    not.b64 %now, %now;
    red.relaxed.gpu.global.max.u64 [%group+{START}], %now;
    fence.acq_rel.gpu;
$times_known:
    bar.warp.sync %there;
}}
",
            START = group::START
        )
    }

    /// PTX for the threads of a warp that exit together: one counts them. Numbers of blocks and threads have 32 bits: the
    /// collector takes no times of launches with more.
    pub(crate) fn exited(&self) -> String {
        let (group, filled) = (self.group(), self.filled());
        format!(
            "{{
    .reg .b32 %there, %lane, %x, %y, %line, %blocks, %n, %known;
    .reg .b64 %grid, %group, %now, %at, %wide;
    .reg .pred %is_no;
    activemask.b32 %there;
    brev.b32 %x, %there;
    clz.b32 %x, %x;
    mov.u32 %lane, %laneid;
    setp.ne.u32 %is_no, %lane, %x;
    @%is_no bra $times_counted;
{group}    // How many blocks there are, and this one's line.
    mov.u32 %blocks, %nctaid.y;
    mov.u32 %x, %ctaid.z;
    mov.u32 %y, %ctaid.y;
    mad.lo.u32 %line, %x, %blocks, %y;
    mov.u32 %x, %nctaid.x;
    mov.u32 %y, %ctaid.x;
    mad.lo.u32 %line, %line, %x, %y;
    and.b32 %line, %line, {LAST_LINE};
    mul.lo.u32 %blocks, %blocks, %x;
    mov.u32 %x, %nctaid.z;
    mul.lo.u32 %blocks, %blocks, %x;
    // How many threads that line waits for.
    sub.u32 %n, %blocks, %line;
    add.u32 %n, %n, {LAST_LINE};
    shr.u32 %n, %n, {LINES_LOG};
    mov.u32 %x, %ntid.x;
    mul.lo.u32 %n, %n, %x;
    mov.u32 %x, %ntid.y;
    mul.lo.u32 %n, %n, %x;
    mov.u32 %x, %ntid.z;
    mul.lo.u32 %n, %n, %x;
    mul.wide.u32 %at, %line, {LINE_BYTES};
    add.u64 %at, %at, %group;
    popc.b32 %x, %there;
    atom.relaxed.gpu.global.add.u32 %known, [%at+{FIRST_LINE}], %x;
    add.u32 %known, %known, %x;
    setp.ne.u32 %is_no, %known, %n;
    @%is_no bra $times_counted;
{filled}$times_counted:
    bar.warp.sync %there;
}}
",
            LAST_LINE = group::LINES - 1,
            LINES_LOG = group::LINES.ilog2(),
            LINE_BYTES = group::LINE_BYTES,
            FIRST_LINE = group::FIRST_LINE,
        )
    }

    /// PTX for whoever counts a line's last threads: it closes the line, and where that is the group's last one, writes the record.
    fn filled(&self) -> String {
        let (times, is_node) = (self.times, self.is_node);
        format!(
            "    // The line is full.
    mov.u64 %now, %globaltimer;
    st.relaxed.gpu.global.u32 [%at+{FIRST_LINE}], 0;
    red.relaxed.gpu.global.max.u64 [%group+{END}], %now;
    min.u32 %blocks, %blocks, {LINES};
    fence.acq_rel.gpu;
    atom.relaxed.gpu.global.add.u32 %known, [%group+{FILLED}], 1;
    add.u32 %known, %known, 1;
    setp.ne.u32 %is_no, %known, %blocks;
    @%is_no bra $times_counted;
    // So is the group.
    fence.acq_rel.gpu;
    st.relaxed.gpu.global.u32 [%group+{FILLED}], 0;
    atom.relaxed.gpu.global.add.u64 %at, [{times}+{HEAD}], 1;
    add.u64 %now, %at, 1;
    and.b64 %at, %at, {LAST_RECORD};
    mad.lo.u64 %at, %at, {RECORD_BYTES}, {times};
    atom.relaxed.gpu.global.exch.b64 %wide, [%group+{END}], 0;
    st.relaxed.gpu.global.u64 [%at+{RECORD_END}], %wide;
    atom.relaxed.gpu.global.exch.b64 %wide, [%group+{START}], 0;
    not.b64 %wide, %wide;
    st.relaxed.gpu.global.u64 [%at+{RECORD_START}], %wide;
    st.relaxed.gpu.global.u64 [%at+{GRID_ID}], %grid;
    ld.global.nc.u64 %wide, [{is_node}];
    st.relaxed.gpu.global.u64 [%at+{IS_NODE}], %wide;
    fence.acq_rel.gpu;
    st.relaxed.gpu.global.u64 [%at+{MARK}], %now;
",
            LINES = group::LINES,
            FIRST_LINE = group::FIRST_LINE,
            END = group::END,
            START = group::START,
            FILLED = group::FILLED,
            LAST_RECORD = MOST_RECORDS - 1,
            RECORD_BYTES = record::BYTES,
            GRID_ID = RECORDS + record::GRID_ID,
            RECORD_START = RECORDS + record::START,
            RECORD_END = RECORDS + record::END,
            IS_NODE = RECORDS + record::IS_NODE,
            MARK = RECORDS + record::MARK,
        )
    }
}
