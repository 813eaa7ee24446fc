//! Root compiles as the user whose code it is. Alone in its process: a program that was just written can't be run while
//! another thread is starting one.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use xputrace_boundary::child::Limit;
use xputrace_boundary::user::Account;
use xputrace_cubins::{Compiler, Order, Purpose};

#[test]
#[allow(clippy::print_stderr, reason = "a test says why it did not run")]
fn root_compiles_as_the_user() {
    // SAFETY: only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can become another user");
        return;
    }
    // Where that user can read.
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(directory.path(), Some(65534), None).unwrap();
    let path = directory.path().join("ptxas");
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ptxas.sh"), &path).unwrap();
    fs::write(directory.path().join("version"), "13.0.88").unwrap();
    let is_given_up = AtomicBool::new(false);
    let order = Order {
        text: ".version 9.0",
        target: "sm_90a",
        purpose: Purpose::Module,
        capability: 90,
        candidates: &[path],
        account: Account { uid: 65534, gid: 65534 },
        cache: None,
        limit: Limit { within: Duration::from_secs(300), is_given_up: &is_given_up },
    };
    let cubin = Compiler::default().compile(order).unwrap();
    assert!(cubin.code.starts_with(b"\x7fELF -arch=sm_90a 65534 "), "{}", String::from_utf8_lossy(&cubin.code));
}
