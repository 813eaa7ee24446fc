//! A BPF map by its file descriptor: single elements, and all of them in batches.

use crate::cpus;
use crate::error::Error;
use crate::modify::{Atomics, Modifier};
use crate::sys;
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use xputrace_bytecode::helper;
use xputrace_bytecode::image::{MapKind, MapSpec};
use xputrace_bytecode::vm::{Atomic, Modification, Number, RemoteMap};

/// Called with every element: its key, and one value per CPU (a single value for maps that are not
/// per-CPU).
pub type OnElement<'f> = dyn FnMut(&[u8], &[&[u8]]) + 'f;

/// Initial number of elements per batch.
const BATCH: usize = 1024;

/// A map in Linux. If it has two generations, the handle refers to the current one, even after a
/// swap. Clones refer to the same map.
#[derive(Clone, Debug)]
pub struct MapHandle {
    spec: Rc<MapSpec>,
    /// Number of values of an element.
    values: usize,
    fd: Rc<RefCell<Rc<OwnedFd>>>,
    /// Loaded on first use.
    modifiers: Rc<RefCell<Vec<Modifier>>>,
    /// Loaded on first use.
    atomics: Rc<RefCell<Atomics>>,
    /// Elements that user space stored in an evicting map, less those it removed.
    stored: Rc<Cell<i64>>,
}

impl MapHandle {
    /// # Errors
    /// The map is per-CPU, and the maximum number of CPUs is unknown.
    pub(crate) fn new(spec: MapSpec, fd: OwnedFd) -> Result<MapHandle, Error> {
        let values = match spec.kind {
            MapKind::PercpuHash | MapKind::PercpuArray | MapKind::LruPercpuHash => cpus::possible()
                .map_err(|answer| Error::System { what: "count the possible processors".into(), answer })?,
            _ => 1,
        };
        let fd = Rc::new(RefCell::new(Rc::new(fd)));
        Ok(MapHandle {
            spec: Rc::new(spec),
            values,
            fd,
            modifiers: Rc::default(),
            atomics: Rc::default(),
            stored: Rc::default(),
        })
    }

    /// Returns the specification that the map was created from.
    pub fn spec(&self) -> &MapSpec {
        &self.spec
    }

    /// Returns another descriptor of the same map.
    pub fn try_clone_fd(&self) -> Result<OwnedFd, Error> {
        self.fd().try_clone().map_err(|it| self.error("duplicate the descriptor of", it))
    }

