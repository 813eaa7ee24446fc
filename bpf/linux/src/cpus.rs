//! The number of CPUs, as reported by Linux itself.
//!
//! Files in `/sys/devices/system/cpu` may be missing, bind-mounted, or faked by a container's file
//! system; reading a per-CPU value into too small a buffer would write past its end.

use crate::sys;
use std::io;
use std::sync::OnceLock;
use xputrace_bytecode::{MapKind, MapSpec};

/// Content of a word before Linux writes a value there.
const UNTOUCHED: u64 = 0x5bad_5bad_5bad_5bad;

/// Returns the number of values in an element of a per-CPU map. Determined once, by how much of a
/// large buffer a lookup fills.
///
/// # Errors
/// Linux refuses to create or read a map.
pub(crate) fn possible() -> io::Result<usize> {
    static COUNTED: OnceLock<usize> = OnceLock::new();
    if let Some(known) = COUNTED.get() {
        return Ok(*known);
    }
    let counted = count_values()?;
    Ok(*COUNTED.get_or_init(|| counted))
}

fn count_values() -> io::Result<usize> {
    use std::os::fd::AsFd;
    let map = sys::map_create(&MapSpec::number("xt_cpus", MapKind::PercpuArray))?;
    let untouched = UNTOUCHED.to_ne_bytes();
    let mut values = untouched.repeat(sys::most_cpus()?);
    sys::map_lookup(map.as_fd(), &0u32.to_ne_bytes(), &mut values)?;
    Ok(values.as_chunks::<8>().0.iter().take_while(|it| **it != untouched).count())
}

/// Returns the numbers of the online CPUs: those that accept an event.
///
/// # Errors
/// The maximum number of CPUs is unknown.
pub(crate) fn online() -> io::Result<Vec<i32>> {
    let takes_events = |cpu: &i32| match sys::perf_event_open(&nothing(), 0, *cpu) {
        Ok(_) => true,
        Err(error) => !matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EINVAL)),
    };
    Ok((0..sys::most_cpus()? as i32).filter(takes_events).collect())
}

/// Describes an event that counts nothing.
fn nothing() -> libbpf_sys::perf_event_attr {
    let mut attr = libbpf_sys::perf_event_attr {
        type_: libbpf_sys::PERF_TYPE_SOFTWARE,
        size: size_of::<libbpf_sys::perf_event_attr>() as u32,
        config: u64::from(libbpf_sys::PERF_COUNT_SW_DUMMY),
        ..Default::default()
    };
    attr.set_exclude_kernel(1);
    attr
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        let online = online().unwrap();
        assert!(online.len() >= std::thread::available_parallelism().unwrap().get(), "{online:?}");
        assert!(online.len() <= sys::most_cpus().unwrap());
        match possible() {
            Ok(possible) => assert!(possible > *online.last().unwrap() as usize, "{possible}, {online:?}"),
            Err(error) => println!("skipped: {error}"),
        }
    }
}
