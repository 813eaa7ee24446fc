//! The kernels in the files of a program, and which ways lead into them.

mod found;
pub mod gpus;
mod kept;

pub use found::{Found, found_in};
pub use kept::{FORM, of_text, to_text};

use crate::console;
use crate::drivers::is_software_gpu_name;
use crate::twins::files::SEARCHED_WITHIN;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use xputrace_boundary::read::{Links, open_below, open_directory};
use xputrace_model::plan::KernelPattern;
use xputrace_symbols::demangle;
use xputrace_wire::fatbin::{Found as Image, StoredAt, Target};

/// Which ways lead into a kernel, by the files that have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ways {
    /// GPUs of which it has machine code with the PTX that was made of.
    twins: BTreeSet<Target>,
    /// GPUs of which it has machine code without.
    machine_code: BTreeSet<Target>,
    /// PTX without machine code of the same: the driver compiles it for GPUs that have none.
    ptx: BTreeSet<Target>,
}

/// The kernels of a file, by symbol.
pub type Kernels = BTreeMap<String, Ways>;

/// What a process has mapped that has code for GPUs.
#[derive(Debug, Default)]
pub struct Mapped {
    pub files: BTreeMap<PathBuf, Kernels>,
    pub has_software_gpu: bool,
}

/// Searches files of a process.
pub fn search(pid: u32, paths: &BTreeSet<PathBuf>) -> Mapped {
    let mut mapped = Mapped::default();
    for path in paths {
        mapped.has_software_gpu |= path.file_name().is_some_and(|it| is_software_gpu_name(it.as_bytes()));
        let file =
            open_directory(Path::new(&format!("/proc/{pid}/root"))).and_then(|it| open_below(&it, path, Links::InRoot));
        if let Some(kernels) = file.ok().map(|it| kernels_in(&it, path)).filter(|it| !it.is_empty()) {
            mapped.files.insert(path.clone(), kernels);
        }
    }
    mapped
}

/// Returns the kernels of a program or library; says so if that takes too long for all of them.
pub fn kernels_in(file: &File, path: &Path) -> Kernels {
    let began = Instant::now();
    let Found { kernels, is_cut } = found_in(file, gpus::capability(), &|| began.elapsed() < SEARCHED_WITHIN);
    if is_cut {
        let seconds = SEARCHED_WITHIN.as_secs();
        console::say(format_args!(
            "{} was searched for {seconds} s only: some of its kernels are not listed",
            path.display()
        ));
    }
    kernels
}

impl Ways {
    fn of(image: &Image) -> Self {
        let of_these = |these: &[StoredAt], has_others: bool, others: &[StoredAt]| {
            let is_it = |it: &&StoredAt| others.iter().any(|other| it.is_of_same(other)) == has_others;
            these.iter().filter(is_it).map(StoredAt::target).collect()
        };
        Ways {
            twins: of_these(&image.cubins, true, &image.ptx),
            machine_code: of_these(&image.cubins, false, &image.ptx),
            ptx: of_these(&image.ptx, false, &image.cubins),
        }
    }

    fn add(&mut self, other: &Ways) {
        self.twins.extend(&other.twins);
        self.machine_code.extend(&other.machine_code);
        self.ptx.extend(&other.ptx);
    }

    /// Whether it can have a twin, on some GPU at least.
    fn has_twin(&self) -> bool {
        !self.twins.is_empty() || self.machine_code.is_empty()
    }

    /// Whether it can have a twin on GPUs of this compute capability; on some GPU at least, if that is not known.
    pub fn has_twin_on(&self, capability: Option<u32>) -> bool {
        let Some(capability) = capability else { return self.has_twin() };
        let newest =
            |code: &BTreeSet<Target>| code.iter().filter(|it| it.runs_on(capability)).map(|it| it.preference()).max();
        match (newest(&self.twins), newest(&self.machine_code)) {
            // The driver compiles PTX.
            (None, None) => self.twins.iter().chain(&self.ptx).any(|it| it.compiles_for(capability)),
            (with_ptx, without) => with_ptx >= without,
        }
    }

