//! Places of function probes in the words of libbpf, which attaches programs by the names of their sections.

use crate::elf::Elf;
use crate::resolve::{candidates, glob};
use crate::scope::Scope;
use std::path::Path;
use xputrace_bytecode::object::AttachPlace;

/// Directories in which every libbpf looks for a library that is named without one, on x86-64.
///
/// Source: `resolve_full_path` and `arch_specific_lib_paths` in libbpf.c.
const SEARCHED: &[&str] =
    &["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/lib"];

/// Returns where libbpf attaches a probe of `function` in `object`, both as in a script: the first file that has such
/// functions. Libraries in the system's directories are named without one, so that the place is right on other machines
/// too.
///
/// Returns `None` if no such file is here, or libbpf has no words for the place: a demangled name, several functions of one
/// name, an address.
pub fn place_for_libbpf(object: &str, function: &str) -> Option<AttachPlace> {
    let files = candidates(object, &Scope::Processes(Vec::new()));
    let file = files.iter().map(|it| it.path.as_path()).find(|it| has_place(it, function))?;
    Some(AttachPlace { file: name_for_libbpf(file)?, function: function.to_owned() })
}

/// Whether libbpf finds the function, or functions of this pattern, in a file.
fn has_place(file: &Path, function: &str) -> bool {
    let Ok(elf) = Elf::open(file) else { return false };
    let found = elf.functions(&mut |it| glob(function, it));
    match function.contains('*') {
        true => !found.is_empty(),
        false => found.len() == 1 && !found[0].indirect,
    }
}

fn name_for_libbpf(file: &Path) -> Option<String> {
    let directory = file.parent()?.to_str()?;
    let name = file.file_name()?.to_str()?;
    let is_searched = SEARCHED.contains(&directory) && name.contains(".so");
    Some(if is_searched { name.to_owned() } else { file.to_str()?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_in_the_words_of_libbpf() {
        let place = |object: &str, function: &str| place_for_libbpf(object, function).map(|it| (it.file, it.function));
        assert_eq!(place("libc", "malloc"), Some(("libc.so.6".into(), "malloc".into())));
        assert_eq!(place("libc", "mallo*"), Some(("libc.so.6".into(), "mallo*".into())));
        assert_eq!(
            (place("libc", "mallo"), place("libno-such-library", "f"), place("libc", "nothing*")),
            (None, None, None)
        );
        // An indirect function's code is elsewhere.
        assert_eq!(place("libc", "memcpy"), None);
        let own = std::env::current_exe().unwrap().display().to_string();
        assert_eq!(place(&own, "main"), Some((own.clone(), "main".into())));
    }
}
