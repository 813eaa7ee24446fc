//! Ids of what a plan lists.

xputrace_bytecode::ids! {
    /// A map of the script: its position in [`Plan::tables`](crate::plan::Plan::tables).
    TableId;
    /// A handler: its position in [`Plan::probes`](crate::plan::Plan::probes).
    ProbeId;
    /// An interpreted handler: its position among the interpreter's closures.
    ClosureId;
    /// A switch: its position in [`Plan::switches`](crate::plan::Plan::switches).
    SwitchId;
}