    /// Says it in a few words.
    pub fn text(&self) -> String {
        let list = |it: &BTreeSet<Target>| it.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match (self.twins.is_empty(), self.machine_code.is_empty(), self.ptx.is_empty()) {
            (false, true, _) => "twin, patch".into(),
            (false, false, _) => format!("twin on {}, patch", list(&self.twins)),
            (true, true, _) => format!("twin (the driver compiles PTX for {}), patch", list(&self.ptx)),
            (true, false, false) => format!("patch; a twin where there is no code but PTX for {}", list(&self.ptx)),
            (true, false, true) => "patch: no PTX".into(),
        }
    }
}

/// Whether a kernel matches a pattern.
pub fn matches(pattern: &KernelPattern, symbol: &str) -> bool {
    // Libraries have so many kernels that demangling them takes long.
    pattern.matches([symbol]) || {
        let demangled = demangle(symbol);
        pattern.matches([&*demangled.name, &*demangled.short_name])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_wire::device::{Codec, Portability};

    fn code(sm: u32, portability: Portability) -> StoredAt {
        StoredAt { codec: Codec::Plain, portability, sm, bytes: 8, address: 0, stored_bytes: 8 }
    }

    fn ways(ptx: &[u32], cubins: &[u32]) -> Ways {
        let all = |of: &[u32]| of.iter().map(|it| code(*it, Portability::Later)).collect();
        Ways::of(&Image { ptx: all(ptx), cubins: all(cubins), bytes: 0 })
    }

    #[test]
    fn a_way_follows_from_what_there_is_ptx_of() {
        for (ptx, cubins, text) in [
            (&[90][..], &[90][..], "twin, patch"),
            (&[80], &[80, 90], "twin on sm_80, patch"),
            (&[75, 90], &[], "twin (the driver compiles PTX for sm_75, sm_90), patch"),
            (&[80], &[90], "patch; a twin where there is no code but PTX for sm_80"),
            (&[], &[80, 90], "patch: no PTX"),
        ] {
            assert_eq!(ways(ptx, cubins).text(), text);
            assert_eq!(ways(ptx, cubins).has_twin(), text.starts_with("twin"), "{text}");
        }
        let targets = [Portability::Later, Portability::Exact, Portability::Family];
        let targets = targets.map(|it| code(100, it).target().to_string());
        assert_eq!(targets, ["sm_100", "sm_100a", "sm_100f"]);
    }

    #[test]
    fn a_twin_needs_the_ptx_of_what_the_gpu_runs() {
        for (ptx, cubins, on, has_twin) in [
            (&[90][..], &[90][..], 90, true),
            (&[80], &[80, 90], 90, false),
            (&[80], &[80, 90], 80, true),
            (&[80], &[80, 90], 89, true),
            (&[80], &[80, 90], 100, true),
            (&[90], &[90], 80, false),
            (&[], &[90], 90, false),
        ] {
            assert_eq!(ways(ptx, cubins).has_twin_on(Some(on)), has_twin, "{ptx:?} {cubins:?} on {on}");
        }
    }

    #[test]
    fn a_kernel_of_several_images_has_the_ways_of_all() {
        let mut all = ways(&[90], &[90]);
        all.add(&ways(&[], &[80]));
        assert_eq!(all.text(), "twin on sm_90, patch");
    }

    #[test]
    fn kernels_match_by_any_of_their_names() {
        let symbol = "_Z9vectorAddIfEvPKT_S2_PS0_i";
        let matches = |pattern: &str| matches(&KernelPattern::new(pattern), symbol);
        assert!(matches("vectorAdd") && matches("vectorAdd<float>") && matches("_Z9*") && !matches("vector"));
    }
}
