//! Where the calls that launch a kernel have the values of its parameters.

use super::super::calls::read;
use super::super::domain;
use super::calls::{TWIN_IDS, TwinCallRole, offset, role_of};
use std::ffi::c_void;

/// What names an entry of `extra` (`cuda.h`).
mod extra {
    pub(super) const END: usize = 0;
    pub(super) const BUFFER: usize = 1;
    /// The address of the buffer's size.
    pub(super) const BYTES: usize = 2;
    /// Entries that are looked at: there are no others.
    pub(super) const MOST: usize = 8;
}

/// Returns the ids of the driver's calls that launch one kernel with its parameters: they are the same in the Sanitizer API
/// (`sanitizer_driver_cbid.h`).
pub fn launches() -> impl Iterator<Item = u32> {
    TWIN_IDS.iter().filter(|it| places(it.call).is_some()).map(|it| it.id)
}

/// Returns where a call has `kernelParams`, and `extra` if it has that.
fn places(role: TwinCallRole) -> Option<(usize, Option<usize>)> {
    Some(match role {
        TwinCallRole::Launch { .. } => (offset::launch::VALUES, Some(offset::launch::EXTRA)),
        TwinCallRole::Cooperative { .. } => (offset::launch::VALUES, None),
        TwinCallRole::LaunchEx { .. } => (offset::launch_ex::VALUES, Some(offset::launch_ex::EXTRA)),
        _ => return None,
    })
}

/// The values of a kernel's parameters, while the call that gives them is under way.
#[derive(Clone, Copy, Debug)]
pub enum Arguments {
    /// The address of each.
    Separate(*const *const u8),
    /// All of them in one piece, and its size.
    Packed(*const u8, usize),
}

impl Arguments {
    /// Returns those of a call with this id; `None` if it is no such launch, or has none.
    ///
    /// # Safety
    /// `params` is null or points at the parameter structure of this call, which is under way.
    pub unsafe fn of(id: u32, params: *const c_void) -> Option<Arguments> {
        let (values_at, extra_at) = places(role_of(domain::DRIVER, id)?)?;
        let params = Some(params.cast::<u8>()).filter(|it| !it.is_null())?;
        // SAFETY: the caller promises that `params`, which is not null here, points at the parameter structure of this
        // call, which has the lists at the offsets of `layouts.txt`.
        unsafe {
            let values: *const *const u8 = read(params, values_at);
            if !values.is_null() {
                return Some(Arguments::Separate(values));
            }
            let extra: *const usize = read(params, extra_at?);
            if extra.is_null() { None } else { packed(extra) }
        }
    }

    /// Returns a parameter of 8 bytes or less, zero-extended; `None` if it isn't there.
    ///
    /// # Safety
    /// The call is under way, and its kernel has such a parameter.
    pub unsafe fn value(self, number: usize, offset: usize, bytes: usize) -> Option<u64> {
        let mut value = [0; 8];
        let to = value.get_mut(..bytes)?;
        // SAFETY: the caller's promise: the driver reads the same.
        let from = unsafe {
            match self {
                Arguments::Separate(values) => *values.add(number),
                Arguments::Packed(_, size) if offset.checked_add(bytes)? > size => return None,
                Arguments::Packed(buffer, _) => buffer.add(offset),
            }
        };
        if from.is_null() {
            return None;
        }
        // SAFETY: as above.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), bytes) };
        Some(u64::from_le_bytes(value))
    }
}

/// # Safety
/// `list` is what a launch has as `extra`.
unsafe fn packed(list: *const usize) -> Option<Arguments> {
    let (mut buffer, mut bytes) = (None, None);
    for at in (0..).step_by(2).take(extra::MOST) {
        // SAFETY: the caller's promise: a value follows each name but the last one.
        unsafe {
            match *list.add(at) {
                extra::END => break,
                extra::BUFFER => buffer = Some(*list.add(at + 1) as *const u8).filter(|it| !it.is_null()),
                extra::BYTES => bytes = (*list.add(at + 1) as *const usize).as_ref().copied(),
                _ => return None,
            }
        }
    }
    Some(Arguments::Packed(buffer?, bytes?))
}
