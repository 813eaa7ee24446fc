//! How to start the command: as which user, with which environment.

use crate::payload::{COLLECTOR, Owner};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsString};
use std::path::PathBuf;
use xputrace_boundary::create::Creator;
use xputrace_boundary::user::Account;
use xputrace_linux::{CommandUser, parent_of};
use xputrace_nvidia_tracer::injection::{Injection, Ranges};

/// Variables that sudo commonly removes and GPU programs need.
const OFTEN_LOST: &[&str] =
    &["PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES"];

/// How the command is started.
pub struct Launch {
    /// Added to our environment; `None` removes.
    pub environment: Vec<(OsString, Option<OsString>)>,
    /// The user it runs as, if not ours.
    pub identity: Option<CommandUser>,
    /// The user who will load the collector.
    pub owner: Owner,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Launch {
    /// Starts it as ourselves or, under sudo, as the invoking user.
    ///
    /// # Errors
    /// sudo names a user whom this system does not know: running as root instead is never intended.
    pub fn new(as_root: bool) -> Result<Self> {
        let mut launch = Launch { environment: Vec::new(), identity: None, owner: Owner::current(), notes: Vec::new() };
        if launch.owner.account.uid == 0
            && !as_root
            && let Some(user) = Invoker::of_sudo()?
        {
            launch.become_user(user);
        }
        Ok(launch)
    }

    fn become_user(&mut self, user: Invoker) {
        self.notes.extend(lost_to_sudo());
        for (name, value) in [
            ("HOME", user.home.clone().into_os_string()),
            ("USER", user.name.clone().into()),
            ("LOGNAME", user.name.clone().into()),
        ] {
            self.environment.push((name.into(), Some(value)));
        }
        self.owner = Owner { account: user.account, home: Some(user.home) };
        let Account { uid, gid } = user.account;
        self.identity = Some(CommandUser { uid, gid, groups: user.groups });
    }

    /// Makes the command's driver load the collector, which will connect to the tracer at `socket`; returns its path.
    ///
    /// # Errors
    /// The collector cannot be laid down.
    pub fn inject(&mut self, socket: &str, ranges: Ranges<'_>) -> Result<PathBuf> {
        let collector = COLLECTOR.lay_down(&self.owner)?;
        let Injection { variables, notes } = Injection::of(&collector, socket, ranges);
        self.environment.extend(variables.into_iter().map(|(name, value)| (name.into(), Some(value))));
        self.notes.extend(notes);
        Ok(collector)
    }
}

/// The user who invoked sudo.
pub struct Invoker {
    account: Account,
    groups: Vec<u32>,
    name: String,
    home: PathBuf,
}

impl Invoker {
    /// Returns `None` if sudo was not used, or was used by root.
    pub fn of_sudo() -> Result<Option<Self>> {
        let Some(text) = std::env::var_os("SUDO_UID") else { return Ok(None) };
        let unknown = || {
            format!(
                "cannot run the command as the invoking user: there is no user {} (SUDO_UID); use --as-root to run it as root",
                text.display()
            )
        };
        let uid: u32 = text.to_str().and_then(|it| it.parse().ok()).with_context(unknown)?;
        if uid == 0 {
            return Ok(None);
        }
        let User { name, gid, home } = password_entry(uid).with_context(unknown)?;
        // The group that sudo was invoked with may differ from the user's own.
        let gid = std::env::var("SUDO_GID").ok().and_then(|it| it.parse().ok()).unwrap_or(gid);
        let groups = groups_of(&name, gid);
        Ok(Some(Invoker { account: Account { uid, gid }, groups, name, home }))
    }

    /// Returns who creates files as this user.
    pub fn into_creator(self) -> Creator {
        Creator::of(self.account, self.groups).or_root()
    }
}

/// An entry of the password database.
struct User {
    name: String,
    gid: u32,
    home: PathBuf,
}

fn password_entry(uid: u32) -> Option<User> {
    // SAFETY: getpwuid returns null or a record that stays valid until the next call; this
    // program has one thread here and copies it at once.
    unsafe {
        let entry = libc::getpwuid(uid).as_ref()?;
        let text = |at: *const libc::c_char| CStr::from_ptr(at).to_string_lossy().into_owned();
        Some(User { name: text(entry.pw_name), gid: entry.pw_gid, home: PathBuf::from(text(entry.pw_dir)) })
    }
}

fn groups_of(name: &str, gid: u32) -> Vec<u32> {
    let Ok(name) = CString::new(name) else { return vec![gid] };
    let mut groups = vec![0u32; 256];
    let mut n = groups.len() as libc::c_int;
    // SAFETY: `groups` has room for `n` entries, and the call stores at most that many.
    let found = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &mut n) };
    if found < 0 {
        return vec![gid];
    }
    groups.truncate(n.max(0) as usize);
    groups
}

/// What sudo changed in the environment that the command may miss.
fn lost_to_sudo() -> Option<String> {
    let before = std::fs::read(format!("/proc/{}/environ", sudo_process()?)).ok()?;
    let before: Vec<(String, String)> = before
        .split(|it| *it == 0)
        .filter_map(|it| String::from_utf8_lossy(it).split_once('=').map(|(a, b)| (a.into(), b.into())))
        .collect();
    let changed: BTreeSet<&str> = before
        .iter()
        .filter(|(name, value)| OFTEN_LOST.contains(&name.as_str()) && std::env::var(name).ok().as_ref() != Some(value))
        .map(|(name, _)| name.as_str())
        .collect();
    if changed.is_empty() {
        return None;
    }
    let keep: Vec<String> = changed.iter().map(|it| format!("{it}=\"${it}\"")).collect();
    let names: Vec<&str> = changed.iter().copied().collect();
    Some(format!("sudo removed or changed {}; to keep them, run: sudo {} xputrace …", names.join(", "), keep.join(" ")))
}

/// The sudo above us: its own environment is still the invoking user's.
fn sudo_process() -> Option<u32> {
    let mut pid = std::process::id();
    for _ in 0..4 {
        pid = parent_of(pid)?;
        if std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|it| it.trim() == "sudo") {
            return Some(pid);
        }
    }
    None
}
