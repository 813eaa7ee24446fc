//! Uses older versions of symbols, so that what is built on a newer system runs with glibc 2.28.
//!
//! Linking binds each function to the version of the system that links, such as
//! `pthread_create@GLIBC_2.34`, although glibc still has the old one, which does the same. Here the
//! linker is told to redirect each of [`FUNCTIONS`], also where the standard library and C libraries
//! call it, to a `__wrap_NAME`, which goes on to the old version.
//!
//! A crate that is linked has this as a build dependency:
//!
//! ```ignore
//! // build.rs
//! fn main() {
//!     xputrace_old_glibc::link(Linked::Program("xputrace"));
//! }
//! // main.rs, or lib.rs of a cdylib
//! core::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/old_glibc.s")));
//! ```
//!
//! A test asks `check::newer` (feature `check`) what a linked file needs.
#![forbid(unsafe_code)]

#[cfg(feature = "check")]
pub mod check;

use std::fmt::Write;
use std::path::Path;

/// The newest glibc whose symbols are used: that of Debian 10 and RHEL 8.
pub const OLDEST_GLIBC: (u32, u32) = (2, 28);

/// The file that [`link`] leaves in `OUT_DIR`.
pub const ASSEMBLY: &str = "old_glibc.s";

/// What a crate's build makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linked {
    /// Its cdylib.
    Library,
    /// The program of this name.
    Program(&'static str),
}

