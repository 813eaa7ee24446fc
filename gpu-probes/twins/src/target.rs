//! What PTX is to be compiled for.

use xputrace_device::{LEAST_ARCHITECTURE, LEAST_PTX_VERSION};
use xputrace_ptx::Module;

/// What a module is to be compiled for.
pub(crate) struct CompileTarget {
    /// As it says: `sm_90a`.
    pub(crate) text: String,
    /// Its number; 0 if there is none.
    pub(crate) architecture: u32,
    version: (u32, u32),
}

impl CompileTarget {
    pub(crate) fn of(module: &Module) -> Self {
        let said = |name| module.directives(name).next().map_or("", |it| it.arguments.as_str());
        let text = said(".target").split([',', ' ']).find(|it| it.starts_with("sm_")).unwrap_or_default();
        let number =
            |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
        let (major, minor) = said(".version").split_once('.').unwrap_or_default();
        CompileTarget {
            text: text.to_owned(),
            architecture: number(text.trim_start_matches("sm_")),
            version: (number(major), number(minor)),
        }
    }

    /// Whether handlers can be compiled for it.
    pub(crate) fn is_enough(&self) -> bool {
        self.architecture >= LEAST_ARCHITECTURE && self.version >= LEAST_PTX_VERSION
    }
}

/// Returns what PTX for GPUs of this compute capability begins with, and its target.
pub(crate) fn heading(capability: u32) -> (String, String) {
    let target = format!("sm_{capability}");
    // The first PTX that knows such GPUs ("PTX ISA", release notes), as far as a ptxas of CUDA 12 is concerned.
    let version = if capability <= 90 { "8.0" } else { "8.8" };
    (format!(".version {version}\n.target {target}\n.address_size 64\n"), target)
}
