//! The built binary, run live: CPU probes on small C programs, GPU hooks on the software GPU.
//!
//! What the numbers must be, the traced programs say themselves. Where a rule is tested, the
//! same run without it is shown to give another answer, if it can be switched off.

mod command_line;
mod harm;
mod programs;
mod recordings;
mod release;
mod rules_cpu;
mod rules_gpu;
mod scripts;
mod sudo;
