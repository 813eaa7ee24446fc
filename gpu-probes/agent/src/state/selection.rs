//! The GPUs whose launches are recorded, where not all are.

use crate::library::{Context, Library};
use std::hint::cold_path;
use std::sync::OnceLock;
use xputrace_wire::record::{Gpu, GpuLimits, UNKNOWN};

/// A choice of GPUs.
#[derive(Debug, Default)]
pub struct Selection {
    /// As the user calls them; empty for all.
    words: Vec<String>,
    /// Their numbers in this process, once the backend knows them.
    numbers: OnceLock<Vec<u32>>,
}

impl Selection {
    /// Reads a list as in `message::ARM`.
    pub fn of(list: &str) -> Self {
        let words = list.split(',').filter(|it| !it.is_empty()).map(str::to_owned).collect();
        Selection { words, numbers: OnceLock::new() }
    }

    /// Whether launches on this GPU are recorded. The first call of a process asks the backend.
    pub(crate) fn contains(&self, device: u32, library: &dyn Library) -> bool {
        if self.words.is_empty() {
            return true;
        }
        if let Some(numbers) = self.numbers.get() {
            return numbers.contains(&device);
        }
        let mut numbers = Vec::new();
        let mut note = |gpu: &Gpu, _: &GpuLimits, name: &[u8]| {
            if self.words.iter().any(|it| gpu.is_called(name, it)) {
                numbers.push(gpu.device);
            }
        };
        match library.each_gpu(&mut note) {
            true => self.numbers.get_or_init(|| numbers).contains(&device),
            false => false,
        }
    }
}

/// The context that a thread used last, about which the backend was asked once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastContext {
    id: u32,
    /// [`UNKNOWN`] if the backend does not tell.
    pub(crate) device: u32,
    /// Whether what is done there is recorded.
    pub(crate) is_selected: bool,
}

impl LastContext {
    pub(crate) const NONE: LastContext = LastContext { id: UNKNOWN, device: UNKNOWN, is_selected: true };

    #[inline]
    pub(crate) fn set(&mut self, library: &dyn Library, selection: &Selection, context: Context) -> LastContext {
        if self.id != context.id {
            cold_path();
            let device = library.device_of(context).unwrap_or(UNKNOWN);
            let is_selected = selection.contains(device, library);
            *self = LastContext { id: context.id, device, is_selected };
        }
        *self
    }
}