    /// Returns the value, or each CPU's value of a per-CPU map.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<Vec<u8>>>, Error> {
        self.check("look up a key in", key.len(), self.spec.key_size)?;
        let mut value = vec![0; self.stored_size()];
        match sys::map_lookup(self.fd().as_fd(), key, &mut value) {
            Ok(()) => Ok(Some(self.split(&value).into_iter().map(<[u8]>::to_vec).collect())),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(self.error("look up a key in", error)),
        }
    }

    /// Stores a value; `flags` as for `bpf_map_update_elem`. In a per-CPU map, sets every CPU's
    /// value.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Error> {
        self.check("update", key.len(), self.spec.key_size)?;
        self.check("update", value.len(), self.spec.value_size)?;
        self.store(key, value, flags).map_err(|it| self.error("update", it))
    }

    /// Changes the first 8 bytes of an element's value atomically, even if probes change it at the
    /// same time; a missing element starts from zeros.
    pub fn modify(&self, key: &[u8], change: Modification) -> Result<(), Error> {
        self.check("change an element of", key.len(), self.spec.key_size)?;
        self.modify_in_linux(key, change).map_err(|it| self.error("change an element of", it))
    }

    /// Adds to the first 8 bytes of an element's value, like [`MapHandle::modify`].
    pub fn add(&self, key: &[u8], delta: i64) -> Result<(), Error> {
        self.modify(key, Modification::add(delta))
    }

    /// Removes an element; returns whether it existed.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        self.check("delete a key of", key.len(), self.spec.key_size)?;
        match self.delete_in_linux(key) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(self.error("delete a key of", error)),
        }
    }

    /// Calls `f` with every element: its key, and one value per CPU (a single value for maps that
    /// are not per-CPU). Concurrent changes may or may not be seen.
    pub fn for_each(&self, f: &mut OnElement<'_>) -> Result<(), Error> {
        let fd = self.fd();
        match self.read_batches(fd.as_fd(), f) {
            // Linux answers the second for maps of stacks (`include/linux/errno.h`).
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | sys::ENOTSUPP)) => {
                self.read_one_by_one(fd.as_fd(), f)
            }
            answer => answer,
        }
        .map_err(|it| self.error("read", it))
    }

    /// Removes every element; elements of arrays become zero.
    pub fn clear(&self) -> Result<(), Error> {
        let mut keys = Vec::new();
        self.for_each(&mut |key, _| keys.push(key.to_vec()))?;
        let zero = vec![0; self.spec.value_size as usize];
        for key in keys {
            match self.spec.kind {
                MapKind::Array | MapKind::PercpuArray => self.update(&key, &zero, 0)?,
                _ => {
                    self.delete(&key)?;
                }
            }
        }
        Ok(())
    }

    /// Returns why Linux refused an atomic instruction of the engine's, if it ever did. The engine has changed its copy of the
    /// value instead, and written it back.
    pub fn refused_atomic(&self) -> Option<Error> {
        let atomics = self.atomics.borrow();
        let answer = atomics.refusal()?;
        Some(self.error("run an atomic instruction on", io::Error::other(answer.to_string())))
    }

    pub(crate) fn fd(&self) -> Rc<OwnedFd> {
        self.fd.borrow().clone()
    }

    /// Makes the handle refer to another map of the same shape; returns the previous one.
    pub(crate) fn replace(&self, fd: OwnedFd) -> MapHandle {
        let old = self.fd.replace(Rc::new(fd));
        let (modifiers, atomics) = (self.modifiers.take(), self.atomics.take());
        MapHandle {
            spec: self.spec.clone(),
            values: self.values,
            fd: Rc::new(RefCell::new(old)),
            modifiers: Rc::new(RefCell::new(modifiers)),
            atomics: Rc::new(RefCell::new(atomics)),
            stored: self.stored.clone(),
        }
    }

    pub(crate) fn error(&self, operation: &'static str, answer: io::Error) -> Error {
        Error::Map { operation, map: self.spec.name.clone(), answer }
    }

    fn check(&self, operation: &'static str, len: usize, expected: u32) -> Result<(), Error> {
        if len == expected as usize {
            return Ok(());
        }
        let text = format!("{len} bytes where the map has {expected}");
        Err(self.error(operation, io::Error::new(io::ErrorKind::InvalidInput, text)))
    }

    fn modify_in_linux(&self, key: &[u8], change: Modification) -> io::Result<()> {
        if self.is_per_cpu() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut modifiers = self.modifiers.borrow_mut();
        let at = match modifiers.iter().position(|it| it.op() == change.op()) {
            Some(at) => at,
            None => {
                modifiers.push(Modifier::new(self.fd().as_fd(), &self.spec, change.op())?);
                modifiers.len() - 1
            }
        };
        let is_new = modifiers[at].run(key, change.operand())?;
        self.count_stored(i64::from(is_new));
        Ok(())
    }

    fn delete_in_linux(&self, key: &[u8]) -> io::Result<()> {
        sys::map_delete(self.fd().as_fd(), key)?;
        self.count_stored(-1);
        Ok(())
    }

    /// Returns the number of elements that user space stored in an evicting map, less those it
    /// removed. Together with what programs stored, and what is there, it tells how many were
    /// evicted.
    pub fn stored(&self) -> i64 {
        self.stored.get()
    }

    pub(crate) fn count_stored(&self, n: i64) {
        self.stored.set(self.stored.get().wrapping_add(n));
    }

    fn evicts(&self) -> bool {
        matches!(self.spec.kind, MapKind::LruHash | MapKind::LruPercpuHash)
    }

    fn is_per_cpu(&self) -> bool {
        matches!(self.spec.kind, MapKind::PercpuHash | MapKind::PercpuArray | MapKind::LruPercpuHash)
    }

    /// Returns the size of one CPU's value as Linux copies it.
    fn stride(&self) -> usize {
        if self.is_per_cpu() {
            (self.spec.value_size as usize).next_multiple_of(8)
        } else {
            self.spec.value_size as usize
        }
    }

    /// Returns the size of an element's value over all CPUs.
    fn stored_size(&self) -> usize {
        self.stride() * self.values
    }

    fn split<'a>(&self, stored: &'a [u8]) -> Vec<&'a [u8]> {
        let len = self.spec.value_size as usize;
        stored.chunks_exact(self.stride().max(1)).map(|it| &it[..len]).collect()
    }

    fn store(&self, key: &[u8], value: &[u8], flags: u64) -> io::Result<()> {
        if self.is_per_cpu() {
            return self.store_on_every_cpu(key, value, flags);
        }
        if !self.evicts() || flags != helper::UPDATE_ANY as u64 {
            sys::map_update(self.fd().as_fd(), key, value, flags)?;
            self.count_stored(i64::from(flags == helper::UPDATE_NOEXIST as u64));
            return Ok(());
        }
        match self.store(key, value, helper::UPDATE_NOEXIST as u64) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            done => return done,
        }
        match self.store(key, value, helper::UPDATE_EXIST as u64) {
            // It was evicted in between.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                self.store(key, value, helper::UPDATE_NOEXIST as u64)
            }
            done => done,
        }
    }

    fn store_on_every_cpu(&self, key: &[u8], value: &[u8], flags: u64) -> io::Result<()> {
        let mut stored = vec![0; self.stored_size()];
        for slot in stored.chunks_exact_mut(self.stride().max(1)) {
            slot[..value.len()].copy_from_slice(value);
        }
        sys::map_update(self.fd().as_fd(), key, &stored, flags)
    }

    fn read_batches(&self, fd: BorrowedFd<'_>, f: &mut OnElement<'_>) -> io::Result<()> {
        let (key_size, value_size) = (self.spec.key_size as usize, self.stored_size());
        let mut room = BATCH.min(self.spec.max_entries.max(1) as usize);
        let mut from: Option<Vec<u8>> = None;
        let mut to = vec![0; key_size.max(4)];
        loop {
            let (mut keys, mut values) = (vec![0; room * key_size], vec![0; room * value_size]);
            let read = sys::map_lookup_batch(fd, from.as_deref_mut(), &mut to, &mut keys, &mut values, room as u32);
            let (n, last) = match read {
                // A bucket has more elements than the buffer has room for.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    room *= 2;
                    continue;
                }
                other => other?,
            };
            let elements = keys.chunks_exact(key_size).zip(values.chunks_exact(value_size.max(1)));
            for (key, value) in elements.take(n) {
                f(key, &self.split(value));
            }
            if last {
                return Ok(());
            }
            from = Some(to.clone());
        }
    }

    fn read_one_by_one(&self, fd: BorrowedFd<'_>, f: &mut OnElement<'_>) -> io::Result<()> {
        let mut key = vec![0; self.spec.key_size as usize];
        let mut value = vec![0; self.stored_size()];
        let mut next = sys::map_next_key(fd, None, &mut key);
        while next.is_ok() {
            match sys::map_lookup(fd, &key, &mut value) {
                Ok(()) => f(&key, &self.split(&value)),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error),
            }
            let current = key.clone();
            next = sys::map_next_key(fd, Some(&current), &mut key);
        }
        match next {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }
}

