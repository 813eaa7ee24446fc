//! Which ways lead into a kernel, and which kernels a file has.

use std::collections::{BTreeMap, BTreeSet};
use xputrace_wire::nvidia::fatbin::{FatbinContents as Image, GpuTarget};
use xputrace_wire::stored::StoredAt;

/// Which ways lead into a kernel, by the files that have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ways {
    /// GPUs of which it has machine code with the PTX that was made of.
    pub(super) twins: BTreeSet<GpuTarget>,
    /// GPUs of which it has machine code without.
    pub(super) machine_code: BTreeSet<GpuTarget>,
    /// PTX without machine code of the same: the driver compiles it for GPUs that have none.
    pub(super) ptx: BTreeSet<GpuTarget>,
}

/// The kernels of a file, by symbol.
pub type Kernels = BTreeMap<String, Ways>;

impl Ways {
    pub(super) fn of(image: &Image) -> Self {
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

    pub(super) fn add(&mut self, other: &Ways) {
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
        let newest = |code: &BTreeSet<GpuTarget>| {
            code.iter().filter(|it| it.runs_on(capability)).map(|it| it.preference()).max()
        };
        match (newest(&self.twins), newest(&self.machine_code)) {
            // The driver compiles PTX.
            (None, None) => self.twins.iter().chain(&self.ptx).any(|it| it.compiles_for(capability)),
            (with_ptx, without) => with_ptx >= without,
        }
    }

    /// Says it in a few words.
    pub fn text(&self) -> String {
        let list = |it: &BTreeSet<GpuTarget>| it.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match (self.twins.is_empty(), self.machine_code.is_empty(), self.ptx.is_empty()) {
            (false, true, _) => "twin, patch".into(),
            (false, false, _) => format!("twin on {}, patch", list(&self.twins)),
            (true, true, _) => format!("twin (the driver compiles PTX for {}), patch", list(&self.ptx)),
            (true, false, false) => format!("patch; a twin where there is no code but PTX for {}", list(&self.ptx)),
            (true, false, true) => "patch: no PTX".into(),
        }
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
}
