//! The files that the dynamic loader has mapped (`dl_iterate_phdr`).

use libc::{Elf64_Phdr, PF_R, PF_W, PF_X, PROT_EXEC, PROT_READ, PROT_WRITE, PT_DYNAMIC, PT_GNU_RELRO, PT_LOAD};
use std::ffi::{CStr, c_int, c_void};
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Size of a page on x86-64.
const PAGE: u64 = 4096;

/// A mapped program or library.
#[derive(Clone, Copy, Debug)]
pub struct LoadedFile<'a> {
    /// Empty for the program. A NUL follows.
    pub path: &'a [u8],
    /// What is added to the addresses in its program headers.
    base: u64,
    headers: &'a [Elf64_Phdr],
}

/// How many files the loader has added and removed since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub added: u64,
    pub removed: u64,
}

impl LoadedFile<'_> {
    /// Returns the addresses from its first segment to the end of its last; `None` if it has none.
    pub fn range(&self) -> Option<Range<u64>> {
        let start = self.segments().map(|it| it.start).min()?;
        let end = self.segments().map(|it| it.end).max()?;
        (start < end).then_some(start..end)
    }

    /// Whether an address is in one of its segments.
    pub fn holds(&self, address: u64) -> bool {
        self.segments().any(|it| it.contains(&address))
    }

    /// Returns what is added to the addresses in its headers and symbols.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns the address of its dynamic section.
    pub fn dynamic(&self) -> Option<u64> {
        self.address_of(PT_DYNAMIC)
    }

    /// Returns the addresses that the loader makes read-only after relocation: whole pages, so both
    /// ends are rounded down.
    pub fn relro(&self) -> Option<Range<u64>> {
        let header = self.headers.iter().find(|it| it.p_type == PT_GNU_RELRO)?;
        let end = self.address(header).wrapping_add(header.p_memsz);
        Some(self.address(header) & !(PAGE - 1)..end & !(PAGE - 1))
    }

    /// Iterates over the addresses of its segments and the protection (`PROT_READ` …) that they were mapped with.
    pub fn mapped_segments(&self) -> impl Iterator<Item = (Range<u64>, i32)> {
        let protection = |flags: u32| {
            let bits = [(PF_R, PROT_READ), (PF_W, PROT_WRITE), (PF_X, PROT_EXEC)];
            bits.iter().filter(|it| flags & it.0 != 0).fold(0, |all, it| all | it.1)
        };
        let loads = self.headers.iter().filter(|it| it.p_type == PT_LOAD);
        let range = |it: &Elf64_Phdr| self.address(it)..self.address(it).wrapping_add(it.p_memsz);
        loads.map(move |it| (range(it), protection(it.p_flags)))
    }

    /// Iterates over the addresses of its segments, in the order of its headers.
    pub(crate) fn segments(&self) -> impl Iterator<Item = Range<u64>> {
        self.mapped_segments().map(|it| it.0)
    }

    /// Returns the address of what a header of this type describes.
    pub(crate) fn address_of(&self, kind: u32) -> Option<u64> {
        self.headers.iter().find(|it| it.p_type == kind).map(|it| self.address(it))
    }

    fn address(&self, header: &Elf64_Phdr) -> u64 {
        self.base.wrapping_add(header.p_vaddr)
    }
}

/// Calls `each` for every file, the program first. Holds the loader's lock meanwhile.
pub fn for_each_loaded(mut each: impl FnMut(LoadedFile<'_>)) {
    walk(&mut |file| {
        each(file);
        ControlFlow::Continue(())
    });
}

/// Returns the first answer of `look`, called for one file after another. Holds the loader's lock meanwhile.
pub fn find_loaded<T>(mut look: impl FnMut(LoadedFile<'_>) -> Option<T>) -> Option<T> {
    let mut found = None;
    walk(&mut |file| {
        found = look(file);
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

/// Returns how many files have come and gone.
pub fn loader_changes() -> Changes {
    walk(&mut |_| ControlFlow::Break(()))
}

/// Calls `each` for every file until it breaks or panics.
fn walk(each: &mut dyn FnMut(LoadedFile<'_>) -> ControlFlow<()>) -> Changes {
    let mut walk = Walk { each, changes: Changes::default() };
    // SAFETY: `visit` and its argument live through the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut walk).cast()) };
    walk.changes
}

struct Walk<'a> {
    each: &'a mut dyn FnMut(LoadedFile<'_>) -> ControlFlow<()>,
    changes: Changes,
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, walk: *mut c_void) -> c_int {
    // SAFETY: the loader's entry, and the walk above.
    let (info, walk) = unsafe { (&*info, &mut *walk.cast::<Walk<'_>>()) };
    walk.changes = Changes { added: info.dlpi_adds, removed: info.dlpi_subs };
    // SAFETY: the loader's C string.
    let path = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } }.to_bytes();
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the file's own program headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let file = LoadedFile { path, base: info.dlpi_addr, headers };
    // A panic must not reach the loader.
    match catch_unwind(AssertUnwindSafe(|| (walk.each)(file))) {
        Ok(ControlFlow::Continue(())) => 0,
        Ok(ControlFlow::Break(())) | Err(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_comes_first_and_holds_its_functions() {
        let own = loader_changes as *const () as u64;
        let mut seen = Vec::new();
        for_each_loaded(|it| {
            seen.push((it.path.is_empty(), it.holds(own), it.range().is_some_and(|it| it.contains(&own))));
        });
        assert_eq!(seen[0], (true, true, true));
        assert!(seen.len() > 1 && seen[1..].iter().all(|it| !it.1), "{seen:?}");
        let Changes { added, removed } = loader_changes();
        assert_eq!(added - removed, seen.len() as u64);
    }

    #[test]
    fn an_answer_and_a_panic_end_the_walk() {
        let asked = |look: fn() -> Option<u8>| {
            let mut asked = 0;
            let found = find_loaded(|_| {
                asked += 1;
                look()
            });
            (asked, found)
        };
        assert_eq!(asked(|| Some(7)), (1, Some(7)));
        assert_eq!(asked(|| panic!("of a test")), (1, None));
        assert!(asked(|| None).0 > 1);
    }
}
