//! Brings the collector into processes that were started without it.

use crate::drivers::is_driver_library;
use crate::payload::{COLLECTOR, Owner};
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use xputrace_inject::{Request, inject};
use xputrace_tracer::rendezvous::comm_of;
use xputrace_wire::Answer;
use xputrace_wire::maps::MapsLine;
use xputrace_wire::status::field;

/// The collector's function that arms a running process.
const ARM: &str = "xputrace_arm";

/// A running process that `-p` names.
#[derive(Clone, Debug)]
pub struct Attachable {
    pub pid: u32,
    /// The collector's file as the process sees it.
    library: PathBuf,
    /// The same file as we see it.
    pub collector: PathBuf,
}

impl Attachable {
    /// Lays down the collector where the process can load it.
    ///
    /// # Errors
    /// The process does not use CUDA, or there is no directory from which it can load the collector.
    pub fn prepare(pid: u32) -> Result<Self> {
        let reason = || format!("cannot attach to process {pid} ({})", comm_of(pid));
        if !uses_cuda(pid).with_context(reason)? {
            bail!(
                "{}: it has not loaded CUDA's driver library; wait for its first CUDA call, or start it under xputrace (-- CMD)",
                reason()
            );
        }
        let root = Path::new("/proc").join(pid.to_string()).join("root");
        if has_our_root(&root).with_context(reason)? {
            let library = COLLECTOR.lay_down(&owner(pid).with_context(reason)?).with_context(reason)?;
            return Ok(Attachable { pid, collector: library.clone(), library });
        }
        let library = COLLECTOR.lay_down_in(&root).with_context(reason)?;
        let collector = root.join(library.strip_prefix("/").unwrap_or(&library));
        Ok(Attachable { pid, library, collector })
    }

    /// Loads the collector and lets it connect to the tracer at `socket`, which arms it meanwhile. Returns once it
    /// is armed or refused; what it refuses, it tells the tracer.
    ///
    /// # Errors
    /// The process cannot be attached to.
    pub fn attach(&self, socket: &str) -> Result<()> {
        let request = Request { library: self.library.clone(), symbol: ARM, argument: socket.into() };
        let reason = || format!("cannot attach to process {} ({})", self.pid, comm_of(self.pid));
        match Answer::from_code(inject(self.pid, &request).with_context(reason)?) {
            Answer::Armed | Answer::Refused => Ok(()),
            Answer::NoTracer => bail!(
                "{}: its collector does not reach xputrace: it is in another network namespace, or does not trust this user",
                reason()
            ),
            Answer::Busy(0) => bail!("{}: another xputrace traces it", reason()),
            Answer::Busy(holder) => bail!("{}: another xputrace, process {holder}, traces it", reason()),
        }
    }
}

/// Whether a process has loaded CUDA's driver library, or a stand-in.
fn uses_cuda(pid: u32) -> Result<bool> {
    let maps = fs::read(format!("/proc/{pid}/maps")).context("reading its memory mappings")?;
    let mut files = maps.split(|it| *it == b'\n').filter_map(|it| MapsLine::parse(it)?.file());
    Ok(files.any(|(path, _)| is_driver_library(&path)))
}

/// The user as whom a process loads files.
fn owner(pid: u32) -> Result<Owner> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("reading its user")?;
    let effective = |name: &str| field(&status, name)?.split_whitespace().nth(1)?.parse().ok();
    let (uid, gid) = effective("Uid").zip(effective("Gid")).context("its user is unknown")?;
    let own = Owner::current();
    Ok(if own.uid == uid { own } else { Owner { uid, gid, home: None } })
}

/// Whether a process has our root directory and our mounts.
fn has_our_root(root: &Path) -> Result<bool> {
    let identity = |it: fs::Metadata| (it.dev(), it.ino());
    let same_root = fs::metadata(root).map(identity).ok() == fs::metadata("/").map(identity).ok();
    let mounts = |it: &Path| fs::metadata(it.join("ns/mnt")).map(identity);
    let process = root.parent().unwrap_or(root);
    let theirs = mounts(process).context("looking at its mounts")?;
    Ok(same_root && theirs == mounts(Path::new("/proc/self"))?)
}
