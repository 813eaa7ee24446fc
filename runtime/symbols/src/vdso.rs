//! The vDSO: functions that Linux maps into every process. All 64-bit processes share one image, so
//! the tracer's own copy names the addresses of any of them.

use object::{Object, ObjectSymbol};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use xputrace_wire::maps::MapsLine;

/// The vDSO's functions: offset, size, name, sorted by offset.
#[derive(Debug, Default)]
pub(crate) struct Vdso {
    functions: Vec<(u64, u64, String)>,
}

impl Vdso {
    /// Reads this process's vDSO; without one, finds no function.
    pub(crate) fn read() -> Self {
        let functions = image().and_then(|it| functions(&it)).unwrap_or_default();
        Vdso { functions }
    }

    /// Returns the name and start of the function at `offset` in the mapping.
    pub(crate) fn find(&self, offset: u64) -> Option<(&str, u64)> {
        let after = self.functions.partition_point(|(start, _, _)| *start <= offset);
        let (start, size, name) = self.functions.get(after.checked_sub(1)?)?;
        (offset - start < *size).then_some((name.as_str(), *start))
    }
}

fn image() -> Option<Vec<u8>> {
    let maps = fs::read("/proc/self/maps").ok()?;
    let vdso = maps.split(|it| *it == b'\n').filter_map(MapsLine::parse).find(|it| it.path == b"[vdso]")?;
    let mut bytes = vec![0; usize::try_from(vdso.end - vdso.start).ok()?];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, vdso.start).ok()?;
    Some(bytes)
}

fn functions(image: &[u8]) -> Option<Vec<(u64, u64, String)>> {
    let elf = object::File::parse(image).ok()?;
    let named = elf.dynamic_symbols().filter(|it| it.is_definition() && it.size() > 0);
    let mut all: Vec<_> = named.filter_map(|it| Some((it.address(), it.size(), it.name().ok()?.to_string()))).collect();
    // Of `__vdso_gettimeofday` and its alias `gettimeofday`, keep the longer name, which says more.
    all.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| b.2.len().cmp(&a.2.len())));
    all.dedup_by_key(|it| it.0);
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_where_there_is_a_vdso() {
        let vdso = Vdso::read();
        if let Some((start, size, name)) = vdso.functions.first().cloned() {
            assert_eq!(vdso.find(start + size - 1), Some((name.as_str(), start)));
        }
        assert_eq!(vdso.find(u64::MAX), None);
    }
}
