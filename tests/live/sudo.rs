//! Under sudo the command runs as the invoking user, and what sudo took from its environment is named.

use crate::harm::{nobody, public_stage};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;
use xputrace_tests::{need_root, skip};

/// What is typed under sudo; the uprobe needs root, the command must not have it.
const SCRIPT: &str = "uprobe(\"./server:handle_request\", |e| @users[e.uid].count()); launch(|l| @api[l.api].count()); kernel(|k| @n[k.name].count());";

/// Runs xputrace below a process called sudo whose own environment has a virtual environment, as sudo
/// itself does: the shell of that name takes the variables away and says who called it.
fn under_sudo(stage: &TempDir, uid: u32, options: &str) -> Output {
    let sudo = stage.path().join("sudo");
    std::fs::copy("/bin/sh", &sudo).unwrap();
    std::fs::set_permissions(&sudo, std::fs::Permissions::from_mode(0o755)).unwrap();
    let venv = stage.path().join("venv");
    let libraries = stage.path().join("softgpu");
    // What the user exported is visible in the process called sudo; its child lost all but LD_LIBRARY_PATH, which
    // the user gave back on sudo's command line.
    let line = format!(
        "unset VIRTUAL_ENV PYTHONPATH; export PATH=/usr/sbin:/usr/bin:/sbin:/bin SUDO_UID={uid} SUDO_GID={uid}; \
         ./xputrace -f json {options} -e '{SCRIPT}' -- sh -c 'echo uid $(id -u) home $HOME user $USER; exec ./server --requests=5'; exit $?"
    );
    Command::new(&sudo)
        .args(["-c", &line])
        .current_dir(stage.path())
        .env("VIRTUAL_ENV", &venv)
        .env("PATH", path_with(&venv.join("bin")))
        .env("LD_LIBRARY_PATH", libraries)
        .env_remove("CUDA_INJECTION64_PATH")
        .output()
        .unwrap()
}

fn path_with(directory: &Path) -> String {
    format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default())
}

#[test]
fn the_command_runs_as_the_invoking_user_and_what_was_lost_is_named() {
    need_root!();
    let Some(uid) = nobody() else { skip!("no user nobody") };
    let stage = public_stage();
    let done = under_sudo(&stage, uid, "");
    let (text, notes) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{text}{notes}");
    assert!(text.contains(&format!("uid {uid} home ")) && text.contains("user nobody"), "{text}");
    assert!(text.contains(&format!("{{\"@users\":{{\"{uid}\":5}}}}")), "the probed process has the user's id: {text}");
    assert!(text.contains("{\"cuLaunchKernel\":20}") && text.contains("\"joined\":20"), "{text}{notes}");
    let note = notes.lines().find(|it| it.contains("sudo")).unwrap_or_else(|| panic!("no note: {notes}"));
    assert!(note.contains("VIRTUAL_ENV") && note.contains("PATH") && !note.contains("LD_LIBRARY_PATH"), "{note}");
}

#[test]
fn as_root_keeps_root() {
    need_root!();
    let Some(uid) = nobody() else { skip!("no user nobody") };
    let done = under_sudo(&public_stage(), uid, "--as-root");
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && text.contains("uid 0 ") && text.contains("{\"@users\":{\"0\":5}}"),
        "{text}{}",
        String::from_utf8_lossy(&done.stderr)
    );
}
