//! Uses older versions of symbols, so that the library loads with glibc 2.28.
//!
//! Linking on a newer system binds each function to that system's version, such as
//! `pthread_create@GLIBC_2.34`, although glibc still has the old one, which does the same. The
//! build script makes the linker redirect these functions, including the standard library's calls,
//! to `__wrap_NAME` here, which calls the old version. `tests/symbols.rs` checks the built file; a
//! new function must be added to both lists.

use core::arch::global_asm;

/// Defines a wrapper for `name` in the version from before glibc moved it into libc proper.
macro_rules! old_version {
    ($($name:literal = $version:literal;)*) => {
        $(global_asm!(
            concat!(".hidden __wrap_", $name),
            concat!(".globl __wrap_", $name),
            concat!(".type __wrap_", $name, ",@function"),
            concat!(".symver __old_", $name, ",", $name, "@", $version),
            concat!("__wrap_", $name, ":"),
            concat!("jmp qword ptr [rip + __old_", $name, "@GOTPCREL]"),
            concat!(".size __wrap_", $name, ", . - __wrap_", $name),
        );)*
    };
}

old_version! {
    "dlerror" = "GLIBC_2.2.5";
    "dlopen" = "GLIBC_2.2.5";
    "dlsym" = "GLIBC_2.2.5";
    "pthread_attr_getguardsize" = "GLIBC_2.2.5";
    "pthread_attr_getstack" = "GLIBC_2.2.5";
    "pthread_attr_setstacksize" = "GLIBC_2.2.5";
    "pthread_create" = "GLIBC_2.2.5";
    "pthread_detach" = "GLIBC_2.2.5";
    "pthread_getattr_np" = "GLIBC_2.2.5";
    "pthread_key_create" = "GLIBC_2.2.5";
    "pthread_key_delete" = "GLIBC_2.2.5";
    "pthread_setname_np" = "GLIBC_2.12";
    "pthread_setspecific" = "GLIBC_2.2.5";
    "pthread_sigmask" = "GLIBC_2.2.5";
}

/// `stat64(path, buffer)` used to be `__xstat64(1, path, buffer)`, and so on.
macro_rules! old_stat {
    ($($name:literal = $old:literal;)*) => {
        $(global_asm!(
            concat!(".hidden __wrap_", $name),
            concat!(".globl __wrap_", $name),
            concat!(".type __wrap_", $name, ",@function"),
            concat!(".symver __old_", $name, ",", $old, "@GLIBC_2.2.5"),
            concat!("__wrap_", $name, ":"),
            "mov rdx, rsi",
            "mov rsi, rdi",
            "mov edi, 1",
            concat!("jmp qword ptr [rip + __old_", $name, "@GOTPCREL]"),
            concat!(".size __wrap_", $name, ", . - __wrap_", $name),
        );)*
    };
}

old_stat! {
    "fstat64" = "__fxstat64";
    "stat64" = "__xstat64";
}

// `gettid()` used to be a plain system call (186).
global_asm!(
    ".hidden __wrap_gettid",
    ".globl __wrap_gettid",
    ".type __wrap_gettid,@function",
    "__wrap_gettid:",
    "mov eax, 186",
    "syscall",
    "ret",
    ".size __wrap_gettid, . - __wrap_gettid",
);
