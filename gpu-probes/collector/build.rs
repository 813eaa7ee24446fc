//! Links the injected library: never unloaded, and with symbol versions of an old glibc
//! (`src/compat.rs`).

/// Functions whose default version is newer than glibc 2.28.
const WRAPPED: &[&str] = &[
    "dlerror",
    "dlopen",
    "dlsym",
    "fstat64",
    "gettid",
    "pthread_attr_getguardsize",
    "pthread_attr_getstack",
    "pthread_attr_setstacksize",
    "pthread_create",
    "pthread_detach",
    "pthread_getattr_np",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_setname_np",
    "pthread_setspecific",
    "pthread_sigmask",
    "stat64",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let link = |argument: &str| println!("cargo::rustc-cdylib-link-arg={argument}");
    link("-Wl,-z,nodelete");
    for name in WRAPPED {
        link(&format!("-Wl,--wrap={name}"));
    }
    // Before glibc 2.34 these functions are in separate libraries.
    link("-Wl,--no-as-needed");
    link("-l:libdl.so.2");
    link("-l:libpthread.so.0");
}
