//! Links C programs with the wrappers, and runs them.

use std::path::Path;
use std::process::Command;
use xputrace_old_glibc::{ASSEMBLY, FUNCTIONS, Old, arguments, assembly, check};

/// Every function by its newest name. Its constructors run before `main`, once each, with the program's arguments.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#define EXPECT(what) do { if (!(what)) { printf("not so: %s\n", #what); return 1; } } while (0)

long newer_strtol(const char *, char **, int) __asm__("__isoc23_strtol");
long long newer_strtoll(const char *, char **, int) __asm__("__isoc23_strtoll");
unsigned long newer_strtoul(const char *, char **, int) __asm__("__isoc23_strtoul");
unsigned long long newer_strtoull(const char *, char **, int) __asm__("__isoc23_strtoull");
int newer_sscanf(const char *, const char *, ...) __asm__("__isoc23_sscanf");
int stat64(const char *, struct stat64 *), fstat64(int, struct stat64 *), lstat64(const char *, struct stat64 *);
int fstatat64(int, const char *, struct stat64 *, int);
extern int add_chdir(posix_spawn_file_actions_t *, const char *) __attribute__((weak));
extern int add_chdir(posix_spawn_file_actions_t *, const char *) __asm__("posix_spawn_file_actions_addchdir_np");

static int constructed, arguments_seen;
__attribute__((constructor)) static void construct(int count, char **words, char **environment) {
  constructed++;
  arguments_seen = count == 2 && words[1][0] == 'x' && environment == environ;
}
static void *thread(void *it) { return it; }
static volatile double two = 2;

int main(void) {
  struct stat a; struct stat64 b; pthread_t id; pthread_attr_t attributes; pthread_key_t key; void *got; size_t size;
  EXPECT(constructed == 1 && arguments_seen);
  EXPECT(newer_strtol("12", 0, 10) == 12 && newer_strtoll("-12", 0, 10) == -12);
  EXPECT(newer_strtoul("0x1f", 0, 0) == 31 && newer_strtoull("7", 0, 10) == 7);
  int number = 0;
  EXPECT(newer_sscanf("n 42", "n %d", &number) == 1 && number == 42);
  EXPECT(!stat("/", &a) && S_ISDIR(a.st_mode) && !fstat(0, &a));
  EXPECT(!stat64("/", &b) && S_ISDIR(b.st_mode) && !fstat64(0, &b) && !lstat64("/proc/self", &b) && S_ISLNK(b.st_mode));
  EXPECT(!fstatat64(AT_FDCWD, "/proc/self", &b, AT_SYMLINK_NOFOLLOW) && S_ISLNK(b.st_mode));
  EXPECT(!fstatat64(AT_FDCWD, "/proc/self", &b, 0) && S_ISDIR(b.st_mode));
  EXPECT(gettid() == getpid());
  EXPECT(exp(two) > 7.38 && log(two) > 0.69 && pow(two, 10) == 1024 && hypot(two + 1, two + 2) == 5);
  void *own = dlopen(0, RTLD_NOW);
  EXPECT(own && dlsym(own, "main_is_not_exported") == 0 && dlerror() && !dlclose(own));
  EXPECT(!pthread_attr_init(&attributes) && !pthread_attr_setstacksize(&attributes, 1 << 20));
  EXPECT(!pthread_attr_getguardsize(&attributes, &size));
  EXPECT(!pthread_create(&id, &attributes, thread, &two) && !pthread_join(id, &got) && got == &two);
  EXPECT(!pthread_create(&id, 0, thread, 0) && !pthread_detach(id));
  EXPECT(!pthread_setname_np(pthread_self(), "named") && !pthread_getattr_np(pthread_self(), &attributes));
  EXPECT(!pthread_attr_getstack(&attributes, &got, &size));
  EXPECT(!pthread_key_create(&key, 0) && !pthread_setspecific(key, &two) && !pthread_key_delete(key));
  EXPECT(!pthread_sigmask(SIG_BLOCK, 0, 0));
  EXPECT(!add_chdir);
  return 0;
}
"#;

/// Returns the linked program; `None` without a C compiler.
fn linked(directory: &Path) -> Option<Vec<u8>> {
    let (source, assembled) = (directory.join("program.c"), directory.join(ASSEMBLY));
    std::fs::write(&source, PROGRAM).unwrap();
    std::fs::write(&assembled, format!(".intel_syntax noprefix\n{}", assembly())).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-w", "-fno-builtin", "-Wl,--gc-sections", "-o"]).arg(directory.join("program"));
    cc.args([&source, &assembled]).args(arguments()).arg("-lm");
    let done = cc.output().ok()?;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(std::fs::read(directory.join("program")).unwrap())
}

#[test]
fn a_program_with_every_function_needs_no_newer_symbol_and_works() {
    let directory = tempfile::tempdir().unwrap();
    let Some(bytes) = linked(directory.path()) else {
        println!("skipped: no C compiler");
        return;
    };
    for (name, _) in FUNCTIONS.iter().filter(|(name, _)| *name != "__libc_start_main") {
        assert!(
            PROGRAM.contains(&format!("{name}(")) || PROGRAM.contains(&format!("\"{name}\"")),
            "{name} is not called"
        );
    }
    let needs = check::needs(&bytes).unwrap();
    assert_eq!(needs.newer, <[&str; 0]>::default());
    assert!(needs.symbols > FUNCTIONS.iter().filter(|(_, old)| matches!(old, Old::Version(_))).count(), "{needs:?}");
    let done = Command::new(directory.path().join("program")).arg("x").output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
}

#[test]
fn newer_symbols_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("p.c"), directory.path().join("p"));
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    let Ok(done) = Command::new("cc").arg(&source).arg("-o").arg(&program).output() else {
        println!("skipped: no C compiler");
        return;
    };
    assert!(done.status.success());
    let needs = check::needs(&std::fs::read(&program).unwrap()).unwrap();
    // Since glibc 2.34 every program needs this one in its newest version; before, none is newer.
    let start = needs.newer.iter().any(|it| it.starts_with("__libc_start_main@GLIBC_2."));
    assert!(start || needs.newer.is_empty() && needs.symbols > 0, "{needs:?}");
    assert!(check::needs(b"no ELF file").is_err());
}
