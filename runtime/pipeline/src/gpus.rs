//! The GPUs of a process, by the numbers that it knows them by.
//!
//! Two processes may call different GPUs 0 (`CUDA_VISIBLE_DEVICES`); the UUID tells them apart.

use xputrace_model::names::Names;
use xputrace_wire::record::{Gpu, GpuLimits, UNKNOWN};

/// Maximum number per process; the numbers come from the target.
const MOST_GPUS: usize = 64;

/// A GPU; ids are those of the string table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuFacts {
    pub(crate) name: u64,
    pub(crate) uuid: u64,
    pub(crate) sms: u64,
    pub(crate) memory: u64,
    pub(crate) limits: GpuLimits,
}

/// A GPU that some process has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenGpu {
    pub gpu: Gpu,
    pub name: String,
}

/// Maximum number of different ones that are remembered.
pub(crate) const MOST_SEEN: usize = 1024;

/// The GPUs that a collector has told of.
#[derive(Debug, Default)]
pub(crate) struct Gpus {
    known: Vec<(u32, GpuFacts)>,
    /// Whether the collector tells them. Those of older recordings did not.
    are_told: bool,
}

impl Gpus {
    /// Takes a record; returns whether it is of a new GPU. A number keeps its first one.
    pub(crate) fn add(&mut self, (gpu, limits): (&Gpu, GpuLimits), name: &[u8], names: &mut Names) -> bool {
        self.are_told = true;
        if gpu.device == UNKNOWN || self.of(gpu.device).is_some() || self.known.len() >= MOST_GPUS {
            return false;
        }
        let facts = GpuFacts {
            name: names.intern(&xputrace_model::text::from_bytes(name)).into(),
            uuid: names.intern(&gpu.uuid_text(name)).into(),
            sms: gpu.sms.into(),
            memory: gpu.memory,
            limits,
        };
        self.known.push((gpu.device, facts));
        true
    }

    #[inline]
    pub(crate) fn of(&self, device: u32) -> Option<&GpuFacts> {
        self.known.iter().find(|it| it.0 == device).map(|it| &it.1)
    }

    /// Whether this GPU is not known yet and will be.
    #[inline]
    pub(crate) fn awaits(&self, device: u32) -> bool {
        self.are_told && device != UNKNOWN && self.of(device).is_none()
    }

    /// Returns a number that identifies the GPU in all processes; one that is not known by its own number.
    pub(crate) fn identity(&self, device: u32) -> u64 {
        const NOT_KNOWN: u64 = 1 << 63;
        self.of(device).map_or(NOT_KNOWN | u64::from(device), |it| it.uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_bounded_and_a_number_keeps_its_first() {
        let (mut gpus, mut names) = (Gpus::default(), Names::new(&[String::new()]));
        let limits = GpuLimits::default();
        assert!(!gpus.awaits(0), "nothing is told");
        gpus.add((&Gpu { device: UNKNOWN, ..Gpu::default() }, limits), b"", &mut names);
        assert!(gpus.awaits(0) && !gpus.awaits(UNKNOWN));
        for device in 0..1000 {
            gpus.add((&Gpu { device, sms: device + 1, ..Gpu::default() }, limits), b"GPU", &mut names);
            gpus.add((&Gpu { device, sms: 7777, ..Gpu::default() }, limits), b"GPU", &mut names);
        }
        assert_eq!((gpus.known.len(), gpus.of(9).map(|it| it.sms)), (MOST_GPUS, Some(10)));
    }
}