/// What goes on in place of a function's newest version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    /// The same function, in this version.
    Version(&'static str),
    /// Another function that does the same, in its first version.
    Named(&'static str),
    /// Another function, in this version. Before its arguments it has the version of `struct stat`: 1, from glibc's
    /// `sysdeps/unix/sysv/linux/x86_64/xstatver.h`.
    Stat(&'static str, &'static str),
    /// A system call without arguments.
    Call(u32),
    /// Nothing. The standard library looks whether there is one (a weak symbol), and does without.
    Absent,
    /// `__libc_start_main` of a program. glibc runs a program's constructors itself from 2.34 on, if it is given no function
    /// that does.
    Start,
}

use Old::{Absent, Call, Named, Start, Stat, Version};

/// The first version for x86-64.
const FIRST_VERSION: &str = "GLIBC_2.2.5";
const FIRST: Old = Version(FIRST_VERSION);

/// Functions whose default version is newer than [`OLDEST_GLIBC`].
pub const FUNCTIONS: &[(&str, Old)] = &[
    ("__isoc23_sscanf", Named("sscanf")),
    ("__isoc23_strtol", Named("strtol")),
    ("__isoc23_strtoll", Named("strtoll")),
    ("__isoc23_strtoul", Named("strtoul")),
    ("__isoc23_strtoull", Named("strtoull")),
    ("__libc_start_main", Start),
    ("dlclose", FIRST),
    ("dlerror", FIRST),
    ("dlopen", FIRST),
    ("dlsym", FIRST),
    ("exp", FIRST),
    ("fstat", Stat("__fxstat", FIRST_VERSION)),
    ("fstat64", Stat("__fxstat64", FIRST_VERSION)),
    ("fstatat64", Stat("__fxstatat64", "GLIBC_2.4")),
    ("gettid", Call(186)),
    ("hypot", FIRST),
    ("log", FIRST),
    ("lstat64", Stat("__lxstat64", FIRST_VERSION)),
    ("posix_spawn_file_actions_addchdir_np", Absent),
    ("pow", FIRST),
    ("pthread_attr_getguardsize", FIRST),
    ("pthread_attr_getstack", FIRST),
    ("pthread_attr_setstacksize", FIRST),
    ("pthread_create", FIRST),
    ("pthread_detach", FIRST),
    ("pthread_getattr_np", FIRST),
    ("pthread_join", FIRST),
    ("pthread_key_create", FIRST),
    ("pthread_key_delete", FIRST),
    ("pthread_setname_np", Version("GLIBC_2.12")),
    ("pthread_setspecific", FIRST),
    ("pthread_sigmask", FIRST),
    ("stat", Stat("__xstat", FIRST_VERSION)),
    ("stat64", Stat("__xstat64", FIRST_VERSION)),
];

/// Makes the linker use the old versions, in a build script. Leaves [`ASSEMBLY`] in `OUT_DIR`.
///
/// # Panics
/// The file cannot be written, or it is no build script that calls this.
pub fn link(what: Linked) {
    let directory = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts");
    let path = Path::new(&directory).join(ASSEMBLY);
    std::fs::write(&path, assembly()).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
    let kind = match what {
        Linked::Library => "cdylib-link-arg".to_owned(),
        Linked::Program(name) => format!("link-arg-bin={name}"),
    };
    let arguments: String = arguments().map(|it| format!("cargo::rustc-{kind}={it}\n")).collect();
    // A build script talks to cargo by its output.
    std::io::Write::write_all(&mut std::io::stdout(), arguments.as_bytes()).expect("cargo reads what it is told");
}

/// Returns the compiler driver's arguments.
pub fn arguments() -> impl Iterator<Item = String> {
    // Before glibc 2.34 some of the functions are in separate libraries.
    let libraries = ["-Wl,--no-as-needed", "-l:libdl.so.2", "-l:libpthread.so.0"].map(str::to_owned);
    FUNCTIONS.iter().map(|(name, _)| format!("-Wl,--wrap={name}")).chain(libraries)
}

/// Returns the wrappers of all functions as assembly in Intel's syntax. Each has a section of its own, so that the linker
/// drops those that nothing calls, and with them what they call.
pub fn assembly() -> String {
    let mut text = String::new();
    for (name, old) in FUNCTIONS {
        wrapper(&mut text, name, *old);
    }
    text
}

fn wrapper(text: &mut String, name: &str, old: Old) {
    let wrap = format!("__wrap_{name}");
    let lines = match old {
        Absent => vec![format!(".hidden {wrap}"), format!(".globl {wrap}"), format!(".set {wrap}, 0")],
        Version(version) => function(&wrap, &[&alias(name, name, version), &go_on(name)]),
        Named(other) => function(&wrap, &[&alias(name, other, FIRST_VERSION), &go_on(name)]),
        Stat(other, version) => function(&wrap, &[&alias(name, other, version), STAT_ARGUMENTS, &go_on(name)]),
        Call(number) => function(&wrap, &[&format!("mov eax, {number}"), "syscall", "ret"]),
        Start => function(&wrap, &[&alias(name, name, FIRST_VERSION), INITIALIZER, &go_on(name)])
            .into_iter()
            .chain(function("__old_glibc_initializers", &[RUN_INITIALIZERS]))
            .collect(),
    };
    for line in lines {
        let _ = writeln!(text, "{line}");
    }
}

/// Returns a function of this name, in a section of its own.
fn function(name: &str, code: &[&str]) -> Vec<String> {
    let head = [
        format!(".pushsection .text.{name},\"ax\",@progbits"),
        format!(".hidden {name}"),
        format!(".globl {name}"),
        format!(".type {name},@function"),
        format!("{name}:"),
    ];
    let body = code.iter().map(|it| it.to_string());
    head.into_iter().chain(body).chain([format!(".size {name}, . - {name}"), ".popsection".into()]).collect()
}

/// Returns what gives `__old_NAME` the meaning of `other` in `version`.
fn alias(name: &str, other: &str, version: &str) -> String {
    format!(".symver __old_{name},{other}@{version}")
}

/// Returns a jump to the old version, with the arguments that are there.
fn go_on(name: &str) -> String {
    format!("jmp qword ptr [rip + __old_{name}@GOTPCREL]")
}

/// Makes room for an argument before the first. A fifth one is moved along though only `fstatat` has a fourth.
const STAT_ARGUMENTS: &str = "mov r8, rcx\nmov rcx, rdx\nmov rdx, rsi\nmov rsi, rdi\nmov edi, 1";

/// Fills in the fourth argument of `__libc_start_main`: what runs before `main`.
const INITIALIZER: &str = "lea rcx, [rip + __old_glibc_initializers]";

/// Runs the constructors with (argc, argv, environ), as programs do that were linked with glibc 2.28
/// (`csu/elf-init.c`, `__libc_csu_init`).
const RUN_INITIALIZERS: &str = "\
push rbx
push rbp
push r12
push r13
push r14
mov r12d, edi
mov r13, rsi
mov r14, rdx
call _init
.hidden __init_array_start
.hidden __init_array_end
lea rbx, [rip + __init_array_start]
lea rbp, [rip + __init_array_end]
2:
cmp rbx, rbp
jae 3f
mov edi, r12d
mov rsi, r13
mov rdx, r14
call qword ptr [rbx]
add rbx, 8
jmp 2b
3:
pop r14
pop r13
pop r12
pop rbp
pop rbx
ret";