/// The engine's view: one value per element. Per-CPU maps are not accessible this way (a lookup
/// finds nothing, an update is refused), because engines never share them.
impl RemoteMap for MapHandle {
    fn lookup(&mut self, key: &[u8], value: &mut [u8]) -> bool {
        key.len() == self.spec.key_size as usize
            && value.len() == self.spec.value_size as usize
            && !self.is_per_cpu()
            && sys::map_lookup(self.fd().as_fd(), key, value).is_ok()
    }

    fn update(&mut self, key: &[u8], value: &[u8], flags: u64) -> i64 {
        let fits = key.len() == self.spec.key_size as usize && value.len() == self.spec.value_size as usize;
        if !fits || self.is_per_cpu() {
            return -i64::from(libc::EINVAL);
        }
        as_errno(self.store(key, value, flags))
    }

    fn delete(&mut self, key: &[u8]) -> i64 {
        if key.len() != self.spec.key_size as usize {
            return -i64::from(libc::EINVAL);
        }
        as_errno(self.delete_in_linux(key))
    }

    fn modify(&mut self, key: &[u8], value_size: usize, change: Modification) -> i64 {
        let fits = key.len() == self.spec.key_size as usize && value_size == self.spec.value_size as usize;
        if !fits {
            return -i64::from(libc::EINVAL);
        }
        as_errno(self.modify_in_linux(key, change))
    }

    fn atomic(&mut self, key: &[u8], number: Number, atomic: Atomic) -> Option<u64> {
        self.atomics.borrow_mut().run(self.fd().as_fd(), &self.spec, key, number, atomic)
    }
}

fn as_errno(answer: io::Result<()>) -> i64 {
    match answer {
        Ok(()) => 0,
        Err(error) => -i64::from(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}
