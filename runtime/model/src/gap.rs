//! Gaps in a result: while another tool in a traced program had CUPTI.

/// A time in which another tool received CUPTI's records, or tried to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    pub pid: u32,
    pub comm: String,
    /// File name of the library that asked for them.
    pub holder: String,
    /// CLOCK_MONOTONIC nanoseconds.
    pub start: u64,
    pub end: u64,
    /// Successful launches meanwhile, as far as they could be seen.
    pub launches: u64,
    /// Whether these are all.
    pub saw_all: bool,
    /// Whether the tool was refused instead, so that nothing is missing.
    pub was_refused: bool,
}

/// How the names of libraries begin, and the tool in them.
const TOOLS: &[(&str, &str)] = &[
    ("libtorch", "torch.profiler"),
    ("libkineto", "torch.profiler"),
    ("libproton", "Proton"),
    ("xla_cuda_plugin", "JAX's profiler"),
    ("libjax", "JAX's profiler"),
    ("libtensorflow", "TensorFlow's profiler"),
];

impl Gap {
    /// Returns the tool that the library is known to contain.
    pub fn tool(&self) -> Option<&'static str> {
        TOOLS.iter().find(|(library, _)| self.holder.starts_with(library)).map(|it| it.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_libraries_have_a_tool() {
        let tool = |holder: &str| {
            let holder = holder.to_owned();
            let comm = String::new();
            Gap { pid: 1, comm, holder, start: 0, end: 0, launches: 0, saw_all: true, was_refused: false }.tool()
        };
        assert_eq!((tool("libtorch_cpu.so"), tool("libmine.so")), (Some("torch.profiler"), None));
    }
}
