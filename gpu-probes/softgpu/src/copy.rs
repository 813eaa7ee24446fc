//! Copies of memory: rows of bytes from one place to another, alone or in batches.

use std::sync::Arc;

use crate::abi::{CuMemcpy3D, CuMemcpy3DSide, Handle, Memcpy6, MemcpyPtoP4, Status, error, kind, memory_kind};
use crate::activity::{self, Ticket};
use crate::callback;
use crate::contexts;
use crate::device;
use crate::faults::faults;
use crate::memory::MEMORY;
use crate::operation::{self, GraphPosition, Operation};
use crate::stream::Stream;

/// One or more copies that CUPTI records as one.
#[derive(Clone)]
pub(crate) struct Copy {
    parts: Vec<CopyPart>,
    direction: Direction,
    src_kind: u8,
    dst_kind: u8,
    is_async: bool,
    /// Source and destination of a copy between devices.
    devices: Option<[i32; 2]>,
}

/// `CUpti_ActivityMemcpyKind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    HostToDevice = 1,
    DeviceToHost = 2,
    DeviceToDevice = 8,
    HostToHost = 9,
    PeerToPeer = 10,
}

/// Slices of rows of bytes.
#[derive(Clone)]
struct CopyPart {
    to: Side,
    from: Side,
    /// Pageable host memory, copied during the call: the program may change it right after. Without gaps between rows.
    staged: Option<Arc<[u8]>>,
    width: usize,
    rows: usize,
    slices: usize,
}

/// Where one side of a copy lies.
#[derive(Clone, Copy)]
struct Side {
    address: usize,
    /// Bytes from the start of one row to the start of the next.
    pitch: usize,
    /// The same for slices.
    slice: usize,
}

impl Side {
    /// Rows without gaps.
    fn dense(address: usize, width: usize, rows: usize) -> Self {
        Side { address, pitch: width, slice: width * rows }
    }

    fn row(&self, row: usize, slice: usize) -> usize {
        self.address + slice * self.slice + row * self.pitch
    }
}

impl CopyPart {
    fn flat(to: usize, from: usize, bytes: usize) -> Self {
        let side = |address| Side::dense(address, bytes, 1);
        CopyPart { to: side(to), from: side(from), staged: None, width: bytes, rows: 1, slices: 1 }
    }

    fn bytes(&self) -> usize {
        self.width * self.rows * self.slices
    }

    /// Bytes from the first byte of this side to its last.
    fn span(&self, side: Side) -> Result<usize, i32> {
        if self.bytes() == 0 {
            return Ok(0);
        }
        if self.rows > 1 && side.pitch < self.width || self.slices > 1 && side.slice < side.pitch * self.rows {
            return Err(error::INVALID_VALUE);
        }
        let rows = (self.rows - 1).checked_mul(side.pitch).ok_or(error::INVALID_VALUE)?;
        let slices = (self.slices - 1).checked_mul(side.slice).ok_or(error::INVALID_VALUE)?;
        rows.checked_add(slices).and_then(|it| it.checked_add(self.width)).ok_or(error::INVALID_VALUE)
    }

    fn run(&self) {
        let from = match &self.staged {
            Some(bytes) => Side::dense(bytes.as_ptr() as usize, self.width, self.rows),
            None => self.from,
        };
        // SAFETY: the call checked the device side; the host side is the program's word, as with a real GPU.
        unsafe { self.copy(from, self.to) };
    }

    /// # Safety
    /// Both sides have these rows, which may be read at `from` and written at `to`.
    unsafe fn copy(&self, from: Side, to: Side) {
        for slice in 0..self.slices {
            for row in 0..self.rows {
                let (from, to) = (from.row(row, slice) as *const u8, to.row(row, slice) as *mut u8);
                // SAFETY: the caller promises that both sides have this row, readable at `from` and writable at `to`.
                unsafe { std::ptr::copy(from, to, self.width) };
            }
        }
    }

    /// Takes the source's bytes now.
    fn stage(&mut self) {
        let mut bytes = vec![0u8; self.bytes()];
        // SAFETY: by the call, the program has that many readable bytes there.
        unsafe { self.copy(self.from, Side::dense(bytes.as_mut_ptr() as usize, self.width, self.rows)) };
        self.staged = Some(bytes.into());
    }

    /// Splits bytes in a row into parts of at most `most`.
    fn split(self, most: usize) -> Vec<CopyPart> {
        if self.rows * self.slices != 1 || most == 0 {
            return vec![self];
        }
        let (to, from) = (self.to.address, self.from.address);
        (0..self.width).step_by(most).map(|at| CopyPart::flat(to + at, from + at, most.min(self.width - at))).collect()
    }
}

