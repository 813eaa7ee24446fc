//! Older names for newer symbols, so that the library loads where glibc is as old as 2.28.
//!
//! Linked on a newer system, each function gets that system's version of it, such as
//! `pthread_create@GLIBC_2.34`, although glibc still has the old one and it does the same. The
//! build script asks the linker to send calls of these functions, those of the standard library
//! too, to `__wrap_NAME` here, which goes on to the old version. `tests/symbols.rs` looks at the
//! built file; a new name there belongs into both lists.

use core::arch::global_asm;

/// `name` in the version that glibc had it in before it moved into libc proper.
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

/// `stat64(path, buffer)` was `__xstat64(1, path, buffer)`, and so on.
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

// `gettid()` was a plain system call (186).
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
