//! The release binary is one file. It needs only libc6 (2.28 or later) and libgcc-s1, and works with nothing else.

use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Endianness, elf};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use xputrace_old_glibc::check;
use xputrace_tests::{Trace, need_root, xputrace};

/// The needed libraries that libc6 and libgcc-s1 provide; everything else must be in the binary.
const PROVIDED: &[&str] = &[
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libresolv.so.2",
    "libutil.so.1",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// Returns the libraries that an ELF file lists as needed.
fn needed(file: &Path) -> Vec<String> {
    let bytes = std::fs::read(file).unwrap();
    let elf = ElfFile64::<Endianness>::parse(&*bytes).unwrap();
    let endian = elf.endian();
    let sections = elf.elf_header().sections(endian, &*bytes).unwrap();
    let (entries, strings) = sections.dynamic(endian, &*bytes).unwrap().expect("a dynamic section");
    let strings = sections.strings(endian, &*bytes, strings).unwrap();
    let needed = entries.iter().filter(|it| it.tag(endian) == elf::DT_NEEDED);
    needed.map(|it| String::from_utf8_lossy(it.string(endian, strings).unwrap()).into_owned()).collect()
}

#[test]
fn the_binary_needs_libc_and_libgcc_alone() {
    let libraries = needed(xputrace());
    assert!(!libraries.is_empty());
    let foreign: Vec<&String> = libraries.iter().filter(|it| !PROVIDED.contains(&it.as_str())).collect();
    assert!(foreign.is_empty(), "{foreign:?} of {libraries:?}");
}

/// Returns the ELF files in a file: itself, and those that it carries.
fn images(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    const MAGIC: &[u8] = b"\x7fELF\x02\x01\x01";
    let starts = bytes.windows(MAGIC.len()).enumerate().filter(|(_, it)| *it == MAGIC);
    starts.map(|(at, _)| &bytes[at..])
}

#[test]
fn the_binary_and_what_it_carries_run_with_an_old_glibc() {
    let bytes = std::fs::read(xputrace()).unwrap();
    // The magic alone may also be a constant of the code.
    let needs: Vec<_> = images(&bytes).filter_map(|it| check::needs(it).ok()).filter(|it| it.symbols > 0).collect();
    assert!(needs.len() >= 4, "the binary, the collector, the software GPU and its program: {needs:?}");
    for it in needs {
        assert_eq!(it.newer, <[&str; 0]>::default());
    }
}

/// A root directory with the binary, its needed libraries and a recording.
struct Cell(tempfile::TempDir);

impl Cell {
    fn new(recording: &Path) -> Self {
        let cell = Cell(tempfile::tempdir().unwrap());
        cell.take(xputrace(), "xputrace");
        cell.take(recording, "t.xpt");
        let shown = Command::new("ldd").arg(xputrace()).output().expect("ldd");
        for path in String::from_utf8_lossy(&shown.stdout).split_whitespace().filter(|it| it.starts_with('/')) {
            let name = Path::new(path).file_name().unwrap().to_string_lossy().into_owned();
            assert!(PROVIDED.contains(&name.as_str()), "{name}");
            cell.take(Path::new(path), &path[1..]);
        }
        cell
    }

    fn take(&self, from: &Path, to: &str) {
        let to = self.0.path().join(to);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(std::fs::canonicalize(from).unwrap(), to).unwrap();
    }

    fn run(&self, words: &[&str]) -> Output {
        use std::os::unix::process::CommandExt;
        let root: PathBuf = self.0.path().into();
        let path = std::ffi::CString::new(root.to_string_lossy().into_owned()).unwrap();
        let mut command = Command::new("/xputrace");
        command.args(words).env_clear();
        // SAFETY: between fork and exec only these two system calls are made, with memory prepared
        // before.
        unsafe {
            command.pre_exec(move || {
                let entered = libc::chroot(path.as_ptr()) == 0 && libc::chdir(c"/".as_ptr()) == 0;
                if entered { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        command.output().unwrap()
    }
}

#[test]
fn the_binary_works_in_a_root_of_its_own() {
    need_root!();
    let recorded = Trace::new(["record", "-o", "t.xpt"]).text().on_workload("server", &["--requests=10"]).run().well();
    let cell = Cell::new(&recorded.path("t.xpt"));
    let answer = |words: &[&str], status: i32| {
        let done = cell.run(words);
        let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert_eq!(done.status.code(), Some(status), "{words:?}: {text}");
        text
    };
    assert!(answer(&["scripts"], 0).contains("launchlat"));
    assert_eq!(answer(&["check", "-e", "kernel(|k| @t[k.name].sum(k.duration))"], 0), "");
    assert!(answer(&["check", "-e", "kernel(|k| @t[k.nam].sum(k.duration))"], 2).contains("`name`"));
    for script in ["summary", "flame", "launchlat"] {
        assert!(answer(&["-q", script, "--replay", "t.xpt"], 0).contains("launches 40 = joined 40"), "{script}");
    }
    assert!(answer(&["explain", "summary"], 0).contains("tracer"));
    assert!(answer(&["build", "-o", "x.bpf.o", "summary"], 0).contains("program"));
    assert!(answer(&["--version"], 0).contains("xputrace"));
}