impl Copy {
    /// Copies bytes in a row.
    pub(crate) fn flat(to: usize, from: usize, bytes: usize, direction: Direction) -> Result<Self, i32> {
        Copy::of(CopyPart::flat(to, from, bytes), direction)
    }

    /// Copies bytes in a row, of which the addresses tell where they are.
    pub(crate) fn anywhere(to: usize, from: usize, bytes: usize) -> Result<Self, i32> {
        Copy::flat(to, from, bytes, direction(is_on_device(to), is_on_device(from)))
    }

    /// Copies bytes from one context's device to another's. On one device it is as any other copy there, as it was seen
    /// with CUPTI 13.0 on an H200.
    pub(crate) fn between(to: (usize, Handle), from: (usize, Handle), bytes: usize) -> Result<Self, i32> {
        let device_of = |it| contexts::CONTEXTS.find(it).map(|it| it.device).map_err(|_| error::INVALID_CONTEXT);
        let devices = [device_of(from.1)?, device_of(to.1)?];
        if devices[0] == devices[1] {
            return Copy::flat(to.0, from.0, bytes, Direction::DeviceToDevice);
        }
        Ok(Copy { devices: Some(devices), ..Copy::flat(to.0, from.0, bytes, Direction::PeerToPeer)? })
    }

    /// Copies what a structure of the driver describes; arrays are not supported.
    ///
    /// # Safety
    /// `it` is null or points at such a structure of the driver.
    pub(crate) unsafe fn described<T: Into<CuMemcpy3D> + std::marker::Copy>(it: *const T) -> Result<Self, i32> {
        // SAFETY: the caller promises that `it` is null or points at such a structure.
        let it: CuMemcpy3D = unsafe { it.as_ref() }.copied().ok_or(error::INVALID_VALUE)?.into();
        let (to, from) = (it.dst.place()?, it.src.place()?);
        let side = |address: usize, side: &CuMemcpy3DSide| Side {
            address: address + side.x_in_bytes + side.y * side.pitch + side.z * side.pitch * side.height,
            pitch: side.pitch,
            slice: side.pitch * side.height,
        };
        let part = CopyPart {
            to: side(to.0, &it.dst),
            from: side(from.0, &it.src),
            staged: None,
            width: it.width_in_bytes,
            rows: it.height,
            slices: it.depth,
        };
        let on_device = |(address, place): (usize, Option<bool>)| place.unwrap_or_else(|| is_on_device(address));
        Copy::of(part, direction(on_device(to), on_device(from)))
    }

    /// Checks the device side.
    fn of(part: CopyPart, direction: Direction) -> Result<Self, i32> {
        use Direction::{DeviceToDevice, DeviceToHost, HostToDevice, PeerToPeer};
        let (to, from) = (part.span(part.to)?, part.span(part.from)?);
        if matches!(direction, HostToDevice | DeviceToDevice | PeerToPeer) {
            MEMORY.check(part.to.address, to)?;
        }
        if matches!(direction, DeviceToHost | DeviceToDevice | PeerToPeer) {
            MEMORY.check(part.from.address, from)?;
        }
        let (src_kind, dst_kind) = (MEMORY.kind(part.from.address), MEMORY.kind(part.to.address));
        Ok(Copy { parts: vec![part], direction, src_kind, dst_kind, is_async: false, devices: None })
    }

    /// Adds the next copy of a batch if it is alike; else returns it.
    fn join(&mut self, next: Copy) -> Option<Copy> {
        let alike = |it: &Copy| (it.direction, it.src_kind, it.dst_kind);
        if alike(self) != alike(&next) {
            return Some(next);
        }
        self.parts.extend(next.parts);
        None
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(CopyPart::bytes).sum()
    }

    pub(crate) fn run(&self) {
        self.parts.iter().for_each(CopyPart::run);
    }

    /// Copies before the call returns.
    pub(crate) fn now(self, per_thread: bool) -> Status {
        let stream = device::stream(0, per_thread)?;
        self.submit(&stream).into_iter().for_each(|it| it.wait());
        Ok(())
    }

    /// Copies in the stream. Pageable memory is copied as the driver documents: read during the call, written before it
    /// returns.
    pub(crate) fn later(self, stream: &Arc<Stream>) -> Status {
        let mut copy = Copy { is_async: true, ..self };
        let is_read_now = copy.direction == Direction::HostToDevice && copy.src_kind == memory_kind::PAGEABLE;
        if is_read_now && stream.capture().is_none() {
            copy.parts.iter_mut().for_each(CopyPart::stage);
        }
        let must_wait = copy.dst_kind == memory_kind::PAGEABLE;
        let marks = copy.submit(stream);
        marks.into_iter().filter(|_| must_wait).for_each(|it| it.wait());
        Ok(())
    }

