//! What kind of GPU numbers come from.

/// Whether the numbers come from a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuKind {
    /// No process was armed.
    #[default]
    None,
    Real,
    /// The software GPU, whose times are meaningless.
    Software,
}