    /// Queues it: pageable memory in parts of the size that tests ask for, each with a record.
    fn submit(mut self, stream: &Arc<Stream>) -> Vec<crate::stream::Mark> {
        let is_pageable = [self.src_kind, self.dst_kind].contains(&memory_kind::PAGEABLE);
        let is_split = is_pageable && faults().copy_part > 0 && stream.capture().is_none() && self.parts.len() == 1;
        let parts = match is_split {
            true => std::mem::take(&mut self.parts).into_iter().flat_map(|it| it.split(faults().copy_part)).collect(),
            false => vec![],
        };
        let alone: Vec<Copy> = match parts.is_empty() {
            true => vec![self],
            false => parts.into_iter().map(|it| Copy { parts: vec![it], ..self.clone() }).collect(),
        };
        let submit = |it| operation::submit(stream, Operation::Copy(it), callback::correlation());
        alone.into_iter().filter_map(submit).collect()
    }

    /// Begins its record, if it has one: not if it copies nothing, nor if the fault of host copies without one is on.
    pub(crate) fn ticket(&self, stream: &Stream, correlation: u32, place: GraphPosition) -> Option<Ticket> {
        let is_the_hosts = self.direction == Direction::HostToHost && !self.is_async;
        if self.bytes() == 0 || is_the_hosts && faults().unrecorded_host_copies {
            return None;
        }
        match self.devices {
            Some(devices) if activity::enabled(kind::MEMCPY2) => {
                activity::begin(&self.peer_record(stream, correlation, place, devices))
            }
            None if activity::enabled(kind::MEMCPY) => activity::begin(&self.record(stream, correlation, place)),
            _ => None,
        }
    }

    fn record(&self, stream: &Stream, correlation_id: u32, place: GraphPosition) -> Memcpy6 {
        Memcpy6 {
            kind: kind::MEMCPY,
            copy_kind: self.direction as u8,
            src_kind: self.src_kind,
            dst_kind: self.dst_kind,
            flags: u8::from(self.is_async),
            bytes: self.bytes() as u64,
            device_id: stream.device as u32,
            context_id: stream.context,
            stream_id: stream.id,
            correlation_id,
            graph_node_id: place.node,
            graph_id: place.graph,
            channel_type: 1,
            copy_count: self.parts.len() as u64,
            ..Memcpy6::default()
        }
    }

    fn peer_record(
        &self,
        stream: &Stream,
        correlation_id: u32,
        place: GraphPosition,
        [from, to]: [i32; 2],
    ) -> MemcpyPtoP4 {
        MemcpyPtoP4 {
            kind: kind::MEMCPY2,
            copy_kind: self.direction as u8,
            src_kind: self.src_kind,
            dst_kind: self.dst_kind,
            flags: u8::from(self.is_async),
            bytes: self.bytes() as u64,
            device_id: stream.device as u32,
            context_id: stream.context,
            stream_id: stream.id,
            src_device_id: from as u32,
            src_context_id: stream.context,
            dst_device_id: to as u32,
            dst_context_id: stream.context,
            correlation_id,
            graph_node_id: place.node,
            graph_id: place.graph,
            channel_type: 1,
            ..MemcpyPtoP4::default()
        }
    }
}

/// Copies several at once: CUPTI has one record of those in succession that are alike.
pub(crate) fn batch(copies: impl Iterator<Item = Result<Copy, i32>>, stream: &Arc<Stream>) -> Status {
    let mut joined: Vec<Copy> = Vec::new();
    for copy in copies.collect::<Result<Vec<_>, i32>>()? {
        let rest = match joined.last_mut() {
            Some(last) => last.join(copy),
            None => Some(copy),
        };
        joined.extend(rest);
    }
    joined.into_iter().try_for_each(|it| it.later(stream))
}

fn is_on_device(address: usize) -> bool {
    [memory_kind::DEVICE, memory_kind::MANAGED].contains(&MEMORY.kind(address))
}

fn direction(to_device: bool, from_device: bool) -> Direction {
    match (to_device, from_device) {
        (true, true) => Direction::DeviceToDevice,
        (true, false) => Direction::HostToDevice,
        (false, true) => Direction::DeviceToHost,
        (false, false) => Direction::HostToHost,
    }
}
